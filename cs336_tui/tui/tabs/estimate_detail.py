"""A cell in the Estimate tab: a row of the list, and everything predicted of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cs336_tui.analysis.estimates import Estimate, Target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import CATEGORIES, MemoryBlock, Prediction
from cs336_tui.export.tables import Column, Table
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.titles import cell_columns, told_variants, unique_names
from cs336_tui.tui.widgets.columns import shown_table
from cs336_tui.tui.widgets.lines import Line, Span, bar, labelled, line, wrapped

_LABEL = 16
_INDENT = " " * _LABEL
_WORTH_A_WORD = 5 * 10**5
"""Least bytes of a category that a low screen names."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BAR = 20
"""Most columns of a bar."""


class EstimateRow(NamedTuple):
    """A cell of the list."""

    spec: CellSpec
    estimate: Estimate | None
    measured_bytes: int | None = None
    """The allocator's peak, if the cell has run."""
    refused: str = ""
    """Why the device cannot run it; empty if it can."""
    unpredictable: str = ""
    """Why its needs could not be predicted; empty if they could."""


def table(rows: Sequence[EstimateRow]) -> Table:
    """The list, with columns of variants and of measured peaks if there are any."""

    def needs(key: str, title: str, rank: int, show: Callable[[Prediction], str]) -> Column[EstimateRow]:
        return Column(key, title, rank=rank,
                      text=lambda row: show(row.estimate.prediction) if row.estimate else format.NOT_YET)  # fmt: skip

    def measured(row: EstimateRow) -> str:
        return "" if row.measured_bytes is None else quantities.gigabytes(row.measured_bytes)

    variants = {key: unique_names(shown) for key, shown in told_variants(row.spec for row in rows).items()}
    ranks = {"context": 3, "batch": 8, "pass": 1, "precision": 4, "device": 9}
    some_measured = any(row.measured_bytes is not None for row in rows)
    return shown_table(rows, (
        *cell_columns(lambda row: row.spec, ranks, variants),
        needs("num_params", "params", 6, lambda found: quantities.count(found.num_params)),
        needs("flops", "TFLOP", 5, lambda found: f"{sum(found.flops.values()) / 1e12:.3g}"),
        needs("peak_bytes", "peak GB", 0, lambda found: quantities.gigabytes(found.peak_bytes)),
        *([Column[EstimateRow]("measured", rank=2, text=measured)] if some_measured else []),
        Column("step_time", "a step", rank=7,
               text=lambda row: row.estimate.step_time if row.estimate else format.NOT_YET),
    ))  # fmt: skip


def mark(row: EstimateRow) -> Span:
    """The mark at the end of a row: whether the cell fits."""
    found = row.estimate
    if row.refused:
        return Span("✗ not on it", "bad")
    if found is None and row.unpredictable:
        return Span("! unknown", "caution")
    if found is None or found.fits is None:
        return Span(format.NOT_YET if found is None else "? n/a", "muted")
    if not found.fits:
        return Span("✗ does not fit", "bad")
    return Span("! tight", "caution") if found.tight else Span("✓ fits", "good")


def flops(count: int) -> str:
    """``2.31 TFLOP``, ``48.0 GFLOP``, ``524 kFLOP``."""
    factor, prefix = next((pair for pair in _PREFIXES if count >= pair[0]), _PREFIXES[-1])
    shown = count / factor
    return f"{shown:.{max(0, 2 - len(str(int(shown))) + 1)}f} {prefix}FLOP"


def detail(row: EstimateRow, width: int, waiting: str = "") -> list[Line]:
    """Everything predicted of a cell; `waiting` if there is no prediction yet."""
    lines = [line((format.plain(row.spec.title), "title"))]
    if row.refused:
        lines += wrapped(f"✗ {row.refused}", width, "bad")
    if row.estimate is None and row.unpredictable:
        return lines + wrapped(f"! not predicted: {row.unpredictable}", width, "caution")
    if row.estimate is None:
        return lines + wrapped(waiting, width, "muted")
    found, prediction = row.estimate, row.estimate.prediction
    lines += labelled("parameters", _parameters(prediction), width)
    by_phase = " · ".join(f"{name} {flops(value)}" for name, value in prediction.flops.items() if value)
    lines += labelled("FLOPs a step", f"{flops(sum(prediction.flops.values()))}: {by_phase}", width)
    lines += labelled("a step takes", f"{found.step_time}, {found.basis}", width)
    lines += _memory(row, prediction, width)
    lines += labelled("residual stream", f"{prediction.residual_stream_bytes / 2**20:.2f} MiB a tensor", width)
    lines += _fit(found, width)
    if prediction.note:
        lines += [(), *wrapped(prediction.note, width, "caution")]
    if prediction.largest:
        lines += [(), line(("largest allocations at the peak", "title"))]
        for block in prediction.largest:
            lines += _allocation(block, width)
    return lines


