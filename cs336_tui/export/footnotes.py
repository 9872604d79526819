"""Footnotes of a table: the source of its numbers, and the meaning of its signs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.provenance import mixed_provenance
from cs336_tui.export import provenance
from cs336_tui.export.cells import ending_of, has_result, progress, title_of
from cs336_tui.export.verdicts import trust_notes
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import MILLISECONDS, Notation


class Signs:
    """Gives every different remark a sign: †, ‡, §, ¶, †2 and so on."""

    def __init__(self) -> None:
        self._signs: dict[str, str] = {}

    def of(self, remark: str) -> str:
        again, which = divmod(len(self._signs), 4)
        return self._signs.setdefault(remark, "†‡§¶"[which] + (str(again + 1) if again else ""))

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each sign that was given."""
        return tuple(f"{sign} {remark}" for remark, sign in self._signs.items())


class Marks(NamedTuple):
    """Signs of single cells, by source and number, and what each sign says."""

    signs: Mapping[tuple[int, int], str]
    notes: tuple[str, ...]

    def of(self, result: Result) -> str:
        """The cell's sign, empty for most."""
        return self.signs.get((result.source, result.cell.cell), "")


def machine_marks(results: Sequence[Result]) -> Marks:
    """Marks the cells that ran on another machine, device or torch than the first cell of their session."""
    signs, marks = Signs(), {}
    bases: dict[int, CellState] = {}
    known: dict[tuple[int, str, int], tuple[str, ...]] = {}
    for result in results:
        cell = result.cell
        base = bases.setdefault(result.source, cell).environment if cell.environment else None
        if base is None or cell.environment is None:
            continue
        key = result.source, cell.spec.device, id(cell.environment)
        if key not in known:
            known[key] = provenance.departures(base, cell.environment, cell.spec.device)
        if known[key]:
            marks[result.source, cell.cell] = signs.of(f"ran after a change of the machine: {', '.join(known[key])}")
    return Marks(marks, signs.notes)


def results_notes(results: Sequence[Result], notation: Notation = MILLISECONDS) -> tuple[str, ...]:
    """In what the results were not made alike; how far the sessions came, what the numbers mean and where they come
    from, which cells failed and why."""

    def notes(state: SessionState, cells: Sequence[CellState]) -> Iterable[str]:
        shown = [cell for cell in cells if has_result(cell)]
        yield progress(state)
        yield from provenance.reading_notes(state, shown, notation.symbol)
        yield from provenance.run_notes(state, shown)
        yield from provenance.version_notes(provenance.first_environment(state, shown))
        yield from _endings(cells)

    return (*mixed_notes(results), *_for_each_session(results, notes))


def provenance_notes(results: Sequence[Result], *, std: bool = True) -> tuple[str, ...]:
    """Notes that any table of step times must have: differences in how the results were made, std's kind, devices,
    effective settings, versions, and the numbers in doubt."""

    def notes(state: SessionState, cells: Sequence[CellState]) -> Iterable[str]:
        shown = [cell for cell in cells if has_result(cell)]
        if std:
            yield f"std: {provenance.std_kind(state.ddof)}"
        yield from provenance.device_notes(state, shown)
        yield from provenance.in_force_notes(state, shown)
        yield from provenance.version_notes(provenance.first_environment(state, shown))

    return (*mixed_notes(results), *trust_notes(results), *_for_each_session(results, notes))


def mixed_notes(results: Sequence[Result]) -> tuple[str, ...]:
    """In what those results were not made alike that a table shows; empty where they were."""
    return mixed_provenance([result for result in results if has_result(result.cell)])


def _endings(cells: Iterable[CellState]) -> Iterable[str]:
    """A line for each cell that failed, and one for each reason for which cells were skipped."""
    skipped: dict[str, int] = {}
    for cell in cells:
        if cell.status in ("oom", "failed", "killed"):
            yield f"{title_of(cell)}: {ending_of(cell)}"
        elif cell.status == "skipped":
            reason = cell.skipped_because or "no reason noted"
            skipped[reason] = skipped.get(reason, 0) + 1
    for reason, number in skipped.items():
        yield f"{number} skipped: {reason}"


def _for_each_session(
    results: Sequence[Result], notes: Callable[[SessionState, Sequence[CellState]], Iterable[str]]
) -> tuple[str, ...]:
    """The notes of every session; what all of them say is said once, the rest with the session's title."""
    groups: dict[int, list[Result]] = {}
    for result in results:
        groups.setdefault(result.source, []).append(result)
    said = [
        (group[0].session, list(notes(group[0].state, [result.cell for result in group]))) for group in groups.values()
    ]
    if len(said) == 1:
        return tuple(said[0][1])
    common = set.intersection(*(set(lines) for _, lines in said)) if said else set()
    shared = [line for line in said[0][1] if line in common] if said else []
    return (*shared, *(f"{title}: {line}" for title, lines in said for line in lines if line not in common))
