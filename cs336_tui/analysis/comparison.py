"""Results against each other: how each was made, which cells of two sessions pair, how their times compare, and what
else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from cs336_tui.analysis.fields import FIELDS, device_label, machine
from cs336_tui.analysis.measures import allocated_bytes, largest
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled, runs_of, without_turns
from cs336_tui.analysis.referee import checked_word, disqualified
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.stats.quantities import spans
from cs336_tui.stats.ratio import LEVEL, MARGIN, Outcome, Ratio, explain, outcome, ratio_of
from cs336_tui.stats.summaries import Summary

NONE = "none"
"""Of several things, that there is not one."""


class Aspect(NamedTuple):
    """One thing in which results may differ: what `of` gives, or an attribute of that. `among` says which results must
    agree: those for which it gives the same. `none` is what None means, unless that it is not known."""

    name: str
    of: Callable[[Result], object]
    attribute: str = ""
    among: Callable[[Result], Hashable] = lambda _: None
    none: str | None = None

    def read(self, result: Result) -> str | None:
        """It in words; None where it is not known."""
        if (owner := self.of(result)) is None:
            return None
        match getattr(owner, self.attribute) if self.attribute else owner:
            case None:
                return self.none
            case bool(is_on):
                return "on" if is_on else "off"
            case tuple(several):
                return " ".join(several) or NONE
            case value:
                return str(value)


_in_force, _machine, _device = attrgetter("cell.in_force"), attrgetter("environment"), attrgetter("spec.device")
_info = attrgetter("device")
_own_code = attrgetter("spec.own_code")
"""Fields that bring code of the user's; a revision is of all of it."""
_attention = attrgetter("spec.workload", "spec.model", "spec.attention", "spec.precision", "spec.device")
"""Settings that decide which kernel computes attention; the settings of each are a choice."""


def _device_type(result: Result) -> str:
    return result.spec.device.partition(":")[0]


def company(result: Result) -> str:
    """Company of a cell while it ran: ``alone``, or ``beside other cells`` in lanes."""
    return "beside other cells" if result.cell.neighbours else "alone"


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
    Aspect("ran", company),
    Aspect("host", _machine, "host"),
    Aspect("device", _info, "label", _device),
    Aspect("GPU", _info, "uuid", lambda result: (_device(result), getattr(result.environment, "host", None))),
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
    return f"cell{'s' if len(results) > 1 else ''} {spans(result.cell.cell + 1 for result in results)}"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a pair: all runs of a spec in one session or several. `cells` are their numbers in their sessions,
    from 0. `summary` is over the steps of all measured runs; without one it is None, and `note` says why."""

    sessions: tuple[str, ...]
    cells: tuple[int, ...]
    spec: CellSpec
    machine: str
    runs: int
    summary: Summary | None
    peak_allocated_bytes: int | None
    note: str = ""


class Pair(msgspec.Struct, frozen=True, kw_only=True, rename={"outcome": "verdict"}):
    """Cells of A and of B that did the same; `ratio` is A's mean step time over B's. `differs` names what was not the
    same, as ``precision: fp32 | bf16-mixed``, where that is not so of every pair."""

    a: Side
    b: Side
    ratio: Ratio | None
    outcome: Outcome
    explanation: str
    differs: tuple[str, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A against B. `notes` say what differs in every pair, ``A | B``; `only_a` and `only_b` have no partner; `mixed`
    says of each side what was left out, and in what its own cells were not made alike."""

    schema: int = 1
    a: str
    b: str
    pairs: tuple[Pair, ...]
    only_a: tuple[Side, ...]
    only_b: tuple[Side, ...]
    notes: tuple[str, ...]
    margin: float
    level: float
    mixed: tuple[str, ...] = ()

    def count(self, of: Outcome) -> int:
        """Pairs with a ratio and this outcome."""
        return sum(pair.outcome == of for pair in self.pairs if pair.ratio)


def overlap(a: Iterable[Result], b: Iterable[Result]) -> bool:
    """True if both hold the same cell of one session, as two copies of its log do."""
    of_a, of_b = ({(each.state.started or id(each.state), each.cell.cell) for each in side} for side in (a, b))
    return not of_a.isdisjoint(of_b)


