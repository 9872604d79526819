"""Footnotes of a table: the source and meaning of its numbers, the meaning of its signs, and how each cell ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.analysis.comparison import mixed_provenance
from cs336_tui.analysis.fields import warmup_done
from cs336_tui.analysis.measures import MEASURES, allocated_bytes, resident_bytes
from cs336_tui.analysis.merge import RECORDED, Result, grouped
from cs336_tui.config.counts import duration_words
from cs336_tui.config.spec import AXES
from cs336_tui.events.environment import Environment
from cs336_tui.export.writing import provenance
from cs336_tui.export.writing.verdicts import trust_notes
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import MILLISECONDS, Notation, counted, duration, gigabytes

ACTIVATIONS_MEAN = MEASURES["activations"].note
RANKS_NOTES = (
    "several ranks: a step's time and phases are its slowest rank's, from a barrier to that rank's device "
    "synchronisation",
    "skew: a step's time on its slowest rank minus that on its fastest, mean over the measured steps",
    "memory of several ranks: of the rank with the most, not a sum",
)
RATES_OF_RANKS = "tokens/s of several ranks: all together; FLOP/s: one rank"
FAILED = ("oom", "failed", "killed")
_TIMED = {
    "each-step": "host clock between two device synchronisations, one after every step",
    "pipelined": "device clock from each step's first boundary to its last, with one synchronisation after all of them",
    "do_bench": "device clock round each whole step, gradients dropped and, on CUDA, the L2 flushed before it, "
    "with one synchronisation after all of them, as triton.testing.do_bench; nothing is flushed in the warm-up",
}
_Notes = Callable[[SessionState, Sequence[CellState]], Iterable[str]]


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
    bases: dict[int, Environment] = {}
    known: dict[tuple[int, str, int], tuple[str, ...]] = {}
    for source, cell in ((result.source, result.cell) for result in results):
        if cell.spec.recording or cell.environment is None:
            continue
        base, key = bases.setdefault(source, cell.environment), (source, cell.spec.device, id(cell.environment))
        if key not in known:
            known[key] = provenance.departures(base, cell.environment, cell.spec.device, jobs=bool(cell.job))
        if known[key]:
            event = "ran on a different machine" if cell.job else "ran after the machine changed"
            marks[source, cell.cell] = signs.of(f"{event}: {', '.join(known[key])}")
    return Marks(marks, signs.notes)


def results_notes(results: Sequence[Result], notation: Notation = MILLISECONDS) -> tuple[str, ...]:
    """In what the results were not made alike; how far the sessions came, what the numbers mean and where they come
    from, which cells failed and why."""

    def notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
        shown = list(filter(has_result, cells))
        yield progress(state)
        yield from reading_notes(state, shown, notation.symbol)
        yield from provenance.run_notes(state, shown)
        yield from provenance.version_notes(_first_environment(state, shown))
        for cell in shown:
            if cell.spec.within is not None and (words := limit_words(cell)):
                yield f"{title_of(cell)}: {words}"
        yield from _endings(cells)

    return (*_mixed(results), *_for_each_session(results, notes))


def provenance_notes(results: Sequence[Result], *, std: bool = True) -> tuple[str, ...]:
    """Notes that any table of step times must have: differences in how the results were made, std's kind, devices,
    effective settings, versions, and the numbers in doubt."""

    def notes(state: SessionState, cells: Sequence[CellState]) -> Iterator[str]:
        shown = list(filter(has_result, cells))
        if std:
            yield f"std: {std_kind(state.ddof)}"
        yield from provenance.device_notes(state, shown)
        yield from provenance.in_force_notes(state, shown)
        yield from provenance.version_notes(_first_environment(state, shown))

    return (*_mixed(results), *trust_notes(results), *_for_each_session(results, notes))


def reading_notes(state: SessionState, cells: Sequence[CellState], unit: str = "ms") -> Iterator[str]:
    """The meaning of the table's numbers."""
    if recorded := sum(bool(cell.spec.recording) for cell in cells):
        held = " and ".join(dict.fromkeys(report.kind for report in state.reports_on_cells)) or "without a report"
        yield f"{counted(recorded, 'cell')} recorded elsewhere: {held}; no step was timed here"
    cells = [cell for cell in cells if not cell.spec.recording]
    if recorded and not cells:
        return
    yield f"times: {unit} per step over the n measured steps, without the warm-up steps"
    yield f"std: {std_kind(state.ddof)}"
    for how in dict.fromkeys(cell.spec.sync if cell.spec.timer == "step" else cell.spec.timer for cell in cells):
        yield f"a step's time, {how}: {_TIMED[how]}"
    if any(cell.spec.ranks > 1 for cell in cells):
        with_tokens = [cell for cell in cells if not cell.spec.is_collective]
        owners = dict.fromkeys(cell.spec.batch_is for cell in with_tokens if cell.spec.ranks > 1)
        if with_tokens:
            whose = " or ".join(f"{owner}, {AXES['batch_is'].detail(owner)}" for owner in owners)
            yield f"batch of several ranks: {whose}"
        yield from RANKS_NOTES
        if with_tokens:
            yield RATES_OF_RANKS
    if any(cell.spec.timer == "do_bench" for cell in cells):
        yield "p20, p80: 20 and 80 % quantiles of the n measured steps, linear between neighbours"
    if shows_allocated(cells):
        yield "peak allocated: tensors on the device, after warm-up; 1 GB is 10⁹ bytes"
    if shows_rss(cells):
        yield "peak RSS: resident memory of the cell's whole process, Python and torch included; 1 GB is 10⁹ bytes"
    if any(cell.finished and cell.finished.num_alloc_retries for cell in cells):
        yield "allocator retries: the device's memory was full while timing, so the timing is suspect"


