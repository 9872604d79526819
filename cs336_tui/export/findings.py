"""Findings: what a session shows, as measured sentences, on the first page of its summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from cs336_tui.analysis.comparison import mixed_provenance
from cs336_tui.analysis.fields import FIELDS, device_label, values, varies
from cs336_tui.analysis.findings import Along, Extremes, Peak, Timed, Versus, along, extremes, peaks, timed
from cs336_tui.analysis.grouping import PLACES, TELLING, label, shared, shown, telling
from cs336_tui.analysis.kernel_cells import profiled
from cs336_tui.analysis.merge import ENDINGS, RECORDED, Result, grouped, measured, title_of, without_visits
from cs336_tui.analysis.tuning import race_of
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.export.subjects.tuning import finding as race_finding
from cs336_tui.export.writing.footnotes import FAILED, has_result, machine_marks
from cs336_tui.export.writing.texts import in_brief
from cs336_tui.export.writing.verdicts import Names, cell_names, judged, judgement_of, limits_of
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.intervals import FEWEST, LEVEL, MeanInterval
from cs336_tui.stats.quantities import MILLISECONDS, counted, duration, gigabytes, named, percent
from cs336_tui.stats.ratio import Ratio

MOST_PROFILES = 3
"""Profiled steps that a sentence is about; more are counted."""
MOST_NOTICES = 3
CI = f"{LEVEL * 100:g} % CI"


class Finding(NamedTuple):
    """A sentence or several on one topic."""

    topic: str
    text: str


class NamedCells(NamedTuple):
    """All that the findings are made of. Repeats of a cell have one name."""

    results: Sequence[Result]
    timed: Sequence[Timed]
    names: Names

    @classmethod
    def of(cls, results: Sequence[Result]) -> NamedCells:
        alike = grouped(results, lambda result: (result.spec, *shown(result, PLACES)))
        names = short_names([runs[0] for runs in alike.values()])
        by_run: dict[tuple[int, int], str] = {}
        for runs in alike.values():
            name = names[runs[0].source, runs[0].cell.cell]
            by_run |= {(run.source, run.cell.cell): name for run in runs}
        return cls(results, timed(results, _interval), by_run)

    def name(self, result: Result) -> str:
        return self.names[result.source, result.cell.cell]

    def doubts(self, cell: Timed) -> tuple[str, ...]:
        """The verdicts by which a run of the cell is in doubt."""
        found = [judgement_of(run.cell, run.state) for run in cell.runs]
        return tuple(dict.fromkeys(check.name for each in found if each for check in each.doubts))

    def doubted(self, cell: Timed) -> str:
        """The name, and the doubts about the cell."""
        doubts = self.doubts(cell)
        return self.name(cell.first) + (f" (in doubt: {', '.join(doubts)})" if doubts else "")


def short_names(results: Sequence[Result]) -> Names:
    """Each cell's name by what tells it from the others; of a single cell its heading."""
    names = cell_names(results, always=())
    headings = {(result.source, result.cell.cell): result.spec.heading for result in results}
    return {place: name or headings[place] for place, name in names.items()}


def findings(results: Sequence[Result], states: Sequence[SessionState]) -> Iterator[Finding]:
    """The best of a race, the cells measured, the fastest and the slowest cell, the ratios along each choice, peak
    memory, the largest kernels, and what is not to be trusted. Visits of a race are not compared as cells are."""
    for state in states:
        for each in _raced(state, results):
            yield each._replace(text=f"{title_of(state)}: {each.text}") if len(states) > 1 else each
    cells = NamedCells.of(without_visits(results))
    yield from _measured(cells)
    if found := extremes(cells.timed):
        yield from _extremes(cells, found)
    elif cells.timed:
        (only,) = cells.timed
        yield Finding("Step time", f"{_mean(only)}{_repeats(only)}.")
    for key, steps in grouped(along(cells.timed), lambda each: each.key).items():
        title = FIELDS[key].title
        sentences = (f"{_along(step)}{_doubted_pairs(cells, step)}." for step in steps)
        yield Finding(title[0].upper() + title[1:], " ".join(sentences))
    if sizes := peaks(cells.results):
        yield Finding("Peak memory", f"{_peaks(cells, *sizes)}.")
    yield from _kernels(states)
    yield from _distrust(cells)
    yield from _made(results, states)