def compare(a: Sequence[Result], b: Sequence[Result], *, margin: float = MARGIN, level: float = LEVEL) -> Comparison:
    """Pair the cells of A with those of B and compare their step times. First pair cells of one spec, all repeats
    together; then those that timed the same work under another name, with other numbers of steps, seeds or threads.
    Last, where each side has one device and these differ, devices need not agree; likewise precisions, architectures,
    warm-ups and ways to synchronise. Two sides of one spec each always pair. `differs` and `notes` say all of that."""
    (a, a_notes), (b, b_notes) = map(without_turns, (a, b))
    a_groups, b_groups = (grouped(side, lambda result: result.spec) for side in (a, b))
    partners = _partners(tuple(a_groups), tuple(b_groups))
    pairs = [_pair(a_groups[x], b_groups[y], margin, level) for x, y in partners.items()]
    paired_b = set(partners.values())
    counted = Counter(line for pair in pairs for line in pair.differs)
    shared = tuple(line for line, number in counted.items() if number == len(pairs))
    return Comparison(
        a=_title(a),
        b=_title(b),
        pairs=tuple(
            msgspec.structs.replace(pair, differs=tuple(line for line in pair.differs if line not in shared))
            for pair in pairs
        ),
        only_a=tuple(side_of(group) for spec, group in a_groups.items() if spec not in partners),
        only_b=tuple(side_of(group) for spec, group in b_groups.items() if spec not in paired_b),
        notes=shared,
        margin=margin,
        level=level,
        mixed=tuple(
            f"{name}: {line}"
            for name, side, notes in (("A", a, a_notes), ("B", b, b_notes))
            for line in (*notes, *mixed_provenance(measured(side)))
        ),
    )


def _partners(a: Sequence[CellSpec], b: Sequence[CellSpec]) -> dict[CellSpec, CellSpec]:
    """Which spec of B each spec of A pairs with, in the order of A."""
    if len(a) == len(b) == 1:
        return {a[0]: b[0]}
    # Settings of which each side has one value, another one than the other side.
    values = {name: [{getattr(spec, name) for spec in side} for side in (a, b)] for name in _SETTINGS}
    settled = {name for name, (here, there) in values.items() if len(here) == len(there) == 1 and here != there}
    settings = {name: value for name, value in _SETTINGS.items() if name in settled}
    partners: dict[CellSpec, CellSpec] = {}
    stages: tuple[dict[str, Any], ...] = ({}, _NAMES, _NAMES | settings)
    for without in stages:
        taken = set(partners.values())
        left_a = _by_what_is_left([spec for spec in a if spec not in partners], without)
        left_b = _by_what_is_left([spec for spec in b if spec not in taken], without)
        partners |= {spec: left_b[key] for key, spec in left_a.items() if key in left_b}
    return {spec: partners[spec] for spec in a if spec in partners}


_NAMES, _SETTINGS = (
    {field: axis.alike for field, axis in AXES.items() if axis.compared == compared} for compared in ("name", "setting")
)
"""Fields that change no step's work, and fields that two sessions may compare, each with a stand-in."""


def _by_what_is_left(specs: Sequence[CellSpec], without: Mapping[str, Any]) -> dict[CellSpec, CellSpec]:
    """The specs by what they are without these fields, those left out that are not the only one of it."""
    left = [msgspec.structs.replace(spec, **without) for spec in specs]
    counted = Counter(left)
    return {key: spec for key, spec in zip(left, specs, strict=True) if counted[key] == 1}


def _pair(a: Sequence[Result], b: Sequence[Result], margin: float, level: float) -> Pair:
    ratio = ratio_of(runs_of(a), runs_of(b), level)
    left, right = side_of(a), side_of(b)
    missing = [f"{name} has no timing: {side.note}" for name, side in (("A", left), ("B", right)) if side.note]
    why_not = "; ".join(missing) or not_compared(a, b)
    return Pair(
        a=left,
        b=right,
        ratio=ratio,
        outcome="ambiguous" if why_not else outcome(ratio, margin),
        explanation=f"{why_not}." if why_not else explain(ratio, margin),
        differs=tuple(_differences(a, b)),
    )


