"""Two sessions or two cells against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.analysis.comparison import Comparison, Pair, Side, compare
from cs336_tui.analysis.fields import shown_of, size_label
from cs336_tui.analysis.grouping import label, telling
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.verdicts import DESCRIBING
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import warmup_words
from cs336_tui.export.tables import Column
from cs336_tui.export.verdicts import Judged, judged
from cs336_tui.tui import format
from cs336_tui.tui.tabs.status import VERDICTS
from cs336_tui.tui.titles import variant_columns
from cs336_tui.tui.widgets.columns import lay_out
from cs336_tui.tui.widgets.lines import Line, Span, line, wrapped
from cs336_tui.tui.widgets.rows import Page

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
_VARIANTS_BEFORE = [column.key for column in _COLUMNS].index("device")
"""Where columns of variants stand."""
_ALWAYS = ("size", "context", "pass", "precision")
_MOST_DOUBTS = 12
"""Doubted sides that get a line each; more of them are counted."""
_DOUBTED = " !"


class _Doubt(NamedTuple):
    """Why a side of a pair is in doubt."""

    name: str
    verdicts: tuple[str, ...]
    sentences: tuple[str, ...]
    """One a run that is in doubt."""


_Doubts = Mapping[CellSpec, _Doubt]
"""Of one side, by what its cells ran."""


def pairs_page(a: Sequence[Result], b: Sequence[Result], width: int) -> Page:
    """A row a pair with ratio, interval and verdict of A; then which sides are in doubt, what has no partner, and what
    differs everywhere. It judges the cells, which takes a thread of its own."""
    found = compare(a, b)
    doubts = _doubts_of(a), _doubts_of(b)
    variants = variant_columns(side.spec for pair in found.pairs for side in (pair.a, pair.b))
    columns = (*_COLUMNS[:_VARIANTS_BEFORE], *variants.values(), *_COLUMNS[_VARIANTS_BEFORE:])
    means = [_means(sides, of) for sides, of in zip(_sides(found), doubts, strict=True)]
    texts = [_texts(pair, tuple(variants), *both) for pair, *both in zip(found.pairs, *means, strict=True)]
    mark_width = max(len(mark.text) for mark in VERDICTS.values())
    layout = lay_out(columns, texts, width - mark_width)
    counted = " · ".join(f"{found.count(of)} {of}" for of in VERDICTS if found.count(of))
    heading = (
        line(("A ", "strong"), (format.plain(found.a), "title"), ("  B ", "strong"), (format.plain(found.b), "title")),
        line((f"A against B: {counted or 'no cells pair'}", "strong")),
        line((layout.heading, "muted")),
    )
    rows: list[Line] = [
        (Span(layout.row(row)), VERDICTS[pair.verdict]) for row, pair in zip(texts, found.pairs, strict=True)
    ]
    details = {place: _detail(pair, doubts) for place, pair in enumerate(found.pairs)}
    return Page(heading, (*rows, (), *_in_doubt(found, doubts, width), *_below(found, width)), details)


def _doubts_of(results: Sequence[Result]) -> _Doubts:
    """Those of a side's runs, put together by what they ran."""
    keys = (*_ALWAYS, *telling(results, but=(*_ALWAYS, "machine", "session")))
    by_spec: dict[CellSpec, list[Judged]] = {}
    for each in judged(results):
        if each.judgement.is_doubted:
            by_spec.setdefault(each.result.spec, []).append(each)
    return {
        spec: _Doubt(
            label(found[0].result, keys).replace("context ", "ctx "),
            tuple(dict.fromkeys(n for each in found for n in each.judgement.names if n not in DESCRIBING)),
            tuple(each.judgement.sentence for each in found),
        )
        for spec, found in by_spec.items()
    }


def _sides(found: Comparison) -> tuple[tuple[Side, ...], tuple[Side, ...]]:
    return tuple(pair.a for pair in found.pairs), tuple(pair.b for pair in found.pairs)


def _means(sides: Sequence[Side], doubts: _Doubts) -> list[str]:
    """The mean of each, in ms, with a sign where it is in doubt; the figures stand below each other."""
    pad = " " * len(_DOUBTED) if any(side.spec in doubts for side in sides) else ""
    return [_mean(side) + (_DOUBTED if side.spec in doubts else pad) for side in sides]


def _in_doubt(found: Comparison, doubts: Sequence[_Doubts], width: int) -> list[Line]:
    """A line a doubted side."""
    said = [
        f"! in doubt: {name} {doubt.name}: {', '.join(doubt.verdicts)}"
        for name, sides, of in zip("AB", _sides(found), doubts, strict=True)
        for side in sides
        if (doubt := of.get(side.spec))
    ]
    if len(said) > _MOST_DOUBTS:
        more = len(said) - _MOST_DOUBTS
        said[_MOST_DOUBTS:] = [f"! in doubt: {more} more side{'s' * (more > 1)}, marked above"]
    return [row for text in said for row in wrapped(text, width, "caution", "  ")]


def _texts(pair: Pair, variants: tuple[str, ...], a_mean: str, b_mean: str) -> tuple[str, ...]:
    ratio, spec = pair.ratio, pair.a.spec
    return (
        size_label(spec),
        str(spec.context_length),
        str(spec.batch_size),
        spec.pass_,
        spec.precision,
        *(_both(shown_of(spec, key), shown_of(pair.b.spec, key)) for key in variants),
        _both(spec.device, pair.b.spec.device),
        warmup_words(spec.warmup_steps, spec.warmup_auto),
        a_mean,
        b_mean,
        f"{ratio.ratio:.3f}" if ratio else format.NOT_YET,
        ratio.bounds(".3f") if ratio else "",
    )


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} | {b}"


def _mean(side: Side) -> str:
    return format.ms(side.summary.mean_s, side.summary.std_s) if side.summary else side.note


def _below(found: Comparison, width: int) -> list[Line]:
    lines: list[Line] = []
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


def _detail(pair: Pair, doubts: Sequence[_Doubts]) -> str:
    return "\n".join(_details(pair, doubts))


def _details(pair: Pair, doubts: Sequence[_Doubts]) -> Iterator[str]:
    sides = tuple(zip("AB", (pair.a, pair.b), doubts, strict=True))
    for name, side, _ in sides:
        yield f"{name}: {side.spec.title} on {side.machine}, {side.runs} run{'s' * (side.runs != 1)}"
    yield ""
    yield pair.explanation
    if pair.ratio:
        yield f"The interval: {pair.ratio.method}."
    yield from (f"differs: {what}" for what in pair.differs)
    for name, side, of in sides:
        if doubt := of.get(side.spec):
            yield from (f"! {name} in doubt: {sentence}" for sentence in doubt.sentences)
