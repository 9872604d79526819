"""A sweep on this machine: its devices, what is wrong with them, and the cells that it would add to the queue, in the
order in which they would run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import msgspec
from textual.message_pump import MessagePump

from cs336_tui.config.order import in_order, in_rounds, rough_peak_bytes, usual_order
from cs336_tui.config.spec import AXES, CellSpec, SpecError
from cs336_tui.config.sweep import UNRESOLVED, Sweep
from cs336_tui.events.environment import Environment
from cs336_tui.events.prediction import prediction_key, run_key
from cs336_tui.tui.background import in_background
from cs336_tui.tui.widgets.lines import Lines

needs_of = lru_cache(maxsize=1 << 14)(prediction_key)
"""`prediction_key`, for many cells at every refresh."""
run_alike = lru_cache(maxsize=1 << 14)(run_key)


MOST = 200
"""Maximum number of different needs that are predicted for a sweep."""


class CellChoices(msgspec.Struct, frozen=True):
    """Choices that decide which cells are added; `sweep` is None while they have problems."""

    sweep: Sweep | None
    repeats: int
    environment: Environment | None
    elsewhere: bool = False
    """True: on a GPU that need not be here, whatever this machine lacks."""


class Need(NamedTuple):
    """Cells that need the same and run alike: the first, their number, and the steps of all, warm-up included."""

    spec: CellSpec
    cells: int
    steps: int


class Cells(NamedTuple):
    """Cells, each with which run of its spec it is, or in one line why there are none."""

    cells: tuple[tuple[CellSpec, int], ...] = ()
    why_none: str = ""
    needs: tuple[Need, ...] = ()
    largest: tuple[Need, ...] = ()
    """Needs that are predicted: all, or the largest if there are too many."""
    lanes: int = 1
    """Lanes in which they would run."""

    @property
    def is_cut(self) -> bool:
        """True if some needs are not predicted."""
        return len(self.largest) < len(self.needs)

    @property
    def kinds(self) -> int:
        """Number of different needs."""
        return len({needs_of(need.spec) for need in self.needs})

    @property
    def first(self) -> CellSpec | None:
        return self.cells[0][0] if self.cells else None


def cells_of(choices: CellChoices) -> Cells:
    if choices.sweep is None:
        return Cells(why_none="Fix the errors in Configure first.")
    if choices.environment is None and not choices.elsewhere:
        return Cells(why_none="reading this machine ...")
    try:
        here = choices.environment
        sweep = choices.sweep.with_devices(devices_of(choices.sweep, here) if here else ("cuda:0",))
        cells = as_cells(in_rounds(in_order(sweep.cells(), usual_order(sweep.lanes)), choices.repeats))
        return cells._replace(lanes=lanes_here(sweep, sweep.devices) if here else 1)
    except SpecError as error:
        return Cells(why_none=str(error))


def as_cells(cells: tuple[tuple[CellSpec, int], ...]) -> Cells:
    """These cells, with what they need. Of too many needs the `MOST` are predicted that are largest by a rough count,
    in the order given: what does not fit is among them."""
    found = largest = needs(spec for spec, _ in cells)
    kinds = {needs_of(need.spec) for need in found}
    if len(kinds) > MOST:
        most = set(sorted(kinds, key=rough_peak_bytes, reverse=True)[:MOST])
        largest = tuple(need for need in found if needs_of(need.spec) in most)
    return Cells(cells, "", found, largest)


def needs(specs: Iterable[CellSpec]) -> tuple[Need, ...]:
    """These cells, those together that need the same and run alike."""
    found: dict[CellSpec, Need] = {}
    for spec in specs:
        key = run_alike(spec)
        known = found.get(key) or Need(spec, 0, 0)
        found[key] = Need(known.spec, known.cells + 1, known.steps + spec.total_steps)
    return tuple(found.values())


def known_devices(sweep: Sweep, environment: Environment | None) -> tuple[str, ...]:
    """The devices that are meant, as far as that is known."""
    try:
        meant = devices_of(sweep, environment) if environment else sweep.devices
    except SpecError:
        return ()
    return tuple(dict.fromkeys(device for device in meant if device not in UNRESOLVED))


def devices_of(sweep: Sweep, environment: Environment) -> tuple[str, ...]:
    """The devices of a sweep here; with lanes those that they share. Raises `SpecError`."""
    if sweep.lanes == 1:
        return environment.resolve(sweep.devices)
    from cs336_tui.runner.lanes import pool_of

    return pool_of(sweep.devices, environment)


def lanes_here(sweep: Sweep, devices: tuple[str, ...]) -> int:
    """The number of lanes of a sweep on these devices. Raises `SpecError` if there is no room for them."""
    if sweep.lanes == 1:
        return 1
    from cs336_tui.runner.lanes import lanes_for

    found = lanes_for(sweep.lanes, devices, ranks=max(sweep.ranks, default=1), threads=sweep.threads or 0)
    return max(len(found), 1)


def device_problems(sweep: Sweep, environment: Environment | None) -> Iterator[SpecError]:
    """Problems of the devices, and choices that known devices cannot run."""
    named = tuple(device for device in sweep.devices if device not in UNRESOLVED)
    try:
        devices = devices_of(sweep, environment) if environment else named or ("cpu",)
        if environment:
            lanes_here(sweep, devices)
    except SpecError as error:
        yield error
        return
    unresolved = next((name for name in sweep.devices if name in UNRESOLVED), None)
    if sweep.lanes != 1:
        devices = devices[:1]  # they are alike
    if unresolved and len(set(devices)) != len(devices):
        here = ", ".join(environment.resolve((unresolved,)) if environment else ("one of them",))
        yield SpecError("device", ",".join(sweep.devices), f"{unresolved} is {here} here, choose one of the two")
    else:
        yield from Sweep(devices=devices, passes=("forward",)).problems()
    if environment is None:
        return
    for device in devices:
        values = {axis.field: getattr(sweep, axis.sweep) for axis in AXES.values() if axis.lacks}
        yield from environment.refusals(device, values | {"ranks": sweep.ranks, "backend": sweep.backends})


class Preview:
    """Works the cells out on a thread, as there may be thousands, and only when the choices are others than before."""

    def __init__(self, pump: MessagePump) -> None:
        self._pump = pump
        self._asked: CellChoices | None = None
        self._cells = Cells()
        self.is_current = False
        """True if the cells are those of the choices that were asked about last."""

    def cells(self, choices: CellChoices) -> Cells:
        """The cells as far as they are known; all is painted again when they are."""
        if choices != self._asked:
            self._asked, self.is_current = choices, False
            in_background(self._pump, lambda: cells_of(choices), lambda cells: self._take(choices, cells))
        return self._cells

    def _take(self, choices: CellChoices, cells: Cells) -> None:
        if choices == self._asked:
            self._cells, self.is_current = cells, True
            self._pump.post_message(Lines.Resized())