def std_kind(ddof: int) -> str:
    kinds = ("population standard deviation, n (ddof 0)", "sample standard deviation, n − 1")
    return kinds[ddof] if ddof in (0, 1) else f"square root of the squared deviations over n − {ddof}"


def has_result(cell: CellState) -> bool:
    """True if the cell has something to show: it ended by itself, or has a timed step."""
    return (cell.is_over and cell.status != "cancelled") or bool(cell.steps_done)


def shows_allocated(cells: Iterable[CellState]) -> bool:
    return any(allocated_bytes(cell) is not None for cell in cells)


def shows_rss(cells: Iterable[CellState]) -> bool:
    """True if some cell ran where no allocator counts the device's memory, as on the CPU."""
    return any(resident_bytes(cell) is not None for cell in cells)


def title_of(cell: CellState) -> str:
    """The cell's name among its neighbours, for a line of text."""
    warmup = "" if cell.spec.recording else f" · warm-up {warmup_done(cell)}"
    return f"{cell.spec.heading}{warmup}"


def progress(state: SessionState) -> str:
    """The number of the session's cells that ended by themselves, by their ending."""
    endings = Counter(cell.status for cell in state.finished_cells)
    cancelled = endings.pop("cancelled", 0)
    line = f"{endings.total()} of {counted(len(state.cells), 'cell')} finished"
    if endings:
        line += f" ({', '.join(f'{number} {status}' for status, number in endings.items())})"
    return f"{line}, {cancelled} cancelled" if cancelled else line


def status_of(cell: CellState) -> str:
    spec, finished = cell.spec, cell.finished
    if spec.recording:
        return RECORDED
    if not has_result(cell):
        return "not run"
    if finished is None:
        if spec.warmup_for is not None or spec.steps_for is not None:
            return f"unfinished, {counted(cell.steps_done, 'step')}"
        most = _most(spec.total_steps, automatic=spec.warmup_is_open or spec.steps_are_open)
        return f"unfinished, {cell.steps_done}{most} steps"
    retries = finished.num_alloc_retries
    return f"{cell.status}, {counted(retries, 'allocator retry')}" if retries else cell.status


