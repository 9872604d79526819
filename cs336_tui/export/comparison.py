"""A comparison of two sessions, or of two cells, as a table: a row a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cs336_tui.analysis.comparison import Comparison, Pair, Side
from cs336_tui.analysis.fields import FIELDS, VARIANTS, shown_of, warmup_value
from cs336_tui.analysis.merge import Result, grouped
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.footnotes import std_kind
from cs336_tui.export.results_columns import LEFT
from cs336_tui.export.tables import Column, Table, Value, cell_record, ratio_record, summary_record
from cs336_tui.export.verdicts import doubt_word
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation

SETTINGS = ("size", "context", "batch", "pass", "precision", "device", *VARIANTS, "warmup", "steps")
"""Fields of a pair that a table may show, those of A."""


def pair_columns(
    notation: Notation = MILLISECONDS, *, digits: str = ".4g", unknown: str = UNKNOWN
) -> dict[str, Column[Pair]]:
    """Every column that a comparison may have, by key; `digits` are of the ratio and its interval."""

    def setting(key: str) -> Column[Pair]:
        return Column(key, FIELDS[key].title, key in LEFT, text=lambda pair: shown_of(pair.a.spec, key))

    columns: tuple[Column[Pair], ...] = (
        Column("cell", left=True, text=lambda pair: cell_title(pair.a.spec)),
        *map(setting, SETTINGS),
        Column("a", f"A ± std ({notation.symbol})", text=lambda pair: side_mean(pair.a, notation)),
        Column("b", f"B ± std ({notation.symbol})", text=lambda pair: side_mean(pair.b, notation)),
        Column("ratio", "A / B", text=lambda pair: f"{pair.ratio.ratio:{digits}}" if pair.ratio else unknown),
        Column("interval", text=lambda pair: pair.ratio.bounds(digits) if pair.ratio else ""),
        Column("outcome", "A is", left=True, text=lambda pair: pair.outcome if pair.ratio else ""),
        Column("differs", "differs, A | B", left=True, text=lambda pair: "; ".join(pair.differs)),
    )
    return {column.key: column for column in columns}


def comparison_table(
    comparison: Comparison,
    *,
    notation: Notation = MILLISECONDS,
    caption: str = "",
    doubts: Sequence[str] = (),
    sides: Sequence[Sequence[Result]] = (),
) -> Table:
    """Both sides' mean ± std, their ratio with its interval and the outcome; below, `doubts` about the numbers
    of either and what differs between the sides. `sides` are the cells of A and of B, for the doubt of a row."""
    columns = pair_columns(notation)
    return Table.of(
        comparison.pairs,
        [columns[key] for key in ("cell", "a", "b", "ratio", "interval", "outcome")],
        record=_record,
        caption=caption or f"Step times of A ({comparison.a}) over those of B ({comparison.b})",
        footnotes=(*doubts, *_notes(comparison)),
        label="comparison",
        doubt=doubt_of_pairs(sides),
    )


def doubt_of_pairs(sides: Sequence[Sequence[Result]]) -> Callable[[Pair], str]:
    """The doubt of a pair of these two sides' cells, in a word; empty if there is none."""
    specs = [grouped(side, lambda result: result.spec) for side in sides]

    def doubt(pair: Pair) -> str:
        return doubt_word(
            result for known, side in zip(specs, (pair.a, pair.b), strict=False) for result in known.get(side.spec, ())
        )

    return doubt


def side_mean(side: Side, notation: Notation) -> str:
    """Mean ± std of a side, or why there is none."""
    return notation.mean_and_std(side.summary) if side.summary else side.note


def _record(pair: Pair) -> dict[str, Value]:
    record = cell_record(pair.a.spec) | {"warmup": warmup_value(pair.a.spec)}
    for name, side in (("a", pair.a), ("b", pair.b)):
        record |= summary_record(name, side.summary) | {f"{name}_runs": side.runs, f"{name}_note": side.note or None}
    return record | ratio_record(pair.ratio, "ratio") | {"verdict": pair.outcome, "differs": "; ".join(pair.differs)}


def _notes(comparison: Comparison) -> Iterator[str]:
    yield f"interval: {comparison.level * 100:g} %, of the ratio of the means"
    yield from dict.fromkeys(f"method: {pair.ratio.method}" for pair in comparison.pairs if pair.ratio)
    yield outcome_note(comparison.margin)
    ddofs = {side.summary.ddof for pair in comparison.pairs for side in (pair.a, pair.b) if side.summary}
    yield from (f"std: {std_kind(ddof)}" for ddof in sorted(ddofs))
    yield from (f"in every pair, A | B: {note}" for note in comparison.notes)
    yield from (
        f"{cell_title(pair.a.spec)}, A | B: {'; '.join(pair.differs)}" for pair in comparison.pairs if pair.differs
    )
    yield from comparison.mixed
    yield from _alone("A", comparison.only_a)
    yield from _alone("B", comparison.only_b)


def outcome_note(margin: float) -> str:
    """The meaning of the outcomes, for a margin of this share."""
    return (
        f"faster and slower: the whole interval on one side of 1 and the ratio at least {margin * 100:g} % from it; "
        f"same: the whole interval within 1 ± {margin * 100:g} %; else ambiguous"
    )


def _alone(name: str, sides: Iterable[Side]) -> Iterator[str]:
    if titles := [cell_title(side.spec) for side in sides]:
        yield f"only in {name}: {', '.join(titles)}"


def cell_title(spec: CellSpec) -> str:
    """A side's cell in a line."""
    warmup = shown_of(spec, "warmup")
    return f"{spec.heading} · warm-up {warmup}" if warmup else spec.heading
