"""A search from a sweep: its starting point, what is searched, and the command line that searches again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from cs336_tui.config.axis import SpecError
from cs336_tui.config.choices import check_names, own_code_folders, sweep_of
from cs336_tui.config.command import command_of
from cs336_tui.config.counts import duration_words, share_words
from cs336_tui.config.ranks import size_words
from cs336_tui.config.searched import fields_of, over_of, searched_axes
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.config.sweep import UNRESOLVED, Sweep
from cs336_tui.config.tuning import COUNTS, Goal, Over, Tuning, check_budget, check_goal, observable, space_of
from cs336_tui.config.values import canonical_device
from cs336_tui.config.variants import is_imported

VISIT = (3, 5)
"""Warm-up and measured steps of a visit if nobody chooses."""


class Search(NamedTuple):
    """A search that is asked for. `start` is the sweep of its one starting point, whose device may still be ``auto``,
    `visit` the warm-up and measured steps of a visit."""

    start: Sweep
    over: tuple[Over, ...]
    goal: Goal
    budget_s: float
    limit: dict[str, Any]
    """`within_bytes` or `within_share`."""
    visit: tuple[int, int] = VISIT
    model_path: tuple[str, ...] = ()
    model_args: tuple[tuple[str, str], ...] = ()

    def tuning(self, base: CellSpec) -> Tuning:
        """The tuning whose starting point is the cell of `start` on the device that it comes to."""
        warmup, steps = self.visit
        plain = {field: AXES[field].default for field in (*COUNTS, "timer")}
        asked = Tuning(
            base=msgspec.structs.replace(base, **plain | {"warmup_steps": warmup, "measure_steps": steps}),
            over=self.over,
            goal=self.goal,
            budget_s=self.budget_s,
            run=base,
            model_path=self.model_path,
            model_args=self.model_args,
            **self.limit,
        )
        return observable(asked)

    def somewhere(self) -> Tuning:
        """The tuning as if the device that the machine chooses were the CPU, for what can be checked without it."""
        (device,) = self.start.devices
        return self.tuning(self.start.with_devices(("cpu" if device in UNRESOLVED else device,)).cells()[0])

    def check(self) -> None:
        """Raise `SpecError` for what can be seen to be wrong before the machine is asked."""
        if self.start.devices[0] not in UNRESOLVED:
            check_goal(self.goal, canonical_device(self.start.devices[0]))
        tuning = self.somewhere()
        check_budget(tuning)
        space_of(tuning)


def search_of(
    sweep: Sweep,
    texts: Sequence[str],
    goal: Goal,
    budget_s: float,
    limit: dict[str, Any],
    *,
    visit: tuple[int, int] = VISIT,
    model_path: tuple[str, ...] = (),
    model_args: tuple[tuple[str, str], ...] = (),
) -> Search:
    """The search of the choices that ``--over`` names; without any of those with several values in the sweep, or the
    usual ones. `model_path` and `model_args` are of a user's own code among the values. Raises `SpecError`."""
    start = start_of(sweep, fields_of(texts) if texts else None)
    base = start.with_devices(("cpu",)).cells()[0]
    over = over_of(texts, base, goal) if texts else over_of_sweep(sweep, base, goal)
    folders = own_code_folders(model_path or sweep.model_path, any(map(_is_own, over)) or bool(sweep.own_code))
    for each in over:
        if AXES[each.field].own:
            check_names(AXES[each.field], each.values, folders)
    return Search(start, over, goal, budget_s, limit, visit, folders, model_args or sweep.model_args)


def _is_own(over: Over) -> bool:
    return any(isinstance(value, str) and is_imported(value) for value in over.values)


def start_of(sweep: Sweep, searched: Collection[str] | None = None) -> Sweep:
    """The first value of each searched choice, by field; None: of each that can be searched. Raises `SpecError` where
    another choice has several values."""
    fields = {axis.field for axis in searched_axes()} if searched is None else searched
    first: dict[str, Any] = {"reports": (), "lanes": 1}
    for field, axis in AXES.items():
        values = getattr(sweep, axis.sweep) if axis.sweep and axis.several else ()
        if field == "size" and sweep.has_widths:
            values = sweep.head_dims
        if len(values) > 1 and field not in fields:
            words = ",".join(map(str, values))
            may = f", or search --over {axis.option}" if axis in searched_axes() else ""
            raise SpecError(axis.option, words, f"the starting point is one cell; give one of these{may}")
        if len(values) > 1:
            first[axis.sweep] = values[:1]
    return msgspec.structs.replace(sweep, **first)


def over_of_sweep(sweep: Sweep, base: CellSpec, goal: Goal) -> tuple[Over, ...]:
    """The choices with several values; where there are none, those that are usually searched."""
    found = tuple(
        Over(axis.field, values)
        for axis in searched_axes()
        if axis.several and len(values := getattr(sweep, axis.sweep)) > 1
    )
    return found or over_of((), base, goal)


def command_of_search(tuning: Tuning) -> str:
    """The command line that searches again."""
    start = msgspec.structs.replace(sweep_of([_without_time(tuning.base)]), within=None)
    words = [word for each in tuning.over for word in ("--over", each.text)]
    words += ["--goal", tuning.goal]
    if tuning.within_share is not None:
        words += ["--within", share_words(tuning.within_share)]
    if tuning.within_bytes is not None:
        words += ["--within", size_words(tuning.within_bytes)]
    words += ["--budget", duration_words(tuning.budget_s)]
    for name, value in () if tuning.base.brings_own_code else tuning.model_args:
        words += ["--model-arg", f"{name}={value}"]
    for folder in () if tuning.base.brings_own_code else tuning.model_path:
        words += ["--model-path", folder]
    return f"{command_of(start).replace(' bench ', ' tune ', 1)} {shlex.join(words)}"


def _without_time(base: CellSpec) -> CellSpec:
    """The starting point with a number of steps, as ``--steps`` takes it; `observable` gives it the time again."""
    if base.steps_for is None:
        return base
    return msgspec.structs.replace(base, steps_for=None, measure_steps=VISIT[1])


def sweep_of_candidate(tuning: Tuning, spec: CellSpec) -> Sweep:
    """The sweep that runs a candidate alone, with the steps of a whole run."""
    return sweep_of([tuning.as_run(spec)])
