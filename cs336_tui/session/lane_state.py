"""The state of the places where cells run side by side: lanes and jobs."""

from __future__ import annotations

import msgspec

from cs336_tui.events import events as ev


class LaneState(msgspec.Struct):
    """A lane, the cell that runs in it, and why it runs no more."""

    lane: ev.Lane
    cell: int | None = None
    set_aside: str | None = None


class JobState(msgspec.Struct):
    """A job that runs cells of the session elsewhere, as its launcher told last."""

    submitted: ev.JobSubmitted
    stage: ev.JobStage = "pending"
    reason: str = ""
    node: str = ""
