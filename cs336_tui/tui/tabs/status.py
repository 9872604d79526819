"""A cell's status, verdicts, interval, limit, energy and settings in words, and a comparison's outcome; and cells that
run side by side: their lanes, jobs and nodes, what a cell waits for, and how many do what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.analysis.eta import steps_so_far
from cs336_tui.events.events import Lane
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats import quantities
from cs336_tui.stats.quantities import TOO_NOISY, count
from cs336_tui.stats.ratio import Outcome
from cs336_tui.tui import format
from cs336_tui.tui.judging import Assessment
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.widgets.columns import ellipsis
from cs336_tui.tui.widgets.lines import Line, Span, fit, line, paragraphs, wrapped

if TYPE_CHECKING:
    from cs336_tui.analysis.judgement import Check, Judgement
    from cs336_tui.analysis.measures import Energy


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
_DOUBTED = Span("! ok", "caution")
RECORDED = Span("✓ recorded", "good")
RECORDED_ELSEWHERE = "Recorded elsewhere, not run or timed here: Kernels and Memory show what the file holds."
_COUNTED = (("running", "{} run"), ("queued", "{} wait"), ("ok", "{} ok"), ("oom", "{} OOM"), ("failed", "{} failed"),
            ("killed", "{} killed"), ("cancelled", "{} cancelled"), ("skipped", "{} skipped"))  # fmt: skip


def status(cell: CellState, found: Assessment | None = None) -> Span:
    """The status as a glyph and a word: colour is never alone. `found`: its verdicts, which may doubt its number."""
    if cell.status == "ok" and found and found.judgement and found.judgement.is_doubted:
        return _DOUBTED
    return RECORDED if cell.spec.recording and cell.status == "ok" else _STATUS[cell.status]


def number(cell: CellState) -> int:
    """The cell's number, from 1."""
    return cell.cell + 1


def stage(cell: CellState, now: float | None = None) -> str:
    """The stage of a running cell and its progress; with `now` (Unix seconds) the time it has compiled."""
    since = ""
    if now is not None and cell.stage_began_at is not None:
        since = f", {quantities.duration(max(now - cell.stage_began_at, 0.0))}"
    if cell.stage in ("warm-up", "measuring"):
        return f"{cell.stage} {steps_so_far(cell, now)}"
    words = {
        "building": "making the message, checking the operation" if cell.spec.is_collective else "building the model",
        "compiling": f"compiling the model{since}",
        "capturing": f"capturing a CUDA graph{since}",
    }
    return words.get(cell.stage, cell.stage) if cell.stage else cell.status


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
"""The width of one verdict and the number of other doubts: ``too-few-steps +1``."""
_INDENT = "  "
_MORE_FROM = 40
"""Width from which the line of verdicts ends in the key that opens all of them."""


def trust(cell: CellState, found: Assessment | None, width: int, mean: str = "", end: str = "") -> list[Line]:
    """The first verdict, which is the cause of others, with the number of other doubts, the mean if it is given, the
    evidence and what to do, and this at its `end`; nothing without a verdict."""
    if cell.status != "ok" or not cell.running.n:
        return []
    if found is None:
        return [line(("… judging", "muted"))]
    if found.problem:
        return wrapped(f"! this cell could not be judged: {found.problem}", width, "bad")
    if found.judgement is None or not (checks := found.judgement.doubts_first):
        return []
    return _verdict(checks[0], width, _more(checks) + mean, end, " ")


def trust_lines(cell: CellState, found: Assessment | None, width: int, rows: int) -> list[Line]:
    """The same in exactly so many rows, with the key that opens all of them."""
    end = f"  {key_name('live.details')}: all" if width > _MORE_FROM else ""
    said = trust(cell, found, width, end=end)
    if len(said) > rows:
        rest = tuple(span for row in said[rows - 1 :] for span in row)
        said[rows - 1 :] = [(*fit(rest, width - len(end)), Span(end, "muted"))]
    return [*said, *[()] * (rows - len(said))]


def interval_words(found: Assessment | None) -> str:
    """Half the interval over the mean: ``± 0.42 % (95 % interval)``, or ``too noisy``; empty without one."""
    if found is None or found.judgement is None or (interval := found.judgement.interval) is None:
        return ""
    half = interval.half_width
    return half if half == TOO_NOISY else f"± {half} % ({interval.level * 100:g} % interval)"


def all_checks(judgement: Judgement, width: int) -> list[Line]:
    """Every check with its evidence, for a window."""
    lines: list[Line] = []
    for check in judgement.checks:
        unseen = "not observable: " if check.holds is None and not check.unknown_because else ""
        text = f"{'?' if check.holds is None else '·'} {check.name}: {unseen}{check.evidence}"
        lines += _verdict(check, width) if check.holds else wrapped(text, width, "muted", _INDENT)
    return [*lines, *paragraphs(judgement.notes, width, indent=_INDENT)]


