"""Two sessions or two cells against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from cs336_tui.analysis.comparison import Comparison, Pair, Side, compare
from cs336_tui.analysis.fields import shown_of
from cs336_tui.analysis.grouping import label, telling
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.verdicts import DESCRIBING
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.comparison import pair_columns
from cs336_tui.export.tables import Column
from cs336_tui.export.verdicts import Judged, judged
from cs336_tui.tui import format
from cs336_tui.tui.tabs.status import OUTCOMES
from cs336_tui.tui.titles import CELL_KEYS, as_shown, cell_columns, told_variants
from cs336_tui.tui.widgets.columns import shown_table, table_lines
from cs336_tui.tui.widgets.lines import Line, line, paragraphs, wrapped
from cs336_tui.tui.widgets.rows import Page

_ALWAYS = ("size", "context", "pass", "precision")
_MOST_DOUBTS = 12
"""Most doubted sides with a line of their own."""
_DOUBTED = " !"


class _Doubt(NamedTuple):
    """The reason why a side of a pair is in doubt."""

    name: str
    verdicts: tuple[str, ...]
    sentences: tuple[str, ...]
    """One for each doubted run."""


_Doubts = Mapping[CellSpec, _Doubt]
"""The doubts about one side, by spec."""


def pairs_page(a: Sequence[Result], b: Sequence[Result], width: int) -> Page:
    """A row per pair with ratio, interval and outcome; then doubted sides, cells without a partner, and differences.
    Judging the cells takes long: call it on a thread."""
    found = compare(a, b)
    doubts = _doubts_of(a), _doubts_of(b)
    columns = _columns(found, doubts)
    marks = [OUTCOMES[pair.outcome] for pair in found.pairs]
    names, *rows = table_lines(shown_table(found.pairs, columns), width, marks)
    counted = " · ".join(f"{found.count(of)} {of}" for of in OUTCOMES if found.count(of))
    heading = (
        line(("A ", "strong"), (format.plain(found.a), "title"), ("  B ", "strong"), (format.plain(found.b), "title")),
        line((f"A against B: {counted or 'no pairs'}", "strong")),
        names,
    )
    details = {place: "\n".join(_details(pair, doubts)) for place, pair in enumerate(found.pairs)}
    return Page(heading, (*rows, (), *_in_doubt(found, doubts, width), *_below(found, width)), details)


def _columns(found: Comparison, doubts: Sequence[_Doubts]) -> list[Column[Pair]]:
    exported, sides = pair_columns(digits=".3f", unknown=format.NOT_YET), _sides(found)
    variants = told_variants(side.spec for side in (*sides[0], *sides[1]))
    ranks = {"context": 4, "batch": 6, "precision": 3, "device": 7, "warmup": 5}
    named = cell_columns(
        lambda pair: pair.a.spec, ranks, as_shown(variants), (*CELL_KEYS, "warmup"), lambda spec: spec.size_label
    )

    def both(column: Column[Pair]) -> Column[Pair]:
        def text(pair: Pair) -> str:
            return " | ".join(dict.fromkeys(shown_of(side.spec, column.key) for side in (pair.a, pair.b)))

        return column._replace(text=text)

    def mean(name: Literal["a", "b"], of: Sequence[Side], doubted: _Doubts) -> Column[Pair]:
        pad = " " * len(_DOUBTED) if any(side.spec in doubted for side in of) else ""  # so that figures align

        def text(pair: Pair) -> str:
            side = pair.a if name == "a" else pair.b
            shown = format.ms(side.summary.mean_s, side.summary.std_s) if side.summary else side.note
            return shown + (_DOUBTED if side.spec in doubted else pad)

        return Column(name, f"{name.upper()} ms", rank=2, text=text)

    return [
        *(both(column) if column.key in (*variants, "device") else column for column in named),
        mean("a", sides[0], doubts[0]),
        mean("b", sides[1], doubts[1]),
        exported["ratio"],
        exported["interval"]._replace(left=True, rank=1),
    ]


def _doubts_of(results: Sequence[Result]) -> _Doubts:
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


def _in_doubt(found: Comparison, doubts: Sequence[_Doubts], width: int) -> list[Line]:
    said = [
        f"! in doubt: {name} {doubt.name}: {', '.join(doubt.verdicts)}"
        for name, sides, of in zip("AB", _sides(found), doubts, strict=True)
        for side in sides
        if (doubt := of.get(side.spec))
    ]
    if len(said) > _MOST_DOUBTS:
        more = len(said) - _MOST_DOUBTS
        said[_MOST_DOUBTS:] = [f"! in doubt: {more} more side{'s' * (more > 1)}, marked above"]
    return paragraphs(said, width, "caution", "  ")


def _below(found: Comparison, width: int) -> list[Line]:
    alone = [f"only in {name}: {s.spec.title}" for name, of in (("A", found.only_a), ("B", found.only_b)) for s in of]
    differ = [*(f"! differs everywhere: {note}" for note in found.notes), *(f"! {note}" for note in found.mixed)]
    margin = (
        f"A / B is a ratio of mean step times, below 1 A is faster; {found.level * 100:g} % interval. The same: the "
        f"whole interval within {found.margin * 100:g} % of 1. Enter: the reason of an outcome."
    )
    return [
        *paragraphs(alone, width, "muted", "  "),
        *paragraphs(differ, width, "caution", "  "),
        *wrapped(margin, width, "muted", "  "),
    ]


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
