"""The trust in the numbers of cells, in words: their verdicts, and what could not be observed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from cs336_tui.analysis.fields import VARIANTS
from cs336_tui.analysis.grouping import ALWAYS, TELLING, label, shared, telling
from cs336_tui.analysis.judgement import Judgement, limited_note
from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.export.writing.tables import Column, Table, Value, attributes, cell_record
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.intervals import MeanInterval
from cs336_tui.stats.quantities import MILLISECONDS, TOO_NOISY, UNKNOWN, is_too_noisy, named

if TYPE_CHECKING:
    from cs336_tui.events.events import CellFinished

MOST_LINES = 12
"""Cells that get a line each; more of them are counted."""
Names = Mapping[tuple[int, int], str]
"""Names of cells among each other, by source and number."""


class Judged(NamedTuple):
    """A cell that could be judged, and what was found."""

    result: Result
    judgement: Judgement
    name: str = ""
    """The cell's among the others in a line of text, by `cell_names`."""


_known: WeakKeyDictionary[CellState, tuple[CellFinished, float | None, int, Judgement | None]] = WeakKeyDictionary()


def judgement_of(cell: CellState, state: SessionState) -> Judgement | None:
    """The judgement of a cell of the session, made once for each of its ends."""
    # Judging needs numpy, which would slow the start of whatever imports this.
    from cs336_tui.analysis.kernels import profiled_idle
    from cs336_tui.analysis.verdicts import judge

    if cell.finished is None:
        return None
    idle = profiled_idle(state, cell.spec) if state.reports else None
    known = _known.get(cell)
    if known is None or known[0] is not cell.finished or known[1:3] != (idle, len(cell.tuned)):
        _known[cell] = known = cell.finished, idle, len(cell.tuned), judge(cell, idle)
    return known[3]


def get_ready() -> None:
    """Load what judging needs, so that the first judgement is as quick as the others."""
    from cs336_tui.analysis.kernels import profiled_idle  # noqa: F401
    from cs336_tui.analysis.verdicts import judge  # noqa: F401
    from cs336_tui.stats.intervals import mean_interval
    from cs336_tui.stats.steady import enough_warmup

    times_s = [0.1 + 0.001 * (step % 3) for step in range(20)]
    enough_warmup(times_s[:5], times_s)
    mean_interval(times_s)


def trust_notes(results: Sequence[Result], names: Names | None = None) -> tuple[str, ...]:
    """The doubts about cells, what could not be observed on which device, and what else was
    noted while judging; nothing of cells that have no timings."""
    found = _named(results, names)
    return (*_doubts(found), *_not_observable(found), *_noted(found))


def doubt_notes(results: Sequence[Result]) -> tuple[str, ...]:
    """The doubts about the numbers of cells."""
    return tuple(_doubts(_named(results)))


def doubt_word(results: Iterable[Result]) -> str:
    """The first verdict that doubts a number of these cells; empty if none does."""
    found = (judgement_of(result.cell, result.state) for result in results)
    return next((judgement.doubts[0].name for judgement in found if judgement and judgement.doubts), "")


def judged(results: Sequence[Result]) -> tuple[Judged, ...]:
    """Those that can be judged, in order."""
    return tuple(Judged(result, found) for result in results if (found := judgement_of(result.cell, result.state)))


def _named(results: Sequence[Result], names: Names | None = None) -> tuple[Judged, ...]:
    found = judged(results)
    names = names or cell_names([each.result for each in found])
    return tuple(each._replace(name=names[each.result.source, each.result.cell.cell]) for each in found)


def cell_names(results: Sequence[Result], always: Sequence[str] = ALWAYS) -> Names:
    """The name of each cell among the others in a line of text, by source and number: the fields that it `always` has
    and those that tell; where no field does, as of two checkouts of one model, the number."""
    keys = (*always, *telling(results, but=always, among=(*TELLING, "repeat")))
    names = {(result.source, result.cell.cell): label(result, keys) for result in results}
    told = Counter(names.values())
    return {
        place: name if told[name] == 1 else " · ".join(filter(None, (name, f"cell {place[1] + 1}")))
        for place, name in names.items()
    }


def _doubts(found: Sequence[Judged]) -> Iterator[str]:
    doubted = [each for each in found if each.judgement.is_doubted]
    if len(doubted) <= MOST_LINES:
        yield from (f"{each.name}: {each.judgement.sentence}" for each in doubted)
        return
    yield f"{len(doubted)} of {len(found)} cells are in doubt; the evidence of each is in --format json"
    by_verdict = grouped(((each, check) for each in doubted for check in each.judgement.doubts), lambda it: it[1].name)
    for verdict in (check.name for check in doubted[0].judgement.checks if check.name in by_verdict):
        cells = [each for each, _ in by_verdict[verdict]]
        first = "; first cell" if len(cells) > 1 else ""
        yield f"{verdict}: {_cells_named(cells, len(found))}{first}: {by_verdict[verdict][0][1].explained}"


def _not_observable(found: Sequence[Judged]) -> Iterator[str]:
    """A line a device, and one for each reason that is not the device; of several sessions one for each unless they say
    the same."""
    several = len({each.result.session for each in found}) > 1
    devices = grouped(found, lambda each: each.result.spec.device)
    reasons = dict.fromkeys(check.unknown_because for each in found for check in each.judgement.not_observable)
    lines = [
        *((f"not observable on {device}", "", alike) for device, alike in devices.items()),
        *((reason, reason, found) for reason in reasons if reason),
    ]
    for text, reason, members in lines:
        sessions = grouped(members, lambda each: each.result.session)
        said = {session: _unseen(cells, reason) for session, cells in sessions.items()}
        if not several or (len(said) > 1 and len({*said.values()}) == 1):
            if unseen := _unseen(members, reason):
                yield f"{text}: {unseen}"
        else:
            yield from (f"{session}: {text}: {unseen}" for session, unseen in said.items() if unseen)


