"""A cell's status, verdicts, interval, limit, energy and settings in words, and a comparison's outcome."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size

from cs336_tui.analysis.eta import steps_so_far
from cs336_tui.analysis.merge import grouped
from cs336_tui.events.peaks import WRONG_PEAK
from cs336_tui.export.verdicts import half_width
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats import quantities
from cs336_tui.stats.quantities import count, percent
from cs336_tui.stats.ratio import Outcome
from cs336_tui.tui import format
from cs336_tui.tui.judging import Assessment
from cs336_tui.tui.widgets.columns import ellipsis
from cs336_tui.tui.widgets.lines import Line, Span, fit, line, paragraphs, wrapped

if TYPE_CHECKING:
    from cs336_tui.analysis.energy import Energy
    from cs336_tui.analysis.verdicts import Check, Judgement

_STATUS = {
    "queued": Span("· queued", "muted"),
    "running": Span("▶ running", "strong"),
    "ok": Span("✓ ok", "good"),
    "oom": Span("▲ OOM", "caution"),
    "failed": Span("✗ failed", "bad"),
    "killed": Span("✗ killed", "bad"),
    "cancelled": Span("■ cancelled", "muted"),
    "skipped": Span("» skipped", "muted"),
}
RECORDED = Span("✓ recorded", "good")


def status(cell: CellState) -> Span:
    """The status as a glyph and a word: colour is never alone."""
    return RECORDED if cell.spec.recording and cell.status == "ok" else _STATUS[cell.status]


def number(cell: CellState) -> int:
    """The cell's number, from 1."""
    return cell.cell + 1


def stage(cell: CellState, now: float | None = None) -> str:
    """The stage of a running cell and its progress; with `now` (Unix seconds) the time it has compiled."""
    since = _since(cell, now)
    if cell.stage in ("warm-up", "measuring"):
        return f"{cell.stage} {steps_so_far(cell, now)}"
    words = {
        "building": "making the message, checking the operation" if cell.spec.is_collective else "building the model",
        "compiling": f"compiling the model{since}",
        "capturing": f"capturing a CUDA graph{since}",
    }
    return words.get(cell.stage, cell.stage) if cell.stage else cell.status


def _since(cell: CellState, now: float | None) -> str:
    if now is None or cell.stage_began_at is None:
        return ""
    return f", {quantities.duration(max(now - cell.stage_began_at, 0.0))}"


def settled_of(state: SessionState) -> int:
    """A hash that changes when a cell is over, over again, or will not run."""
    return hash(tuple(cell.finished.at if cell.finished else cell.status == "skipped" for cell in state.cells.values()))


def error_lines(cell: CellState, width: int, most: int | None = None) -> list[Line]:
    """The error of a cell, at most `most` rows; options such as --model-arg stay whole."""
    error = cell.finished.error if cell.finished else None
    return paragraphs((error or "").splitlines(), width)[:most]


def how_it_ended(cell: CellState) -> str:
    """Status, stage and step of a cell that did not end well, in one line."""
    finished = cell.finished
    if finished is None or finished.status == "ok":
        return ""
    words = {"oom": "out of memory", "failed": "failed", "killed": "process killed", "cancelled": "cancelled"}
    text = words[finished.status]
    if finished.stage:
        text += f" while {finished.stage}" if finished.stage != "warm-up" else " during warm-up"
    if finished.step is not None:
        text += f", at step {finished.step + 1}"
    if finished.phase:
        text += f", in its {finished.phase}"
    return text


OUTCOMES: dict[Outcome, Span] = {
    "faster": Span("▼ faster", "good"),
    "slower": Span("▲ slower", "bad"),
    "same": Span("= same", "text"),
    "ambiguous": Span("? ambiguous", "caution"),
}


VERDICT_ROOM = 16
"""The width of one verdict and the number of others: ``too-few-steps +1``."""
_INDENT = "  "
_ALWAYS = 2
"""Rows that long verdicts leave for what could not be observed."""


