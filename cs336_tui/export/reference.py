"""Own cells beside published ones, each with what differs, as tables: step times, peaks of memory, kernels."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cs336_tui.analysis.effects import gradient_sync
from cs336_tui.analysis.fields import FIELDS, device_label, machine
from cs336_tui.analysis.merge import Result, ddof_of, grouped, measured, pooled
from cs336_tui.analysis.reference import Match, matching, nothing_published, remark_on
from cs336_tui.analysis.reference_profiles import KernelsBeside, PeakBeside, kernel_name, kernels_beside, peaks_beside
from cs336_tui.export.subjects.results import TableError
from cs336_tui.export.subjects.results_columns import data_value
from cs336_tui.export.writing.footnotes import provenance_notes
from cs336_tui.export.writing.tables import Column, Table, Value, attributes, cell_record
from cs336_tui.export.writing.verdicts import doubt_word
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import MILLISECONDS, NONE, UNKNOWN, Notation, gigabytes, tenth_percent
from cs336_tui.stats.summaries import Summary

_Texts = tuple[str, ...]


def reference_tables(
    results: Sequence[Result],
    *,
    states: Sequence[SessionState] = (),
    notation: Notation = MILLISECONDS,
    caption: str = "",
) -> tuple[Table, ...]:
    """Step times, peaks of memory and kernels beside published ones, each a table if there is something to show.

    `states` are the sessions, for their reports; unless given, those of the results. The `caption` is the first one's.
    Raises as `reference_table`.
    """
    states = states or tuple({id(result.state): result.state for result in results}.values())
    found = [_peaks_table(peaks_beside(states, results)), _kernels_table(kernels_beside(states, results))]
    tables = [table for table in found if table.rows]
    if measured(results) or not tables:
        tables.insert(0, reference_table(results, notation))
    first, *others = tables
    return (msgspec.structs.replace(first, caption=caption or first.caption), *others)


def reference_table(results: Sequence[Result], notation: Notation = MILLISECONDS) -> Table:
    """A row for each measured cell (its repeats together), then one for each reference point that matches it.

    Raises `TableError` without measured cells, `ReferenceFileError` when a person's own reference points cannot be
    read.
    """
    groups = grouped(measured(results), lambda result: (result.spec, machine(result), result.session))
    if not groups:
        raise TableError("no cell has measured steps to set beside published ones")
    texts: list[_Texts] = []
    records: list[dict[str, Value]] = []
    doubts: list[str] = []
    for (spec, _, _), cells in groups.items():
        found = pooled(cells, ddof_of(results))
        assert found is not None, "measured cells have steps"
        matches = matching(spec, cells[0].cell.in_force)
        texts.append(_own_text(cells, found, notation, matched=bool(matches)))
        texts += [_text(match, found, notation) for match in matches]
        records += [_record(cells[0], found, match) for match in matches or (None,)]
        doubts += [doubt_word(cells), *("" for _ in matches)]
    notes = (
        "here / there: own mean step time over the published one; below 1, here is faster",
        f"published times are for orientation, not truth: {remark_on(result.spec for result in results)}",
        *provenance_notes(results),
    )
    figures = (f"mean ({notation.symbol})", f"std ({notation.symbol})", "here / there")
    table = _table("step times", ("cell",), figures, texts, records, notes, label="reference")
    return msgspec.structs.replace(table, doubts=tuple(doubts))


def _table(
    what: str,
    names: Sequence[str],
    figures: Sequence[str],
    texts: Sequence[_Texts],
    records: Sequence[dict[str, Value]],
    footnotes: tuple[str, ...],
    *,
    label: str,
) -> Table:
    """Own rows, each followed by those of its reference points: columns of names, of figures, and of the source."""
    left = (Column(header, left=True, rank=rank) for rank, header in enumerate(("device", "source", "what differs")))
    columns: tuple[Column, ...] = (*(Column(name, left=True) for name in names), *map(Column, figures), *left)
    caption, rows = f"Own {what} beside published ones", tuple(texts)
    return Table(columns=columns, rows=rows, records=tuple(records), caption=caption, footnotes=footnotes, label=label)


def _own_text(cells: Sequence[Result], found: Summary, notation: Notation, *, matched: bool) -> _Texts:
    result, remarks = cells[0], list[str]()
    sync = gradient_sync(cells, found.ddof)
    if sync and sync.last.mean_s and found.mean_s:
        # Of the rank that waits for none.
        share = tenth_percent(sync.last.mean_s / found.mean_s)
        remarks.append(f"of it {MILLISECONDS.of(sync.last, 'mean_s')} ms gradient sync here ({share})")
    if not matched and (nothing := nothing_published(result.spec)):
        remarks.append(nothing)
    mean, std = notation.of(found, "mean_s"), notation.of(found, "std_s")
    name = _cell(result, f"warm-up {FIELDS['warmup'].show(result)}")
    return name, mean, std, "", *_here(result), "; ".join(remarks)


def _text(match: Match, found: Summary, notation: Notation) -> _Texts:
    row = match.row
    mean_s, std_s = (row.mean_ms or 0.0) / 1e3, None if row.std_ms is None else row.std_ms / 1e3
    # Without a std nothing says which digits count, so that all are kept as they were published.
    mean = f"{notation.scaled(mean_s):.6g}" if std_s is None else notation.time(mean_s, mean_s=mean_s, std_s=std_s)
    std = UNKNOWN if std_s is None else notation.time(std_s, mean_s=mean_s, std_s=std_s)
    return "", mean, std, _ratio(found.mean_s, mean_s), *_there(match)


def _record(result: Result, found: Summary, match: Match | None) -> dict[str, Value]:
    row = match.row if match else None
    return {
        **_cell_record(result),
        "warmup": data_value("warmup", FIELDS["warmup"].show(result)),
        **attributes(found, "mean_s", "std_s", "n"), **attributes(row, "source", "device", prefix="reference_"),
        "reference_mean_s": row.mean_ms / 1e3 if row and row.mean_ms is not None else None,
        "reference_std_s": row.std_ms / 1e3 if row and row.std_ms is not None else None,
        "caveats": "; ".join(match.caveats) if match else None,
    }  # fmt: skip


def _peaks_table(found: Sequence[PeakBeside]) -> Table:
    """A row for each peak of a cell, then one for each published one of the same."""
    texts: list[_Texts] = []
    records: list[dict[str, Value]] = []
    for beside in found:
        result, own_bytes = beside.result, beside.peak_bytes
        ending = result.ending if result.ending == "OOM" else ""
        seen = ", ".join(filter(None, (beside.seen, ending))) or "not known"
        texts.append((_cell(result), beside.name, gigabytes(own_bytes), "", *_here(result), seen))
        for match in beside.matches:
            row, there = match.row, match.row.peak_bytes
            texts.append(("", "", gigabytes(there), _ratio(own_bytes, there), *_there(match)))
            records.append({
                **_cell_record(result), "part": beside.part or None,
                "peak_bytes": own_bytes, "seen": beside.seen or None,
                **attributes(row, "source", "device", "peak_bytes", "peak", prefix="reference_"),
                "reference_pass": row.pass_, "caveats": "; ".join(match.caveats),
            })  # fmt: skip
    names, figures = ("cell", "of"), ("peak (GB)", "here / there")
    return _table("peaks of memory", names, figures, texts, records, _PEAKS_NOTES, label="reference-peaks")


_PEAKS_NOTES = (
    "own peaks: of a whole pass the allocator's count while timed, else the memory report's, else predicted; "
    "of a part of a train-step of the memory report or predicted",
    "1 GB is 10⁹ bytes: what was published in GiB is converted",
    "published peaks depend on what lives beside the pass (gradients and optimizer state of steps before, an "
    "earlier graph that is kept), and on what their author's operations keep for the backward",
)


def _kernels_table(found: Sequence[KernelsBeside]) -> Table:
    """A row for each part of a cell's step, then one for each published top kernel or share of the same part."""
    texts: list[_Texts] = []
    records: list[dict[str, Value]] = []
    for beside in found:
        result, part, profiled = beside.part.result, beside.part.part, beside.part.profiled
        top = profiled.top if profiled else None
        figures = (top.short, str(top.instances), tenth_percent(top.share)) if top else (NONE, NONE, NONE)
        matmul = tenth_percent(profiled.matmul_share if profiled else None)
        seen = "" if profiled else "not profiled: cs336-tui kernels makes a profile"
        texts.append((_cell(result), part, *figures, matmul, *_here(result), seen))
        for match in beside.matches:
            row = match.row
            name = kernel_name(row) or NONE
            launches = NONE if row.top_launches is None else str(row.top_launches)
            shares = (NONE if each is None else f"{each:.1f} %" for each in (row.top_percent, row.matmul_percent))
            texts.append(("", "", name, launches, *shares, *_there(match)))
            records.append({
                **_cell_record(result), "part": part, **attributes(top, "name", "instances", "share", prefix="top_"),
                **attributes(profiled, "matmul_share"),
                **attributes(row, "source", "device", "top_kernel", "top_launches", prefix="reference_"),
                "reference_top_share": _share(row.top_percent), "reference_matmul_share": _share(row.matmul_percent),
                "reference_pass": row.pass_, "caveats": "; ".join(match.caveats),
            })  # fmt: skip
    note = (
        "top kernel: the one with the most time in this part of the step; shares: of the part's kernel time; "
        f"{NONE}: not published, or not profiled here"
    )
    names, figures = ("cell", "part", "top kernel"), ("launches", "its share", "matrix multiply")
    return _table("kernels", names, figures, texts, records, (note,), label="reference-kernels")


def _cell_record(result: Result) -> dict[str, Value]:
    return {"session": result.session, **cell_record(result.spec), "device": device_label(result)}


def _cell(result: Result, *more: str) -> str:
    spec = result.spec
    if spec.is_collective:
        backend = [spec.backend_in_use] if spec.backend == "auto" else []
        return " · ".join((spec.title, *backend, *more))
    named = (spec.size_label, spec.pass_, spec.precision, f"ctx {spec.context_length}", f"batch {spec.batch_size}")
    return " · ".join((*named, *more, *spec.variants))


def _ratio(here: float | None, there: float | None) -> str:
    return f"{here / there:.2f}" if here and there else UNKNOWN


def _share(percent: float | None) -> float | None:
    return None if percent is None else round(percent / 100, 6)


def _here(result: Result) -> tuple[str, str]:
    return device_label(result), f"here: {result.session}"


def _there(match: Match) -> tuple[str, str, str]:
    return match.row.device, match.row.source, "; ".join(match.caveats) or "nothing that is stated"
