"""How a cell stands and how a comparison ended, in the words of every pane."""

from __future__ import annotations

from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import SessionState
from cs336_tui.stats import quantities
from cs336_tui.stats.ratio import Outcome
from cs336_tui.tui.widgets.lines import Span

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


def status(cell: CellState) -> Span:
    """The status as a glyph and a word: colour is never alone."""
    return _STATUS[cell.status]


def number(cell: CellState) -> int:
    """The cell's number as people see it, from 1."""
    return cell.cell + 1


def stage(cell: CellState, now: float | None = None) -> str:
    """The stage of a running cell and its progress; with `now` (Unix seconds) the time it has compiled."""
    match cell.stage:
        case "building":
            return "building the model"
        case "compiling":
            return f"compiling the model{_since(cell, now)}"
        case "capturing":
            return f"capturing a CUDA graph{_since(cell, now)}"
        case "warm-up":
            most = "≤" if cell.spec.warmup_auto else ""
            return f"warm-up {len(cell.warmup_times_s)}/{most}{cell.spec.warmup_steps}"
        case "measuring":
            most = "≤" if cell.spec.steps_auto else ""
            return f"measuring {len(cell.step_times_s)}/{most}{cell.spec.measure_steps}"
        case None:
            return cell.status
        case other:
            return other


def _since(cell: CellState, now: float | None) -> str:
    """The time since the stage began."""
    if now is None or cell.stage_began_at is None:
        return ""
    return f", {quantities.duration(max(now - cell.stage_began_at, 0.0))}"


def settled_of(state: SessionState) -> int:
    """A hash that changes when a cell is over, over again, or will not run."""
    return hash(tuple(cell.finished.at if cell.finished else cell.status == "skipped" for cell in state.cells.values()))


def how_it_ended(cell: CellState) -> str:
    """Status, stage and step of a cell that did not end well, for one line."""
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


VERDICTS: dict[Outcome, Span] = {
    "faster": Span("▼ faster", "good"),
    "slower": Span("▲ slower", "bad"),
    "same": Span("= same", "text"),
    "ambiguous": Span("? ambiguous", "caution"),
}