def too_much(share: float) -> str:
    """The remark beside a share of the measured peak above 100 %."""
    return f"{'the peak is wrong' if share > WRONG_PEAK else 'more than it'}: measure the peak again"


def judgement_lines(cell: CellState, found: Assessment | None, width: int, height: int) -> list[Line]:
    """At most `height` rows: verdicts, the first ones in full; what could not be observed; then the rest."""
    if cell.status != "ok" or not cell.running.n:
        return []
    if found is None:
        return [line(("… judging", "muted"))][:height]
    if found.problem:
        return wrapped(f"! this cell could not be judged: {found.problem}", width, "bad", _INDENT)[:height]
    if found.judgement is None:
        return []
    checks = doubts_first(found.judgement)
    short = [fit(line(_short(found, width)), width)] if height > 1 else []
    rest = [wrapped(text, width, role, _INDENT) for text, role in _rest(cell, found)]
    said = [_verdict(check, width) for check in checks]
    room = height - len(short) - min(sum(map(len, rest)), _ALWAYS)
    for place, check in reversed(list(enumerate(checks))):
        if sum(map(len, said)) > room:
            said[place] = [fit((_mark(check), Span(f": {check.evidence}")), width)]
    rows = [*short, *chain.from_iterable(said)][:height]
    return [*rows, *_as_many(rest, height - len(rows), width)]


def _as_many(entries: Sequence[list[Line]], room: int, width: int) -> list[Line]:
    """As many entries as fit; the last one ends with an ellipsis if it is cut."""
    rows: list[Line] = []
    for entry in entries:
        left = room - len(rows)
        if len(entry) > left > 0:
            *whole, last = entry[:left]
            cut = set_cell_size(last[0].text, min(cell_len(last[0].text), max(width - 2, 0)))
            rows += [*whole, line((f"{cut.rstrip(' ,;·')} …", last[0].role))]
        if len(entry) > left:
            break
        rows += entry
    return rows


def _short(found: Assessment, width: int) -> str:
    """The interval of the mean and the share of the peak, in one row."""
    assert found.judgement is not None
    limit = found.limit
    rates = [f"{format.flops(limit.flops_per_s)}FLOP/s"] if limit else []
    if limit and limit.share_of_measured is not None:
        peak = "a wrong peak" if limit.share_of_measured > WRONG_PEAK else "peak"
        rates.append(f"{percent(limit.share_of_measured)} % of {peak}")
    elif limit:
        sheet = limit.share_of_sheet
        rates.append("peak not measured (Roofline, l)" if sheet is None else f"{percent(sheet)} % of data sheet")
    interval = half_width_words(found.judgement)
    level = found.judgement.interval.level * 100 if found.judgement.interval else 0
    whole = " · ".join([*([f"mean {interval} ({level:g} % interval)"] if interval else []), *rates])
    return whole if cell_len(whole) <= width else " · ".join([*filter(None, [interval]), *rates])


def half_width_words(judgement: Judgement) -> str:
    """Half the interval of the mean over the mean: ``± 0.42 %``; empty without an interval."""
    return f"± {half_width(judgement.interval)} %" if judgement.interval else ""


def all_checks(judgement: Judgement, width: int) -> list[Line]:
    """Every check with its evidence, for a window."""
    lines: list[Line] = []
    for check in judgement.checks:
        unseen = "not observable: " if check.holds is None and not check.unknown_because else ""
        text = f"{'?' if check.holds is None else '·'} {check.name}: {unseen}{check.evidence}"
        lines += _verdict(check, width) if check.holds else wrapped(text, width, "muted", _INDENT)
    return [*lines, *paragraphs(judgement.notes, width, indent=_INDENT)]


def _mark(check: Check) -> Span:
    from cs336_tui.analysis.verdicts import DESCRIBING

    good = check.name in DESCRIBING
    return Span(f"{'✓' if good else '!'} {check.name}", "good" if good else "caution")


