"""A cell's verdicts in a word or two, coloured by whether there is a reason to doubt its number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cs336_tui.session.cell_state import CellState
from cs336_tui.tui.judging import Assessment
from cs336_tui.tui.widgets.lines import Span

if TYPE_CHECKING:
    from cs336_tui.analysis.verdicts import Check, Judgement


def verdict(cell: CellState, found: Assessment | None, *, whole: bool = True) -> Span:
    """``steady``, ``drifting, contended``; ``…`` while it is worked out, ``–`` where there is none.

    Not `whole`: the most telling one and how many more there are, ``drifting +1``.
    """
    if found is None:
        return Span("…" if cell.is_over else "–", "muted")
    if found.problem:
        return Span("not judged", "bad")
    judgement = found.judgement
    if judgement is None:
        return Span("–", "muted")
    names = doubts_first(judgement)
    text = judgement.label if whole or len(names) < 2 else f"{names[0].name} +{len(names) - 1}"
    return Span(text, "caution" if judgement.is_doubted else "good")


def doubts_first(judgement: Judgement) -> tuple[Check, ...]:
    """The verdicts that hold, reasons to doubt the number before what describes it."""
    from cs336_tui.analysis.verdicts import DESCRIBING  # it loads numpy, which is there when there is a judgement

    return tuple(sorted(judgement.holding, key=lambda check: check.name in DESCRIBING))
