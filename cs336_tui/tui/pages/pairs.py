"""Two sessions, or two cells, against each other, for a window of some width."""

from __future__ import annotations

from collections.abc import Sequence

from cs336_tui.session.comparison import Comparison, Pair, Side, compare
from cs336_tui.session.fields import size_label
from cs336_tui.session.merge import Result
from cs336_tui.sweep import warmup_words
from cs336_tui.tui import format
from cs336_tui.tui.pages.page import Page, wrapped
from cs336_tui.tui.pages.verdicts import VERDICTS
from cs336_tui.tui.widgets.columns import Column, lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line

_COLUMNS = (
    Column("size", left=True),
    Column("ctx", rank=4),
    Column("batch", rank=6),
    Column("pass", left=True),
    Column("precision", left=True, rank=3),
    Column("device", left=True, rank=7),
    Column("warm-up", rank=5),
    Column("A ms", rank=2),
    Column("B ms", rank=2),
    Column("A / B"),
    Column("interval", left=True, rank=1),
)


def pairs_page(a: Sequence[Result], b: Sequence[Result], width: int) -> Page:
    """A row a pair with ratio, interval and verdict of A; then what has no partner, and what differs everywhere."""
    found = compare(a, b)
    texts = [_texts(pair) for pair in found.pairs]
    mark_width = max(len(mark.text) for mark in VERDICTS.values())
    layout = lay_out(_COLUMNS, texts, width - mark_width)
    counted = " · ".join(f"{found.count(of)} {of}" for of in VERDICTS if found.count(of))
    heading = (
        line(("A ", "strong"), (format.plain(found.a), "title"), ("  B ", "strong"), (format.plain(found.b), "title")),
        line((f"A against B: {counted or 'no cells pair'}", "strong")),
        line((layout.heading, "muted")),
    )
    rows: list[Line] = [
        (Span(layout.row(row)), VERDICTS[pair.verdict]) for row, pair in zip(texts, found.pairs, strict=True)
    ]
    return Page(heading, (*rows, *_below(found, width)), {i: _detail(pair) for i, pair in enumerate(found.pairs)})


def _texts(pair: Pair) -> tuple[str, ...]:
    ratio, spec = pair.ratio, pair.a.spec
    return (
        size_label(spec),
        str(spec.context_length),
        str(spec.batch_size),
        spec.pass_,
        spec.precision,
        spec.device if spec.device == pair.b.spec.device else f"{spec.device} | {pair.b.spec.device}",
        warmup_words(spec.warmup_steps, spec.warmup_auto),
        _mean(pair.a),
        _mean(pair.b),
        f"{ratio.ratio:.3f}" if ratio else format.NOT_YET,
        f"[{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "",
    )


def _mean(side: Side) -> str:
    return format.ms(side.summary.mean_s, side.summary.std_s) if side.summary else side.note


def _below(found: Comparison, width: int) -> list[Line]:
    lines: list[Line] = [()]
    for name, sides in (("A", found.only_a), ("B", found.only_b)):
        for side in sides:
            lines += wrapped(f"only in {name}: {side.spec.title}", width, "muted", "  ")
    for note in found.notes:
        lines += wrapped(f"! differs everywhere: {note}", width, "caution", "  ")
    for note in found.mixed:
        lines += wrapped(f"! {note}", width, "caution", "  ")
    margin = (
        f"A / B is a ratio of mean step times, below 1 A is faster; {found.level * 100:g} % interval. The same: the "
        f"whole interval within {found.margin * 100:g} % of 1. Enter: the reason of a verdict."
    )
    return [*lines, *wrapped(margin, width, "muted", "  ")]


def _detail(pair: Pair) -> str:
    sides = (
        f"{name}: {side.spec.title} on {side.machine}, {side.runs} runs"
        for name, side in (("A", pair.a), ("B", pair.b))
    )
    method = (f"The interval: {pair.ratio.method}.",) if pair.ratio else ()
    return "\n".join((*sides, "", pair.explanation, *method, *(f"differs: {what}" for what in pair.differs)))
