"""Several ranks: ways to share a training step beside each other, their communication and the memory that sharding
saves; collectives alone."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.ab import Exposed
from cs336_tui.analysis.effects import (
    FEWEST_REPEATS,
    NO_COMMUNICATION,
    How,
    Waited,
    exposed_communication,
    gradient_sync,
    work_of_ranks,
)
from cs336_tui.analysis.fields import FIELDS, varies
from cs336_tui.analysis.grouping import telling
from cs336_tui.analysis.measures import MEASURES, Runs, allocated_bytes, largest, resident_bytes
from cs336_tui.analysis.merge import Result, grouped, measured
from cs336_tui.config.choices import command_of, sweep_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import sharing_of
from cs336_tui.config.variants import is_imported, short
from cs336_tui.events.reports import RankMemoryReport
from cs336_tui.export.subjects.layout import (
    layout_column,
    measure_column,
    not_timed,
    part_column,
    setting,
    share_column,
    size_column,
    tables_of,
    time_column,
)
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.writing.tables import Column, Table, known
from cs336_tui.stats.quantities import NONE, Notation, counted
from cs336_tui.stats.summaries import Summary

ROWS_BY = ("size", "ranks", "parallel", "optimizer")
POOLED = ("warmup", "steps", "seed", "session")
"""Fields in which cells in turns differ from the others; a row has them all."""
BASELINE = "ddp"
"""The way to share a step to which sharding is compared."""
_WHOLE = "adamw"
"""The optimizer to which one's own is compared."""
SLOWEST = "step: the slowest rank of each step; skew: slowest minus fastest rank, mean"


class _Cells(NamedTuple):
    """The cells of several ranks of a layout, those in turns only where no other is like them."""

    kept: list[Result]
    exposed: Mapping[CellSpec, Waited]

    def of(self, row: Runs) -> Exposed | None:
        found = self.exposed.get(work_of_ranks(row.first.spec))
        return found.exposed if found else None


def data_parallel_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: a row for each wrapper and size of its buckets. Raises `TableError`
    where nothing is to be shown."""
    cells, notation = _cells("data-parallel", results), Notation("ms", decimals)
    columns = (
        *names(cells.kept),
        *step_columns(notation),
        *(_sync_columns(notation) if any(result.cell.times.rank_sync_s for result in measured(cells.kept)) else ()),
        *_exposed(cells, notation),
    )
    notes = (SLOWEST, *_sync_notes(cells.kept), *_other_notes(cells), *not_timed(cells.kept))
    return _tables(cells, columns, "Ways to share a step", notes)


def sharding_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `data_parallel_tables`: step time and memory of each way to share a step, and what it saves against ddp."""
    cells, notation = _cells("sharding", results), Notation("ms", decimals)
    by_work: dict[CellSpec, list[Result]] = grouped(cells.kept, lambda result: work_of_ranks(result.spec))

    timed = [result for result in measured(cells.kept) if not result.cell.in_turns]
    known_of = (kind for kind, peak in _PEAKS.items() if timed and all(peak.of(each) is not None for each in timed))
    kind = next(known_of, "RSS")

    def peak(runs: Sequence[Result]) -> int | None:
        """Unknown of cells in turns, whose processes hold two models."""
        return largest(_PEAKS[kind].of(run) for run in measured(runs) if not run.cell.in_turns)

    def unsharded(row: Runs) -> int | None:
        """The peak without sharding of a row that is not without it itself."""
        beside = (by_work[key] for key in _unsharded(row.first.spec) if key in by_work)
        return next((size for size in map(peak, beside) if size is not None), None)

    def saved(row: Runs) -> int | None:
        mine, whole = peak(row.runs), unsharded(row)
        return None if mine is None or whole is None else whole - mine

    def share(row: Runs) -> float | None:
        whole, less = unsharded(row), saved(row)
        return less / whole if whole and less is not None else None

    columns = (
        *names(cells.kept),
        *step_columns(notation),
        time_column("optimizer (ms)", lambda row: row.phase("optimizer"), "mean_s", notation),
        size_column(f"peak {kind} (GB)", lambda row: peak(row.runs)),
        size_column("saved (GB)", saved),
        share_column("saved (%)", share),
        *_exposed(cells, notation),
    )
    notes = (
        SLOWEST,
        f"peak: of the rank with the most, {_PEAKS[kind].about}; what it is made of is in the report on memory",
        f"saved: against {BASELINE} here, or of an optimizer of your own against the same wrapper with {_WHOLE}",
        "optimizer: the phase of the slowest rank, with what its shards communicate",
        *_other_notes(cells),
        *not_timed(cells.kept),
    )
    return _tables(cells, columns, "Memory and time with and without sharding", notes)


def _unsharded(spec: CellSpec) -> Iterator[CellSpec]:
    """The cells, by `work_of_ranks`, one of which this one is compared to, the nearest first."""
    work = work_of_ranks(spec)
    if is_imported(spec.optimizer):
        work = msgspec.structs.replace(work, optimizer=_WHOLE)
        yield work
    if spec.parallel not in (BASELINE, NO_COMMUNICATION):
        yield msgspec.structs.replace(work, parallel=BASELINE)