def _verdict(check: Check, width: int, told: str = "", end: str = "", indent: str = _INDENT) -> list[Line]:
    """A verdict that holds, what else is told of the number, the evidence and what to do."""
    mark = Span(f"{'✓' if check.describes else '!'} {check.name}", "good" if check.describes else "caution")
    advice = f" → {check.advice}" if check.advice else ""
    ((text, _),), *more = wrapped(f"{mark.text}{told}: {check.evidence}{advice}{end}", width, "text", indent)
    return [(Span(text[: len(mark.text)], mark.role), Span(text[len(mark.text) :])), *more]


def energy_words(energy: Energy) -> Iterator[str]:
    """The energy of a step, and tokens per joule; nothing if unknown."""
    if energy.joules_per_step is not None:
        yield f"{energy.joules_per_step:.3g} J a step"
        if energy.tokens_per_joule is not None:
            yield f"{count(energy.tokens_per_joule)} tokens/J"


def verdict(cell: CellState, found: Assessment | None) -> Span:
    """The first verdict and the number of other doubts, as ``drifting +1``, in `VERDICT_ROOM` columns.
    ``…`` while the cell is judged; ``–`` if it has no verdict. The colour says whether its number is in doubt."""
    if found is None:
        return Span("…" if cell.is_over else "–", "muted")
    if found.problem:
        return Span("not judged", "bad")
    judgement = found.judgement
    if judgement is None:
        return Span("–", "muted")
    checks = judgement.doubts_first
    text = ellipsis(checks[0].name if checks else "", VERDICT_ROOM - len(_more(checks))) + _more(checks)
    return Span(text, "caution" if judgement.is_doubted else "good")


def _more(checks: Sequence[Check]) -> str:
    """The number of doubts beside the first verdict; empty if there are none."""
    others = sum(not check.describes for check in checks[1:])
    return f" +{others}" if others else ""


def by_lane(state: SessionState) -> tuple[CellState, ...]:
    """The running cells, by lane; those without one in the order of their starts."""
    return tuple(sorted(state.running_cells, key=lambda cell: cell.lanes[:1]))


def place(lane: Lane) -> str:
    """The device of a lane, with its machine and, on a CPU, its cores."""
    cores = f" ({'core' if len(lane.cores) == 1 else 'cores'} {quantities.spans(lane.cores)})" if lane.cores else ""
    return " ".join(filter(None, (lane.machine, lane.device))) + cores


def job_of(state: SessionState, cell: CellState) -> str:
    """Slurm's name of the cell's job; of other launchers its number in the session."""
    if (job := state.job_of(cell)) is None:
        return ""
    return format.plain(job.submitted.id if job.submitted.launcher == "slurm" else job.submitted.job)


def node_of(state: SessionState, cell: CellState) -> str:
    """The machines that a cell runs or ran on, as far as they are known."""
    machines = {state.lanes[lane].lane.machine: None for lane in cell.lanes if lane in state.lanes}
    if named := ", ".join(filter(None, machines)):
        return format.plain(named)
    job = state.job_of(cell)
    return format.plain(job.node) if job else ""


def stage_of(state: SessionState, cell: CellState) -> Span:
    """The state of a cell that waits or runs: ``▶ measuring 3/10``, ``· queued``, ``· pending: Resources``."""
    if cell.status == "running":
        return Span(f"▶ {stage(cell)}", "strong")
    if (job := state.job_of(cell)) is None or job.stage == "running":
        return Span("· queued" if job is None else "· queued, its job runs", "muted")
    waits = "pending" if job.stage == "pending" else "job over"
    return Span(f"· {waits}: {format.plain(job.reason)}" if job.reason else f"· {waits}", "muted")


def totals(state: SessionState) -> str:
    """The number of cells by status: ``8 run · 4 wait · 7 ok · 1 OOM``."""
    counts = Counter[str](cell.status for cell in state.cells.values())
    return " · ".join(text.format(counts[key]) for key, text in _COUNTED if counts[key])


def where(state: SessionState, cell: CellState) -> str:
    """The lanes, device, job and node of a cell: ``lane 3, cuda:3``, ``job 7_1 on n2, cuda:0``."""
    parts: list[str] = []
    if job := state.job_of(cell):
        node = node_of(state, cell)
        parts.append(f"{job.submitted.launcher} job {job_of(state, cell)}" + (f" on {node}" if node else ""))
    if cell.lanes:
        parts.append(f"lane{'s' * (len(cell.lanes) > 1)} {quantities.spans(cell.lanes)}")
    lanes = [msgspec.structs.replace(state.lanes[lane].lane, machine="") for lane in cell.lanes if lane in state.lanes]
    devices = list(dict.fromkeys(map(place, lanes))) or [cell.spec.device]
    return ", ".join((*parts, *(devices if len(devices) < 3 else (devices[0], "…", devices[-1]))))