def _raced(state: SessionState, results: Sequence[Result]) -> Iterator[Finding]:
    """The best of the session's race, which candidates differ, and what was measured for it. That a visit has few steps
    is no doubt: its race has many visits."""
    race = race_of(state)
    if race is None:
        return
    differing = [entry.label for entry in race.entries if entry.status == "differs"]
    not_crowned = f" Not crowned, as logits or gradients differ: {named(differing)}." if differing else ""
    yield Finding("Race", f"{race_finding(race)}{not_crowned}")
    visits = {cell for entry in race.entries for cell in entry.cells}
    timed_visits = [each for each in measured(results) if each.state is state and each.cell.cell in visits]
    if not timed_visits:
        return
    devices = " and ".join(dict.fromkeys(map(device_label, timed_visits)))
    number = counted(len(timed_visits), "visit")
    ended = f"it ended after {duration(race.spent_s)}: {race.ended}" if race.ended else "it has not ended"
    of = counted(len(race.entries), "candidate")
    yield Finding("Raced", f"{number} of {of} on {devices}, each a process with {race.tuning.visit_words}; {ended}.")
    checks = (check.name for each in judged(timed_visits) for check in each.judgement.doubts)
    doubts = Counter(name for name in checks if name != "too-few-steps")
    if doubts:
        counts = ", ".join(f"{name} in {cells}" for name, cells in doubts.most_common())
        yield Finding("Visits in doubt", f"of {number}: {counts}.")


def _measured(cells: NamedCells) -> Iterator[Finding]:
    """The number of cells with timings, on which devices, and what they have in common and not."""
    if not cells.timed:
        return
    results = measured(cells.results)
    devices = " and ".join(dict.fromkeys(map(device_label, results)))
    swept = (key for key in TELLING if varies(results, key) and key not in ("machine", "device", "torch", "threads"))
    parts = [f"{FIELDS[key].title} {_listed(values(results, key))}" for key in swept]
    if same := shared(results, among=("size", "context", "batch", "pass", "precision", "warmup", "steps")):
        parts.append(f"each with {same}")
    total = len(cells.results)
    of = f"{len(results)} of {total} cells {'was' if len(results) == 1 else 'were'}" if total > 1 else "One cell was"
    yield Finding("Measured", f"{'; '.join([f'{of} timed on {devices}', *parts])}.")


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(texts) if len(texts) <= 8 else f"{', '.join(texts[:3])} … {texts[-1]} ({len(texts)} values)"


def _extremes(cells: NamedCells, found: Extremes) -> Iterator[Finding]:
    """Who is fastest and slowest; several where no interval tells them apart, nobody where no interval is known."""
    least, most = found.fastest[0], found.slowest[0]
    if found.ratio is None or found.ratio.low is None:
        named = f"{cells.doubted(least)} has the least mean, {_mean(least)}; {cells.doubted(most)} the greatest, "
        yield Finding("Step time", f"{named}{_mean(most)}. Which is faster is not settled: {_why(found.ratio)}.")
    elif least in found.slowest:
        ends = f"{_mean(least)} for {cells.doubted(least)} to {_mean(most)} for {cells.doubted(most)}"
        text = f"The intervals tell no cell from the fastest: {ends}, a ratio of {found.ratio}."
        yield Finding("Step time", text)
    else:
        yield Finding("Fastest", f"{_all(cells, found.fastest)}.")
        yield Finding("Slowest", f"{_all(cells, found.slowest)}; {_digits(found.ratio)} times the fastest.")


def _all(cells: NamedCells, alike: Sequence[Timed]) -> str:
    """The first with its mean; then those that are not told apart from it."""
    first, *others = alike
    text = f"{cells.doubted(first)}: {_mean(first)}{_repeats(first)}"
    if others:
        names = [f"{cells.name(each.first)} ({_ms(each)} ms)" for each in others]
        text += f"; not told apart from it: {named(names, between=', ')}"
    return text