def _cells(layout: str, results: Sequence[Result]) -> _Cells:
    several = [each for each in results if each.spec.ranks > 1 and not each.spec.is_collective]
    if not several:
        raise TableError(f"layout {layout}: no cell of several ranks; run some with --ranks 2 --parallel ddp")
    alone = [each for each in several if not each.cell.in_turns]
    known = {work_of_ranks(each.spec) for each in measured(alone)}
    turns = [each for each in several if each.cell.in_turns and work_of_ranks(each.spec) not in known]
    return _Cells([*alone, *turns], exposed_communication(several))


def _tables(cells: _Cells, columns: Sequence[Column[Runs]], caption: str, notes: Sequence[str]) -> tuple[Table, ...]:
    """In the order in which the cells were asked for."""
    kept, apart = cells.kept, telling(cells.kept, but=(*ROWS_BY, *POOLED))
    place = {result.spec: float(number) for number, result in reversed(list(enumerate(kept)))}

    def order(row: Runs) -> float:
        return place[row.first.spec]

    return tables_of(kept, columns, caption, notes, rows_by=ROWS_BY, apart=apart, places=POOLED, sort=order)


def wrapper_name(spec: CellSpec) -> str:
    """``ddp``, or the name of a user's function."""
    return _shortly(sharing_of(spec.parallel).name)


def _shortly(name: str) -> str:
    return short(name) if is_imported(name) else name


def names(kept: Sequence[Result]) -> Iterator[Column[Runs]]:
    """Columns that say which cells a row is of."""
    yield setting("size", "size")
    yield setting("ranks", "ranks")
    own = {sharing_of(result.spec.parallel).name for result in kept}
    called = Counter(map(_shortly, own))

    def wrapper(row: Runs) -> str:
        name = sharing_of(row.first.spec.parallel).name
        return _shortly(name) if called[_shortly(name)] == 1 else name

    yield layout_column("wrapper", wrapper, left=True)
    if any(sharing_of(result.spec.parallel).bucket_bytes for result in kept):
        yield layout_column("buckets (MB)", _bucket_mb, lambda row: known("{:g}", NONE)(_bucket_mb(row)))
    if varies(kept, "optimizer"):
        yield layout_column("optimizer", lambda row: short(FIELDS["optimizer"].show(row.first)), left=True)


def _bucket_mb(row: Runs) -> float | None:
    size = sharing_of(row.first.spec.parallel).bucket_bytes
    return None if size is None else size / 1e6


def step_columns(notation: Notation) -> Iterator[Column[Runs]]:
    """Step time of the slowest rank, and skew."""
    for title, key in (("step (ms)", "mean"), ("std (ms)", "std"), ("skew (ms)", "skew")):
        yield measure_column(title, MEASURES[key], notation)


def _sync_columns(notation: Notation) -> Iterator[Column[Runs]]:
    def sync(row: Runs) -> tuple[Summary | None, Summary | None]:
        return gradient_sync(row.runs, row.ddof) or (None, None)

    def share(row: Runs) -> float | None:
        last, _ = sync(row)
        return last.mean_s / row.mean_s if last and last.mean_s is not None and row.mean_s else None

    yield time_column("gradient sync (ms)", lambda row: sync(row)[0], "mean_s", notation)
    yield share_column("of step (%)", share)
    yield time_column("longest wait (ms)", lambda row: sync(row)[1], "mean_s", notation)


def _exposed(cells: _Cells, notation: Notation) -> Iterator[Column[Runs]]:
    if not cells.exposed:
        return

    def texts(row: Runs, *times_s: float | None) -> str:
        found = cells.of(row)
        if found is None or None in times_s:
            return NONE
        spread_s = None if found.low_s is None or found.high_s is None else (found.high_s - found.low_s) / 4
        return " to ".join(notation.time(time_s, mean_s=found.step_s, std_s=spread_s) for time_s in times_s)

    def mean_s(row: Runs) -> float | None:
        return found.mean_s if (found := cells.of(row)) else None

    def bounds_s(row: Runs) -> tuple[float | None, ...]:
        return (found.low_s, found.high_s) if (found := cells.of(row)) else ()

    def mean_ms(row: Runs) -> float | None:
        return found.mean_s * 1e3 if (found := cells.of(row)) else None

    def bounds_ms(row: Runs) -> tuple[float, ...]:
        return tuple(time_s * 1e3 for time_s in bounds_s(row) if time_s is not None)

    yield layout_column("exposed communication (ms)", mean_ms, lambda row: texts(row, mean_s(row)))
    yield layout_column("exposed interval (ms)", bounds_ms, lambda row: texts(row, *bounds_s(row)))
    yield share_column("exposed of step (%)", lambda row: found.share if (found := cells.of(row)) else None)


