"""The judgement of each cell as a table: its verdict, the interval of its mean, what more warm-up would have done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cs336_tui.analysis.fields import FIELDS, VARIANTS, in_common, size_label
from cs336_tui.analysis.merge import Result
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.export.trust import Judged, cell_names, half_width, judged, trust_notes
from cs336_tui.stats.intervals import MeanInterval
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation

CAPTION = "How far these numbers can be trusted"


def verdict_table(results: Sequence[Result], *, notation: Notation = MILLISECONDS, caption: str = CAPTION) -> Table:
    """A row per cell that has timings; below it stands what is wrong with those in doubt."""
    found = judged(results)
    names = cell_names([each.result for each in found])
    return Table(
        columns=(
            Column("cell", left=True), Column("verdict", left=True), Column("n"), Column(f"mean ({notation.symbol})"),
            Column(f"95 % interval of the mean ({notation.symbol})"), Column("± %"), Column("effective n"),
            Column("warm-up", left=True),
        ),
        rows=tuple(_row(each, names[each.result.source, each.result.cell.cell], notation) for each in found),
        records=tuple(map(_record, found)),
        caption=caption,
        footnotes=(*trust_notes(results), *_variants([each.result for each in found]), *_interval_notes(found)),
        label="verdicts",
    )  # fmt: skip


def _row(each: Judged, name: str, notation: Notation) -> tuple[str, ...]:
    summary, judgement = each.result.cell.summary(each.result.state.ddof), each.judgement
    interval = judgement.interval
    return (
        name,
        judgement.label,
        str(summary.n if summary else 0),
        notation.of(summary, "mean_s"),
        _limits(interval, notation) if interval else UNKNOWN,
        half_width(interval) if interval else UNKNOWN,
        f"{interval.effective_n:.3g}" if interval else UNKNOWN,
        judgement.warmup_advice,
    )


def _limits(interval: MeanInterval, notation: Notation) -> str:
    """``152.80 to 153.60``: to the decimal places that its half width supports."""
    half = (interval.high - interval.low) / 2
    low, high = (notation.time(at, mean_s=interval.mean, std_s=half) for at in (interval.low, interval.high))
    return f"{low} to {high}"


def _record(each: Judged) -> dict[str, Value]:
    result, judgement, interval = each.result, each.judgement, each.judgement.interval
    spec = result.spec
    return {
        "session": result.session,
        "cell": result.cell.cell,
        "size": size_label(spec),
        "context": spec.context_length,
        "pass": spec.pass_,
        "precision": spec.precision,
        "variants": ", ".join(spec.variants),
        "device": spec.device,
        "verdict": judgement.label,
        "why": judgement.sentence,
        "notes": "; ".join(judgement.notes) or None,
        "not_observable": ", ".join(check.name for check in judgement.not_observable),
        "warmup_advice": judgement.warmup_advice,
        "n": result.cell.running.n,
        "mean_s": result.cell.running.mean if result.cell.running.n else None,
        "interval_low_s": interval.low if interval else None,
        "interval_high_s": interval.high if interval else None,
        "effective_n": interval.effective_n if interval else None,
        "interval_method": interval.method if interval else None,
    }


def _variants(results: Sequence[Result]) -> Iterator[str]:
    """What all cells are that is not as usual; where they differ their names say it."""
    if found := [f"{FIELDS[key].title} {shown}" for key in VARIANTS if (shown := in_common(results, key))]:
        yield f"every cell: {', '.join(found)}"


def _interval_notes(found: Sequence[Judged]) -> tuple[str, ...]:
    methods = dict.fromkeys(each.judgement.interval.method for each in found if each.judgement.interval)
    notes = [f"95 % interval: {method}" for method in methods]
    if notes:
        notes.append("effective n: how many independent steps would fix the mean as well")
    return tuple(notes)
