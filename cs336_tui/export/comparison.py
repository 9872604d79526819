"""A comparison of two sessions, or of two cells, as a table: a row a pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from cs336_tui.analysis.comparison import Comparison, Pair, Side
from cs336_tui.analysis.fields import size_label
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import warmup_words
from cs336_tui.export.provenance import std_kind
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation
from cs336_tui.stats.summaries import Summary


def comparison_table(
    comparison: Comparison, *, notation: Notation = MILLISECONDS, caption: str = "", doubts: Sequence[str] = ()
) -> Table:
    """Both sides' mean ± std, their ratio with its interval and the verdict; below, `doubts` about the numbers
    of either and what differs between the sides."""
    unit = notation.symbol
    columns = (
        Column("cell", left=True),
        *(Column(header) for header in (f"A ± std ({unit})", f"B ± std ({unit})", "A / B", "interval")),
        Column("A is", left=True),
    )
    return Table(
        columns=columns,
        rows=tuple(_row(pair, notation) for pair in comparison.pairs),
        records=tuple(map(_record, comparison.pairs)),
        caption=caption or f"Step times of A ({comparison.a}) over those of B ({comparison.b})",
        footnotes=(*doubts, *_notes(comparison)),
        label="comparison",
    )


def _row(pair: Pair, notation: Notation) -> tuple[str, ...]:
    ratio = pair.ratio
    return (
        _title(pair.a.spec),
        _mean(pair.a, notation),
        _mean(pair.b, notation),
        f"{ratio.ratio:.4g}" if ratio else UNKNOWN,
        ratio.bounds(".4g") if ratio else "",
        pair.verdict if ratio else "",
    )


def _mean(side: Side, notation: Notation) -> str:
    return notation.mean_and_std(side.summary) if side.summary else side.note


def _record(pair: Pair) -> dict[str, Value]:
    spec, ratio = pair.a.spec, pair.ratio
    record: dict[str, Value] = {
        "size": size_label(spec), "context": spec.context_length, "batch": spec.batch_size, "pass": spec.pass_,
        "variants": ", ".join(spec.variants),
        "precision": spec.precision, "device": spec.device, "warmup": spec.warmup_steps,
    }  # fmt: skip
    for name, side in (("a", pair.a), ("b", pair.b)):
        summary: Summary | None = side.summary
        record |= {
            f"{name}_mean_s": summary.mean_s if summary else None,
            f"{name}_std_s": summary.std_s if summary else None,
            f"{name}_n": summary.n if summary else 0,
            f"{name}_runs": side.runs,
            f"{name}_note": side.note or None,
        }
    record |= {name: getattr(ratio, name) if ratio else None for name in ("ratio", "low", "high", "level", "method")}
    return record | {"verdict": pair.verdict, "differs": "; ".join(pair.differs)}


def _notes(comparison: Comparison) -> Iterator[str]:
    yield f"interval: {comparison.level * 100:g} %, of the ratio of the means"
    yield from dict.fromkeys(f"method: {pair.ratio.method}" for pair in comparison.pairs if pair.ratio)
    yield (
        f"faster and slower: the whole interval on one side of 1 and the ratio at least {comparison.margin * 100:g} % "
        f"from it; same: the whole interval within 1 ± {comparison.margin * 100:g} %; else ambiguous"
    )
    ddofs = {side.summary.ddof for pair in comparison.pairs for side in (pair.a, pair.b) if side.summary}
    yield from (f"std: {std_kind(ddof)}" for ddof in sorted(ddofs))
    yield from (f"in every pair, A | B: {note}" for note in comparison.notes)
    yield from (f"{_title(pair.a.spec)}, A | B: {'; '.join(pair.differs)}" for pair in comparison.pairs if pair.differs)
    yield from comparison.mixed
    yield from _alone("A", comparison.only_a)
    yield from _alone("B", comparison.only_b)


def _alone(name: str, sides: Iterable[Side]) -> Iterator[str]:
    if titles := [_title(side.spec) for side in sides]:
        yield f"only in {name}: {', '.join(titles)}"


def _title(spec: CellSpec) -> str:
    return f"{spec.title} · batch {spec.batch_size} · warm-up {warmup_words(spec.warmup_steps, spec.warmup_auto)}"