def _along(step: Along) -> str:
    """The value against the first one: the least and the greatest ratio, or how many pairs came out how."""
    total, (base, other) = len(step.pairs), (step.base, step.other)
    pairs = counted(total, "pair")
    faster, slower, same, open_ = (step.count(of) for of in ("faster", "slower", "same", "ambiguous"))
    known = [pair for pair in step.pairs if pair.ratio and pair.ratio.low is not None]
    if not known:
        ends = sorted({f"{pair.ratio.ratio:.3g}" for pair in step.pairs if pair.ratio}, key=float)
        told = f"step-time ratio {' to '.join(dict.fromkeys((*ends[:1], *ends[-1:])))}, " if ends else ""
        return f"{other} against {base}: {told}no interval: {_why(step.pairs[0].ratio)}"
    in_all = ("", "", ", in both pairs")[total] if total < 3 else f", in all {pairs}"
    if faster == total:
        return f"{other} is {_span(step, inverse=True)} times as fast as {base}{in_all}"
    if slower == total:
        return f"{other} takes {_span(step)} times as long as {base}{in_all}"
    if same == total:
        return f"{other} takes as long as {base} within 1 %{in_all}"
    if open_ == total:
        return f"{other} against {base}: no difference is supported in {pairs}, ratios {_span(step)}"
    outcomes = {"faster": faster, "slower": slower, "the same within 1 %": same, "not told apart": open_}
    told = ", ".join(f"{word} in {number}" for word, number in outcomes.items() if number)
    return f"{other} against {base}, {pairs}: {told}; step-time ratios {_span(step)}"


def _doubted_pairs(cells: NamedCells, step: Along) -> str:
    """The number of its pairs with a cell in doubt."""
    found = sum(bool(cells.doubts(pair.base) or cells.doubts(pair.other)) for pair in step.pairs)
    if not found:
        return ""
    return "; a cell is in doubt" + (f" in {found} of them" if len(step.pairs) > 1 else "")


def _span(step: Along, *, inverse: bool = False) -> str:
    """The ratio with its interval; of several pairs the least and the greatest, each with its cell."""
    keys = telling([pair.other.first for pair in step.pairs])
    found = [(pair.ratio.inverse if inverse else pair.ratio, pair) for pair in step.pairs if pair.ratio]
    found.sort(key=lambda each: each[0].ratio)
    ends = found if len(found) == 1 else (found[0], found[-1])

    def text(ratio: Ratio, pair: Versus) -> str:
        name = label(pair.other.first, keys)
        return f"{_digits(ratio)}{f' ({name})' if name and len(ends) > 1 else ''}"

    return " to ".join(text(*end) for end in ends)


def _digits(ratio: Ratio) -> str:
    """``5.12 [5.10, 5.14]``."""
    return str(ratio) if ratio.low is not None else f"{ratio.ratio:.3g} (no interval)"


def _why(ratio: Ratio | None) -> str:
    """Why there is no interval."""
    if ratio is None:
        return "a cell has fewer than 2 measured steps"
    return ratio.method.removeprefix("none: ")


def _ms(cell: Timed) -> str:
    return MILLISECONDS.of(cell.summary, "mean_s")


def _mean(cell: Timed) -> str:
    """``14.945 ms (95 % CI 14.907 to 14.983)``."""
    if cell.low is None or cell.high is None:
        few = cell.summary.n < FEWEST
        return f"{_ms(cell)} ms ({f'n = {cell.summary.n}, no {CI} below {FEWEST}' if few else f'no {CI}'})"
    return f"{_ms(cell)} ms ({CI} {limits_of(cell.low, cell.high, cell.mean_s)})"


def _repeats(cell: Timed) -> str:
    return f" over {len(cell.runs)} runs" if len(cell.runs) > 1 else ""


def _peaks(cells: NamedCells, most: Peak, least: Peak) -> str:
    """The cells of the largest and of the smallest peak."""

    def named(peak: Peak) -> str:
        first, *others = dict.fromkeys(map(cells.name, peak.results))
        return "" if len(cells.timed) == 1 else first + (f" and {counted(len(others), 'other')}" if others else "")

    of = most.capacity_bytes if most.kind == "allocated" else None
    share = f"{percent(most.bytes / of)} % of the {gigabytes(of)} GB of {most.results[0].spec.device}" if of else ""
    where = ", ".join(filter(None, (named(most), share)))
    whats = {"allocated": "allocated on the device", "tensors": "held by tensors (memory report)"}
    what = whats.get(most.kind, "resident in the cell's process (RSS)")
    text = f"At most {gigabytes(most.bytes)} GB {what}{f' ({where})' if where else ''}"
    return text if least.bytes == most.bytes else f"{text}, at least {gigabytes(least.bytes)} GB ({named(least)})"


