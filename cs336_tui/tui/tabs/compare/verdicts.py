"""Verdicts of comparisons, as every page shows them."""

from __future__ import annotations

from cs336_tui.stats.ratio import Verdict
from cs336_tui.tui.widgets.lines import Span

VERDICTS: dict[Verdict, Span] = {
    "faster": Span("▼ faster", "good"),
    "slower": Span("▲ slower", "bad"),
    "same": Span("= same", "text"),
    "ambiguous": Span("? ambiguous", "caution"),
}