def _sync_notes(kept: Sequence[Result]) -> Iterator[str]:
    if any(result.cell.times.rank_sync_s for result in measured(kept)):
        yield (
            "gradient sync: the phase after backward, on the rank that reaches it last in each step (it waits for no "
            "other); longest wait: how much longer it is on the rank that reaches it first"
        )
        yield (
            "gradient sync holds all communication of a wrapper that communicates after backward, and only what "
            "backward did not hide of one that overlaps; torch's wrappers have no such phase"
        )
        if any(result.spec.accumulate > 1 for result in kept):
            yield "gradient sync of micro-batches: after the last one; what is sent for earlier ones is not in it"


_MEASURED: Mapping[How, str] = {
    "in turns": "measured in turns in one process (cs336-tui ab)",
    "repeats": "from repeats round after round (bench --repeats), which differ as the machine drifts",
}


def _other_notes(cells: _Cells) -> Iterator[str]:
    if any(sharing_of(result.spec.parallel).bucket_bytes for result in cells.kept):
        yield "buckets: MB of 10^6 bytes"
    for how, told in _MEASURED.items():
        if several := [each for each in cells.exposed.values() if each.how == how]:
            rounds = " to ".join(map(str, sorted({each.rounds for each in several})))
            word = "round" if rounds == "1" else "rounds"
            yield (
                "exposed: communication that a step waits for: its time minus that of the same ranks with --parallel "
                f"{NO_COMMUNICATION}, {told}, {rounds} {word}; with its {several[0].level * 100:g} % interval"
            )
    timed = (each.spec for each in cells.kept if each.is_measured and not is_imported(each.spec.optimizer))
    communicating = (spec for spec in timed if spec.parallel != NO_COMMUNICATION)
    lacking = [spec for spec in communicating if work_of_ranks(spec) not in cells.exposed]
    if lacking:
        names = ", ".join(dict.fromkeys(spec.parallel for spec in lacking))
        yield (
            f"exposed communication is not measured for {names}: {in_turns_command(lacking[0])}; or, if two models do "
            f"not fit, repeat these with {NO_COMMUNICATION} among them: bench --repeats {FEWEST_REPEATS} or more"
        )


def in_turns_command(spec: CellSpec) -> str:
    """The command that times a cell in turns with the same ranks without communication."""
    words = shlex.split(command_of(sweep_of([spec])))[2:]
    at = words.index("--parallel")
    both = [*words[:at], *words[at + 2 :]]
    sides = ["--a", f"--parallel {shlex.quote(spec.parallel)}", "--b", f"--parallel {NO_COMMUNICATION}"]
    return shlex.join(["cs336-tui", "ab", *sides, *both])


class _Peak(NamedTuple):
    """A kind of peak of the rank with the most: where it is from, and that of a cell, None where nothing gives it."""

    about: str
    of: Callable[[Result], int | None]


def _of_report(result: Result) -> int | None:
    report = result.state.content_of(RankMemoryReport, result.spec)
    return largest(moment.peak_bytes for moment in report.moments) if report else None


_PEAKS: Mapping[str, _Peak] = {
    "allocated": _Peak(
        "as its allocator counted it over the measured steps", lambda result: allocated_bytes(result.cell)
    ),
    "of tensors": _Peak("as the report on memory counted it, in steps of its own", _of_report),
    "RSS": _Peak(
        "as resident memory of its process, with torch and what was freed (--reports memory counts tensors)",
        lambda result: resident_bytes(result.cell),
    ),
}
"""The kinds of peak, the first that all cells have is shown."""


_UNUSED = ("edition", "arch", "vocab", "workload")
"""Fields that a collective does not have, or that tell none apart from others."""


def collective_tables(results: Sequence[Result], decimals: int | None) -> tuple[Table, ...]:
    """As `subjects.layout.WriteUp.make`: a table for each operation, backend, device and precision. Raises
    `TableError` where nothing is to be shown."""
    kept = [result for result in results if result.spec.is_collective]
    if not kept:
        raise TableError("layout collectives: no cell of a collective; run some with cs336-tui comm")
    ranks = sorted({result.spec.ranks for result in kept})
    notation = Notation("ms", decimals)

    def of_ranks(number: int, header: str, key: str) -> Column[Runs]:
        return part_column(header, key, notation, lambda result: result.spec.ranks == number)

    columns = (
        setting("size", "size"),
        *(of_ranks(number, f"{counted(number, 'rank')} (ms)", "mean") for number in ranks),
        *(of_ranks(number, f"{counted(number, 'rank')} busbw (GB/s)", "busbw") for number in ranks),
    )
    notes = ["times: mean ms a step of the slowest rank", MEASURES["busbw"].note]
    if others := len(results) - len(kept):
        notes.append(f"left out (not collectives): {counted(others, 'cell')}")
    apart = telling(kept, but=("size", "ranks", *_UNUSED))
    return tables_of(kept, columns, "Collectives", notes, rows_by=("size",), apart=apart, places=("ranks", *_UNUSED))