def _kernels(states: Sequence[SessionState]) -> Iterator[Finding]:
    """The largest kernel of each profiled step, and the share of matrix multiplication."""
    reports = list(chain.from_iterable(state.contents(KernelReport) for state in states))
    profiles = [(report.spec.title, profiled(report)) for report in reports[:MOST_PROFILES]]
    largest = [
        f"{title}: largest {found.top.short} with {percent(found.top.share)} % of {found.kernel_ns / 1e6:.4g} ms of "
        f"kernel time, matrix multiply {percent(found.matmul_share)} %"
        for title, found in profiles
        if found.top
    ]
    if largest:
        more = f" {len(reports) - len(largest)} more under Kernels." if len(reports) > len(largest) else ""
        yield Finding("Kernels", f"{'; '.join(largest)}.{more}")


def _distrust(cells: NamedCells) -> Iterator[Finding]:
    """The cells in doubt and without timings."""
    found = judged(measured(cells.results))
    doubts: dict[str, list[Result]] = {}
    for each in found:
        for check in each.judgement.doubts:
            doubts.setdefault(check.name, []).append(each.result)
    if doubts:
        doubted = sum(each.judgement.is_doubted for each in found)
        lists = (f"{name}: {_cells_named(cells, several)}" for name, several in doubts.items())
        yield Finding("In doubt", f"{doubted} of {counted(len(found), 'timed cell')}: {'; '.join(lists)}.")
    elif found:
        unseen = Counter(check.name for each in found for check in each.judgement.not_observable)
        blind = ", ".join(
            name if n == len(found) else f"{name} ({n} of {len(found)} cells)" for name, n in unseen.items()
        )
        of = f"none of the {len(found)} timed cells" if len(found) > 1 else "nothing"
        yield Finding("In doubt", f"{of}{f'; not observable: {blind}' if blind else ''}.")
    for word in ENDINGS:
        without = [result for result in cells.results if result.ending == word]
        if not without or word == "not run":
            continue
        text = f"{_cells_named(cells, without)}."
        if word == RECORDED:
            text = f"{counted(len(without), 'cell')} recorded elsewhere; no step was timed here."
        elif len(without) == 1 and without[0].cell.status in FAILED:
            text = f"{cells.name(without[0])}: {_failure(without[0].cell)}."
        yield Finding(word[0].upper() + word[1:], text)


def _made(results: Sequence[Result], states: Sequence[SessionState]) -> Iterator[Finding]:
    """The cells that were made differently; the log's notices."""
    lines = (*mixed_provenance([each for each in results if has_result(each.cell)]), *machine_marks(results).notes)
    yield from (Finding("Not made alike", f"{line.removeprefix('mixed provenance: ')}.") for line in lines)
    notices = dict.fromkeys(notice.text for state in states for notice in state.notices)
    yield from (Finding("Notice", text) for text in list(notices)[:MOST_NOTICES])
    if len(notices) > MOST_NOTICES:
        yield Finding("Notice", f"{len(notices) - MOST_NOTICES} more under Provenance.")


def _failure(cell: CellState) -> str:
    """In which stage it ended, and of what, in brief; all of it stands under Failures."""
    end, stage = cell.finished, f"in stage {cell.stage}" if cell.stage else "at its start"
    if end and cell.status == "oom" and end.peak_allocated_bytes is not None:
        return f"{stage}, {gigabytes(end.peak_allocated_bytes)} GB allocated until then"
    return f"{stage}: {in_brief(end.error, 160)}" if end and end.error else stage


def _cells_named(cells: NamedCells, results: Sequence[Result]) -> str:
    """``12 cells (small · forward; large · forward; and 10 more)``."""
    return f"{counted(len(results), 'cell')} ({named([*map(cells.name, results)], last='; and ')})"


def _interval(result: Result) -> MeanInterval | None:
    judgement = judgement_of(result.cell, result.state)
    return judgement.interval if judgement else None
