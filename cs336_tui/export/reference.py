"""Own cells beside published ones, each with what differs, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cs336_tui.analysis.fields import FIELDS, device_label, machine
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled
from cs336_tui.analysis.reference import REMARK, Match, Published, matching
from cs336_tui.export.footnotes import provenance_notes
from cs336_tui.export.results import TableError, data_value
from cs336_tui.export.tables import Column, Table, Value, attributes, cell_record
from cs336_tui.stats.quantities import MILLISECONDS, UNKNOWN, Notation
from cs336_tui.stats.summaries import Summary


def reference_table(
    results: Sequence[Result],
    rows: Sequence[Published] | None = None,
    *,
    notation: Notation = MILLISECONDS,
    caption: str = "",
) -> Table:
    """A row for each measured cell (its repeats together), then one for each reference point that matches it.

    `rows` are the published and a person's own reference points unless given. Raises `TableError` without measured
    cells, `ReferenceFileError` when the person's own cannot be read.
    """
    groups = grouped(measured(results), lambda result: (result.spec, machine(result), result.session))
    if not groups:
        raise TableError("no cell has measured steps to set beside published ones")
    texts: list[tuple[str, ...]] = []
    records: list[dict[str, Value]] = []
    for (spec, _, session), cells in groups.items():
        found = pooled(cells, ddof_of(results))
        assert found is not None, "measured cells have steps"
        matches = matching(spec, cells[0].cell.in_force, rows)
        texts.append(_own_text(cells[0], found, notation, matched=bool(matches)))
        texts += [_text(match, found, notation) for match in matches]
        records += [_record(cells[0], found, session, match) for match in matches or (None,)]
    return Table(
        columns=(
            Column("cell", left=True),
            *(Column(header) for header in (f"mean ({notation.symbol})", f"std ({notation.symbol})", "here / there")),
            *(Column(header, left=True) for header in ("device", "source", "what differs")),
        ),
        rows=tuple(texts),
        records=tuple(records),
        caption=caption or "Own step times beside published ones",
        footnotes=tuple(_notes(results)),
        label="reference",
    )


def _own_text(result: Result, found: Summary, notation: Notation, *, matched: bool) -> tuple[str, ...]:
    spec = result.spec
    title = (
        f"{spec.size_label} · {spec.pass_} · {spec.precision} · ctx {spec.context_length} · batch {spec.batch_size} · "
        f"warm-up {FIELDS['warmup'].show(result)}{''.join(f' · {variant}' for variant in spec.variants)}"
    )
    remark = "" if matched else "nothing published for this size and pass"
    mean, std = notation.of(found, "mean_s"), notation.of(found, "std_s")
    return title, mean, std, "", device_label(result), f"here: {result.session}", remark


def _text(match: Match, found: Summary, notation: Notation) -> tuple[str, ...]:
    row = match.row
    mean_s, std_s = row.mean_ms / 1e3, None if row.std_ms is None else row.std_ms / 1e3
    # Without a std nothing says which digits count, so that all are kept as they were published.
    mean = f"{notation.scaled(mean_s):.6g}" if std_s is None else notation.time(mean_s, mean_s=mean_s, std_s=std_s)
    std = UNKNOWN if std_s is None else notation.time(std_s, mean_s=mean_s, std_s=std_s)
    ratio = f"{found.mean_s / mean_s:.2f}" if found.mean_s and mean_s else UNKNOWN
    caveats = "; ".join(match.caveats) or "nothing that is stated"
    return "", mean, std, ratio, row.device, row.source, caveats


def _record(result: Result, found: Summary, session: str, match: Match | None) -> dict[str, Value]:
    spec, row = result.spec, match.row if match else None
    return {
        "session": session, **cell_record(spec), "device": device_label(result),
        "warmup": data_value("warmup", FIELDS["warmup"].show(result)),
        **attributes(found, "mean_s", "std_s", "n"), **attributes(row, "source", "device", prefix="reference_"),
        "reference_mean_s": row.mean_ms / 1e3 if row else None,
        "reference_std_s": row.std_ms / 1e3 if row and row.std_ms is not None else None,
        "caveats": "; ".join(match.caveats) if match else None,
    }  # fmt: skip


def _notes(results: Sequence[Result]) -> Iterator[str]:
    yield "here / there: own mean step time over the published one; below 1, here is faster"
    yield f"published times are points to look at, not truth: {REMARK}"
    yield from provenance_notes(results)
