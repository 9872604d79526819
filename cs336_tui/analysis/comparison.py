"""Two sessions, or two cells, against each other: which cells pair, how their times compare, and what else differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cs336_tui.analysis.fields import FIELDS, device_label, machine
from cs336_tui.analysis.measures import allocated_bytes, largest
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled, runs_of, without_turns
from cs336_tui.analysis.provenance import company, mixed_provenance
from cs336_tui.config.spec import AXES, CellSpec
from cs336_tui.stats.ratio import LEVEL, MARGIN, Outcome, Ratio, explain, outcome, ratio_of
from cs336_tui.stats.summaries import Summary


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
    settings = {name: value for name, value in _SETTINGS.items() if _each_has_its_own(name, a, b)}
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


def _each_has_its_own(name: str, a: Sequence[CellSpec], b: Sequence[CellSpec]) -> bool:
    """True if each side has one value of it, and these differ."""
    here, there = ({getattr(spec, name) for spec in side} for side in (a, b))
    return len(here) == len(there) == 1 and here != there


def _by_what_is_left(specs: Sequence[CellSpec], without: Mapping[str, Any]) -> dict[CellSpec, CellSpec]:
    """The specs by what they are without these fields, those left out that are not the only one of it."""
    left = [msgspec.structs.replace(spec, **without) for spec in specs]
    counted = Counter(left)
    return {key: spec for key, spec in zip(left, specs, strict=True) if counted[key] == 1}


def _pair(a: Sequence[Result], b: Sequence[Result], margin: float, level: float) -> Pair:
    ratio = ratio_of(runs_of(a), runs_of(b), level)
    left, right = side_of(a), side_of(b)
    missing = [f"{name} has no timing: {side.note}" for name, side in (("A", left), ("B", right)) if side.note]
    return Pair(
        a=left,
        b=right,
        ratio=ratio,
        outcome=outcome(ratio, margin),
        explanation="; ".join(missing) + "." if missing else explain(ratio, margin),
        differs=tuple(_differences(a, b)),
    )


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


def _in_force(attribute: str, absent: str = "none") -> Callable[[Result], str]:
    """A setting that was read back; `absent` is the meaning of None."""
    return lambda result: str(getattr(result.cell.in_force, attribute) or absent) if result.cell.in_force else _UNREAD


_UNREAD = "not read back"
_PLACE = ("side by side", "host", "device's name", "torch")
"""Differences that are said within a side, too: a pair takes all runs of a cell together."""
_COMPARED: Mapping[str, Callable[[Result], str]] = {
    **{field.title: field.show for field in FIELDS.values() if field.kind in ("choice", "model")},
    "side by side": company,
    "in turns with another cell": lambda result: "yes" if result.cell.in_turns else "no",
    "host": _of_environment("host"),
    "device's name": device_label,
    **{name: _of_environment(name) for name in ("torch", "cuda", "cudnn", "driver", "python")},
    "threads": FIELDS["threads"].show,
    "inter-op threads": _in_force("interop_threads", _UNREAD),
    "effective attention": _in_force("attention", _UNREAD),
    "effective compiler": _in_force("compiler", _UNREAD),
    "model revision": _in_force("model_revision", _UNREAD),
    "model path": lambda result: ", ".join(result.spec.model_path) if result.spec.brings_own_code else _UNREAD,
    "effective allocator": _in_force("allocator", _UNREAD),
    "effective float32 matmul precision": _in_force("matmul_precision"),
    "effective TF32": _in_force("allow_tf32"),
    "effective parameters": _in_force("parameter_dtype"),
    "effective autocast": _in_force("autocast_dtype"),
    "effective float8": _in_force("float8"),
    "effective logits": _in_force("logits_dtype"),
}


def _distinct(values: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