def _verdict(check: Check, width: int) -> list[Line]:
    mark, advice = _mark(check), f" → {check.advice}" if check.advice else ""
    ((text, _),), *more = wrapped(f"{mark.text}: {check.evidence}{advice}", width, "text", _INDENT)
    return [(Span(text[: len(mark.text)], mark.role), Span(text[len(mark.text) :])), *more]


def _rest(cell: CellState, found: Assessment) -> Iterator[tuple[str, str]]:
    """Texts with their roles, the most important first."""
    judgement = found.judgement
    assert judgement is not None
    unknown = grouped(judgement.not_observable, lambda check: check.unknown_because)
    for because in sorted(unknown):  # the device first
        why = because or f"not observable on {cell.spec.device.partition(':')[0]}"
        yield f"{why}: {', '.join(check.name for check in unknown[because])}", "muted"
    if judgement.warmup_advice:
        yield judgement.warmup_advice, "text"
    if parts := [*_limit(found), *(energy_words(found.energy) if found.energy else ())]:
        yield " · ".join(parts), "text"
    yield from ((note, "muted") for note in judgement.notes)
    if parts := _in_force(cell):
        yield f"in force: {', '.join(parts)}", "muted"


def _limit(found: Assessment) -> Iterator[str]:
    """The facts about the limit that the short row leaves out."""
    limit = found.limit
    if limit is None:
        return
    measured, sheet = limit.share_of_measured, limit.share_of_sheet
    if measured is not None and measured > 1:
        yield f"{percent(measured)} % of the measured peak ({too_much(measured)})"
    if measured is not None and sheet is not None:
        yield f"{percent(sheet)} % of the data sheet's peak"
    if limit.share_of_bandwidth is not None:
        yield f"at least {percent(limit.share_of_bandwidth)} % of the bandwidth, which bounds it"


def energy_words(energy: Energy) -> Iterator[str]:
    """The energy of a step, and tokens per joule; nothing if unknown."""
    if energy.joules_per_step is not None:
        yield f"{energy.joules_per_step:.3g} J a step"
        if energy.tokens_per_joule is not None:
            yield f"{count(energy.tokens_per_joule)} tokens/J"


def _in_force(cell: CellState) -> list[str]:
    real, seen = cell.in_force, cell.surroundings
    clocks = dict.fromkeys(f"{mhz} MHz" for mhz in (seen.clock_before_mhz, seen.clock_after_mhz) if mhz is not None)
    found = [
        real and f"float32 matmul {real.matmul_precision}",
        real and real.autocast_dtype and f"autocast {real.autocast_dtype}",
        real and real.float8,
        real and real.attention and f"attention {real.attention}",
        real and real.threads is not None and format.plural(real.threads, "thread"),
        clocks and f"SM clock {' → '.join(clocks)}",
    ]
    return [text for text in found if text]


def verdict(cell: CellState, found: Assessment | None, *, whole: bool = True) -> Span:
    """The verdicts, as ``drifting, contended``; not `whole`: the first and the number of others, as ``drifting +1``, in
    `VERDICT_ROOM` columns.
    ``…`` while the cell is judged; ``–`` if it has no verdict. The colour says whether its number is in doubt."""
    if found is None:
        return Span("…" if cell.is_over else "–", "muted")
    if found.problem:
        return Span("not judged", "bad")
    judgement = found.judgement
    if judgement is None:
        return Span("–", "muted")
    names = doubts_first(judgement)
    text = judgement.label
    if names and not whole:
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        text = ellipsis(names[0].name, VERDICT_ROOM - len(more)) + more
    return Span(text, "caution" if judgement.is_doubted else "good")


def doubts_first(judgement: Judgement) -> tuple[Check, ...]:
    """The verdicts that hold; those that doubt the number come before those that describe it."""
    from cs336_tui.analysis.verdicts import DESCRIBING  # it loads numpy, which is there when there is a judgement

    return tuple(sorted(judgement.holding, key=lambda check: check.name in DESCRIBING))
