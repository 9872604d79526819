"""Differences in how results of one table were made, beside their specs: settings in force, versions, machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import NamedTuple

from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.events.environment import DeviceInfo

NONE = "none"
"""Of several things, that there is not one."""


class Aspect(NamedTuple):
    """One thing in which results may differ: an attribute of what `of` gives. `among` says which results must agree:
    those for which it gives the same. `none` is what None means, unless that it is not known."""

    name: str
    of: Callable[[Result], object]
    attribute: str
    among: Callable[[Result], Hashable] = lambda _: None
    none: str | None = None

    def read(self, result: Result) -> str | None:
        """It in words; None where it is not known."""
        if (owner := self.of(result)) is None:
            return None
        match getattr(owner, self.attribute):
            case None:
                return self.none
            case bool(is_on):
                return "on" if is_on else "off"
            case tuple(several):
                return " ".join(several) or NONE
            case value:
                return str(value)


_in_force, _machine, _device = attrgetter("cell.in_force"), attrgetter("environment"), attrgetter("spec.device")
_own_code = attrgetter("spec.own_code")
"""Fields that bring code of the user's; a revision is of all of it."""
_attention = attrgetter("spec.workload", "spec.model", "spec.attention", "spec.precision", "spec.device")
"""Settings that decide which kernel computes attention; the settings of each are a choice."""


def _device_info(result: Result) -> DeviceInfo | None:
    return result.environment.device(result.spec.device) if result.environment else None


def _device_type(result: Result) -> str:
    return result.spec.device.partition(":")[0]


def company(result: Result) -> str:
    """Company of a cell while it ran: ``alone``, or ``beside other cells`` in lanes."""
    return "beside other cells" if result.cell.neighbours else "alone"


class _Company(NamedTuple):
    said: str


def _precision(result: Result) -> tuple[str, str]:
    return result.spec.precision, _device_type(result)


SETTINGS_IN_FORCE = (
    Aspect("threads", _in_force, "threads"),
    Aspect("inter-op threads", _in_force, "interop_threads"),
    Aspect("attention", _in_force, "attention", _attention),
    Aspect("allocator", _in_force, "allocator", _device_type),
    Aspect("environment variables", _in_force, "variables", _device_type),
    Aspect("persistence mode", attrgetter("cell.surroundings"), "persistence_mode", _device),
    Aspect("compiler", _in_force, "compiler", lambda result: (result.spec.compile, _device_type(result))),
    Aspect("flush L2", _in_force, "flushed", attrgetter("spec.timer", "spec.flush_l2", "spec.device")),
    Aspect("model revision", _in_force, "model_revision", _own_code),
)
"""Effective settings beside the precision."""

_ALL = (
    *SETTINGS_IN_FORCE,
    Aspect("optimizer", _in_force, "optimizer", lambda result: (result.spec.optimizer, _device_type(result))),
    Aspect("float32 matmul precision", _in_force, "matmul_precision", _precision),
    Aspect("TF32", _in_force, "allow_tf32", _precision),
    Aspect("parameters", _in_force, "parameter_dtype", _precision),
    Aspect("autocast", _in_force, "autocast_dtype", _precision, NONE),
    Aspect("float8", _in_force, "float8", _precision, NONE),
    Aspect("logits", _in_force, "logits_dtype", _precision),
    Aspect("ran", lambda result: _Company(company(result)), "said"),
    Aspect("host", _machine, "host"),
    Aspect("device", _device_info, "label", _device),
    Aspect("GPU", _device_info, "uuid", lambda result: (_device(result), getattr(result.environment, "host", None))),
    *(Aspect(name, _machine, name.lower()) for name in ("torch", "CUDA", "cuDNN", "driver", "Python")),
    Aspect("cs336-tui", _machine, "app"),
)


def mixed_provenance(results: Sequence[Result]) -> tuple[str, ...]:
    """``mixed provenance: threads 2 (cells 1–3), 4 (cell 4)``: a line for each way in which the results fall apart.
    Empty where they agree. What is not known of a result is taken to agree with everything. What others recorded has no
    numbers beside these."""
    results = [result for result in results if not result.spec.recording]
    apart: dict[tuple[tuple[Result, ...], ...], list[tuple[str, list[str]]]] = {}
    for aspect in _ALL:
        lots: dict[Hashable, dict[str, list[Result]]] = {}
        for result in results:
            if (value := aspect.read(result)) is not None:
                lots.setdefault(aspect.among(result), {}).setdefault(value, []).append(result)
        for values in lots.values():
            if len(values) > 1:
                apart.setdefault(tuple(map(tuple, values.values())), []).append((aspect.name, list(values)))
    return tuple(
        f"mixed provenance: {_told(named, [_where(results, cells) for cells in groups])}"
        for groups, named in apart.items()
    )


def _told(named: Sequence[tuple[str, Sequence[str]]], where: Sequence[str]) -> str:
    if len(named) == 1:
        ((name, values),) = named
        between = "; " if any("," in value for value in values) else ", "
        return f"{name} " + between.join(f"{value} ({place})" for value, place in zip(values, where, strict=True))
    sides = (", ".join(f"{name} {values[side]}" for name, values in named) for side in range(len(where)))
    return "; ".join(f"{side} ({place})" for side, place in zip(sides, where, strict=True))


def _where(results: Sequence[Result], cells: Sequence[Result]) -> str:
    """Some of the results: ``cells 1–3, 5``, after the session's title if there are several sessions; the title alone
    for all of a session."""
    counted = Counter(result.source for result in results)
    if len(counted) == 1:
        return _cells(cells)
    return ", ".join(
        found[0].session if len(found) == counted[source] else f"{found[0].session}, {_cells(found)}"
        for source, found in grouped(cells, lambda result: result.source).items()
    )


def _cells(results: Sequence[Result]) -> str:
    """Their numbers, as people count."""
    runs: list[list[int]] = []
    for number in sorted(map(attrgetter("cell.cell"), results)):
        if runs and runs[-1][1] == number:
            runs[-1][1] = number + 1
        else:
            runs.append([number + 1, number + 1])
    spans = (str(first) if first == last else f"{first}–{last}" for first, last in runs)
    return f"cell{'s' if len(results) > 1 else ''} {', '.join(spans)}"