def not_compared(a: Sequence[Result], b: Sequence[Result]) -> str:
    """The sides whose time is not that of their work, with the reason; empty without one."""
    found = [(name, disqualified(each.cell)) for name, side in (("A", a), ("B", b)) for each in measured(side)]
    by_side = {name: why for name, why in reversed(found) if why}
    return "; ".join(f"{name} is not compared: {by_side[name]}" for name in sorted(by_side))


def side_of(results: Sequence[Result]) -> Side:
    """All runs of one spec as a side."""
    ran = measured(results)
    return Side(
        sessions=_distinct(result.session for result in results),
        cells=tuple(result.cell.cell for result in results),
        spec=results[0].spec,
        machine=", ".join(_distinct(machine(result) for result in ran or results)),
        runs=len(ran),
        summary=pooled(results, ddof_of(results)),
        peak_allocated_bytes=largest(allocated_bytes(result.cell) for result in ran or results),
        note="" if ran else results[0].ending,
    )


def _title(results: Sequence[Result]) -> str:
    """The sessions that a side is of; with the cell's number, as people count, where it is one cell."""
    title = " + ".join(_distinct(result.session for result in results)) or "no cells"
    return f"{title}:{results[0].cell.cell + 1}" if len(results) == 1 else title


def _differences(a: Sequence[Result], b: Sequence[Result]) -> Iterator[str]:
    """The differences of the two sides of a pair, each as ``what: A | B``."""
    for name, read in _COMPARED.items():
        sides = [tuple(_distinct(read(result) for result in side)) for side in (measured(a) or a, measured(b) or b)]
        mixed = name in _PLACE and any(len(side) > 1 for side in sides)
        left, right = map(", ".join, sides)
        if (left != right or mixed) and _UNREAD not in (left, right):
            yield f"{name}: {left} | {right}"


def _of_environment(attribute: str) -> Callable[[Result], str]:
    return lambda result: str(getattr(result.environment, attribute, None) or "unknown")


def _read_back(attribute: str, absent: str = "none") -> Callable[[Result], str]:
    """A setting that was read back; `absent` is the meaning of None."""
    return lambda result: str(getattr(result.cell.in_force, attribute) or absent) if result.cell.in_force else _UNREAD


def _is_audited(result: Result) -> bool:
    """True if it is known whether its results were checked: not in old logs."""
    found = result.cell.finished is not None and result.cell.finished.audit is not None
    return found or result.spec.check == "off"


_UNREAD = "not read back"
_PLACE = ("side by side", "host", "device's name", "torch")
"""Differences that are said within a side, too: a pair takes all runs of a cell together."""
_COMPARED: Mapping[str, Callable[[Result], str]] = {
    **{field.title: field.show for field in FIELDS.values() if field.kind in ("choice", "model")},
    "side by side": company,
    "results": lambda result: checked_word(result.cell) if _is_audited(result) else _UNREAD,
    "in turns with another cell": lambda result: "yes" if result.cell.in_turns else "no",
    "host": _of_environment("host"),
    "device's name": device_label,
    **{name: _of_environment(name) for name in ("torch", "cuda", "cudnn", "driver", "python")},
    "threads": FIELDS["threads"].show,
    "inter-op threads": _read_back("interop_threads", _UNREAD),
    "effective attention": _read_back("attention", _UNREAD),
    "effective compiler": _read_back("compiler", _UNREAD),
    "model revision": _read_back("model_revision", _UNREAD),
    "model path": lambda result: ", ".join(result.spec.model_path) if result.spec.brings_own_code else _UNREAD,
    "effective allocator": _read_back("allocator", _UNREAD),
    "effective float32 matmul precision": _read_back("matmul_precision"),
    "effective TF32": _read_back("allow_tf32"),
    "effective parameters": _read_back("parameter_dtype"),
    "effective autocast": _read_back("autocast_dtype"),
    "effective float8": _read_back("float8"),
    "effective logits": _read_back("logits_dtype"),
}


def _distinct(values: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