def _unseen(cells: Sequence[Judged], because: str) -> str:
    """The checks that no cell allowed for this reason, empty for the device, then what some could not."""
    unseen = (check for each in cells for check in each.judgement.not_observable)
    counts = Counter(check.name for check in unseen if check.unknown_because == because)
    names = (check.name for check in cells[0].judgement.checks if counts[check.name])
    by_count = grouped(names, lambda name: counts[name])
    return "; ".join(
        ", ".join(verdicts) + ("" if number == len(cells) else f" in {number} of {len(cells)} cells")
        for number, verdicts in sorted(by_count.items(), reverse=True)
    )


def _noted(found: Sequence[Judged]) -> Iterator[str]:
    """Remarks that raise no doubt: a line for remarks that differ in their numbers alone, with the cells that they
    are on."""
    spiky, told = [each for each in found if each.judgement.limited], set()
    if len(spiky) > 1:
        most = max(each.judgement.limited for each in spiky)
        yield limited_note(most, _cells_named(spiky, len(found)))
        told = {limited_note(each.judgement.limited) for each in spiky}
    remarks = [(each, note) for each in found for note in each.judgement.notes if note not in told]
    for alike in grouped(remarks, lambda remark: without_numbers(remark[1])).values():
        figures = " (figures of the first)" if len({note for _, note in alike}) > 1 else ""
        cells, note = _cells_named([each for each, _ in alike], len(found)), alike[0][1]
        yield f"{note}{figures}, in {cells}" if len(alike) > 1 else f"{cells}: {note}"


def without_numbers(remark: str) -> str:
    """The same text for remarks that differ in their numbers alone, ``1 sample`` and ``2 samples`` among them."""
    return re.sub(r"\b0 (\w+?)s\b", r"0 \1", re.sub(r"\d+(?:\.\d+)?", "0", remark))


def _cells_named(cells: Sequence[Judged], total: int) -> str:
    """``3 of 20 cells (small · forward; ...)``; the name alone of a single one."""
    if len(cells) == 1:
        return cells[0].name
    return f"{len(cells)} of {total} cells ({named([each.name for each in cells], last='; and ')})"


def verdict_table(results: Sequence[Result], *, names: Names | None = None) -> Table:
    """A row per cell that has timings; below it stands what is wrong with those in doubt. `names` are the cells', if
    not by `cell_names`."""
    found = _named(results, names)

    def mean(each: Judged) -> str:
        return MILLISECONDS.of(each.result.cell.summary(each.result.state.ddof), "mean_s")

    def of_interval(title: str, show: Callable[[MeanInterval], str]) -> Column[Judged]:
        return Column(title, text=lambda each: show(it) if (it := each.judgement.interval) else UNKNOWN)

    columns: tuple[Column[Judged], ...] = (
        Column("cell", left=True, text=lambda each: each.name),
        Column("verdict", left=True),
        Column("n"),
        Column("mean_s", "mean (ms)", text=mean),
        of_interval("95 % CI of the mean (ms)", lambda found: limits_of(found.low, found.high, found.mean)),
        of_interval("± %", lambda found: found.half_width),
        of_interval("effective n", lambda found: f"{found.effective_n:.3g}"),
        Column("warmup_advice", "warm-up", left=True),
    )
    caption, notes = "How far these numbers can be trusted", (*trust_notes(results, names), *_reading(found))
    return Table.of(found, columns, record=_record, caption=caption, footnotes=notes, label="verdicts")


def limits_of(low_s: float, high_s: float, mean_s: float) -> str:
    """``152.80 to 153.60``: to the decimal places that the half width supports; ``too noisy`` where it says nothing."""
    if is_too_noisy(low_s, high_s):
        return TOO_NOISY
    half = (high_s - low_s) / 2
    return " to ".join(MILLISECONDS.time(at, mean_s=mean_s, std_s=half) for at in (low_s, high_s))


def _record(each: Judged) -> dict[str, Value]:
    result, judgement, interval = each.result, each.judgement, each.judgement.interval
    return {
        "session": result.session,
        "cell": result.cell.cell,
        **cell_record(result.spec, "size", "context", "pass", "precision", "variants", "device"),
        "verdict": judgement.label,
        "why": judgement.sentence,
        "notes": "; ".join(judgement.notes) or None,
        "not_observable": ", ".join(check.name for check in judgement.not_observable),
        "warmup_advice": judgement.warmup_advice,
        "n": result.cell.running.n,
        "mean_s": result.cell.running.mean if result.cell.running.n else None,
        **attributes(interval, interval_low_s="low", interval_high_s="high", effective_n="effective_n"),
        **attributes(interval, interval_method="method"),
    }


def _reading(found: Sequence[Judged]) -> Iterator[str]:
    """The unusual settings that all cells share (their names say those that differ), and the meaning of intervals."""
    if same := shared([each.result for each in found], among=VARIANTS):
        yield f"every cell: {same}"
    methods = dict.fromkeys(each.judgement.interval.method for each in found if each.judgement.interval)
    yield from (f"95 % CI: {method}" for method in methods)
    if methods:
        yield "effective n: the number of independent steps that would give as precise a mean"