def ending_of(cell: CellState) -> str:
    """The progress of a cell without a full result, and why it went no further; one line. Of one that ran out of
    memory, the size that could not be allocated and the largest peak before that, if known."""
    spec, finished = cell.spec, cell.finished
    stage = f" in stage {cell.stage}" if cell.stage else ""
    warmups = _most(spec.warmup_steps, automatic=spec.warmup_is_open, for_s=spec.warmup_for)
    most = _most(spec.measure_steps, automatic=spec.steps_are_open, for_s=spec.steps_for)
    told = f", after {len(cell.warmup_times_s)}{warmups} warm-up and {len(cell.step_times_s)}{most} measured steps: "
    if finished is None:
        return f"{cell.status}{stage}{told}no reason reported"
    phase = f", phase {finished.phase}" if finished.phase else ""
    line = f"{cell.status}{stage}{phase}{told}{finished.error or 'no reason reported'}"
    if cell.status == "oom" and (failed := finished.failed_allocation_bytes):
        line += f"; {gigabytes(failed)} GB could not be allocated"
    if cell.status == "oom" and (peak := finished.peak_allocated_bytes) is not None:
        line += f"; peak allocated until then {gigabytes(peak)} GB"
    return line


def _most(steps: int, *, automatic: bool, for_s: float | None = None) -> str:
    """A number of steps that was asked for, as a ceiling where the number itself is automatic, or the time for them."""
    if for_s is not None:
        return f" (for {duration_words(for_s)})"
    return f" of at most {steps}" if automatic else f" of {steps}"


def _endings(cells: Iterable[CellState]) -> Iterator[str]:
    skipped: Counter[str] = Counter()
    for cell in cells:
        if cell.status in FAILED:
            yield f"{title_of(cell)}: {ending_of(cell)}"
        elif cell.status == "skipped":
            skipped[cell.skipped_because or "no reason noted"] += 1
    yield from (f"{number} skipped: {reason}" for reason, number in skipped.items())


def limit_words(cell: CellState) -> str:
    """``from empty compile caches 0:41 until the first step, 0:32 of it compiling; 1:33 in all, within 10:00``; empty
    before its end, and without a limit."""
    whole_s, first_s, within_s = cell.whole_run_s, cell.until_first_step_s, cell.spec.within
    if whole_s is None or within_s is None:
        return ""
    compile_s = cell.prepared.compile_s if cell.prepared else None
    compiling = f", {duration(compile_s)} of it compiling" if compile_s is not None else ""
    first = f"{duration(first_s)} until the first step{compiling}; " if first_s is not None else ""
    over_s = whole_s - within_s
    ended = f"over {duration(within_s)} by {duration(over_s)}" if over_s > 0 else f"within {duration(within_s)}"
    unfinished = "" if cell.status == "ok" else f", but {cell.status}"
    folder = cell.in_force.cache_folder if cell.in_force else None
    caches = f"compile caches in {folder} that may not have been empty" if folder else "empty compile caches"
    return f"from {caches} {first}{duration(whole_s)} in all, {ended}{unfinished}"


def _mixed(results: Sequence[Result]) -> tuple[str, ...]:
    """In what those results were not made alike that a table shows; empty where they were."""
    return mixed_provenance([result for result in results if has_result(result.cell)])


def _first_environment(state: SessionState, cells: Iterable[CellState]) -> Environment | None:
    """The machine of the first of these cells that ran: what others are told apart from."""
    return next((cell.environment for cell in cells if cell.environment), state.environment)


def _for_each_session(results: Sequence[Result], notes: _Notes) -> tuple[str, ...]:
    """The notes of every session; what all of them say is said once, the rest with the session's title."""
    sessions = grouped(results, lambda result: result.source)
    said = [
        (ours[0].session, list(notes(ours[0].state, [result.cell for result in ours]))) for ours in sessions.values()
    ]
    common = set.intersection(*(set(lines) for _, lines in said)) if said else set()
    shared = (line for _, lines in said[:1] for line in lines if line in common)
    return (*shared, *(f"{title}: {line}" for title, lines in said for line in lines if line not in common))
