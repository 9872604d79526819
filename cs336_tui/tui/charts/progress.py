"""Progress with a real total, in one row."""

from __future__ import annotations

from cs336_tui.tui.widgets.lines import Line, Span


def progress(done: int, total: int, *, width: int, unit: str = "steps") -> Line:
    """``━━━━━━━━──── 57 % · 86/150 steps``; the bar takes what the figures leave of `width`."""
    share = done / total if total else 0.0
    figures = f" {int(share * 100):3d} % · {done}/{total} {unit}" if total else f" no {unit}"
    room = max(width - len(figures), 0)
    full = int(share * room)
    return (Span("━" * full, "good"), Span("╌" * (room - full), "muted"), Span(figures, "text"))