def brief(row: EstimateRow) -> list[Line]:
    """The prediction in two lines, for a low screen."""
    if row.estimate is None and row.unpredictable and not row.refused:
        return [line((f"! not predicted: {format.plain(row.unpredictable)}", "caution")), ()]
    if row.estimate is None or row.refused:
        return []
    found, prediction = row.estimate, row.estimate.prediction
    stream = prediction.residual_stream_bytes
    categories = " · ".join(
        f"{name.replace('_', ' ')} {quantities.gigabytes(size)}"
        for name, size in sorted(prediction.by_category.items(), key=lambda item: -item[1])
        if size >= _WORTH_A_WORD
    )
    return [
        line(
            (f"{quantities.count(prediction.num_params)} parameters · ", "text"),
            (f"{flops(sum(prediction.flops.values()))} · ", "text"),
            (f"peak {format.fine_size(prediction.peak_bytes)} in {prediction.peak_phase}", "strong"),
        ),
        line(
            (found.verdict, "text"),
            (f" · residual stream {stream / 2**20:.3g} MiB" if stream else "", "text"),
            (f" · {categories} GB" if categories else "", "muted"),
        ),
    ]


def target_text(target: Target) -> str:
    """A device and its memory in words."""
    known = target.free_bytes is not None and target.free_bytes != target.capacity_bytes
    free = f", {format.size(target.free_bytes)} free" if known else ""
    return f"{format.plain(target.name)}: {format.size(target.capacity_bytes, 'memory unknown')}{free}"


def _amount(size: int) -> str:
    """Bytes as ``1.07 GB``, ``515 MB`` or ``0.12 MB``."""
    if size >= 10**9:
        return format.size(size)
    return f"{size / 1e6:.0f} MB" if size >= 10**8 else f"{size / 1e6:.{1 if size >= 10**7 else 2}f} MB"


def _parameters(prediction: Prediction) -> str:
    return f"{prediction.num_params:,} ({prediction.num_params_without_head:,} less the head)"


def _memory(row: EstimateRow, prediction: Prediction, width: int) -> list[Line]:
    """Peak and end of forward by category, each with its share of the peak as a bar."""
    peak, end = prediction.peak_bytes, prediction.forward_end_bytes
    measured = ""
    if row.measured_bytes:
        measured = f" · measured {format.size(row.measured_bytes)} ({(peak / row.measured_bytes - 1) * 100:+.1f} %)"
    room = max(min(_BAR, width - _LABEL - 24), 0)
    lines = [
        (),
        line(
            (f"{'peak':<{_LABEL}}", "muted"),
            (f"{format.size(peak)} in {prediction.peak_phase}", "strong"),
            (measured, "text"),
        ),
        line((f"{'':<{_LABEL}}{'at the peak':>11} {'':<{room}} {'end of forward':>15}", "muted")),
    ]
    for name in CATEGORIES:
        at_peak, at_end = prediction.by_category.get(name, 0), prediction.forward_end_by_category.get(name, 0)
        if at_peak or at_end:
            lines.append(
                line(
                    (f"{name.replace('_', ' '):<{_LABEL}}", "muted"),
                    f"{_amount(at_peak):>11} ",
                    (bar(at_peak / peak if peak else 0, room), "memory"),
                    f" {_amount(at_end):>15}",
                )
            )
    lines.append(line(f"{'in all':<{_LABEL}}{format.size(peak):>11} {'':<{room}} {format.size(end):>15}"))
    if prediction.forward_peak_bytes != peak:
        alone = f"forward alone peaks at {format.size(prediction.forward_peak_bytes)}"
        lines.append(line((_INDENT + alone, "muted")))
    return [*lines, ()]


def _fit(found: Estimate, width: int) -> list[Line]:
    target = found.target
    role = "bad" if found.fits is False else "caution" if found.tight else "good" if found.fits else "muted"
    besides = format.size(target.context_bytes)
    return [
        *labelled("device", f"{target_text(target)} ({target.source})", width),
        *labelled("needs", f"{format.size(found.needed_bytes)}: the peak and {besides} of the process itself", width),
        *labelled("fits", found.verdict, width, role=role),
    ]


def _allocation(block: MemoryBlock, width: int) -> list[Line]:
    site = block.site
    shape = "×".join(map(str, block.shape)) if block.shape is not None else ""
    where = [
        f"{block.category.replace('_', ' ')}",
        " ".join(part for part in (site.range or site.op, "(backward)" if site.backward else "") if part),
        " ".join(part for part in (block.dtype or "", shape) if part),
        site.frame,
    ]
    text = " · ".join(part for part in where if part)
    first, *rest = wrapped(text, width - 12) or [()]
    return [(Span(f"{_amount(block.bytes):>10}  ", "strong"), *first), *((Span(" " * 12), *row) for row in rest)]
