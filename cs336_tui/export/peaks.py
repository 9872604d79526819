"""Measured peaks of devices as a table, the data sheet's beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from cs336_tui.analysis.roofline import doubt, sheet_ceiling
from cs336_tui.config.spec import Precision
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.peaks import DevicePeak
from cs336_tui.export.tables import Column, Table, Value, attributes
from cs336_tui.stats.quantities import UNKNOWN, UNSTATED, Rate, bandwidth, counted, percent

NOISY = 0.02
"""From this spread on a peak is marked."""
METHOD = (
    "matmul: the fastest of the three products of a linear layer over square matrices, 2 n³ FLOPs each, median of "
    "repeated timings; copy: bytes read and written by a large copy"
)


class PeakRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a device and a precision: a peak, or why there is none."""

    device: DeviceInfo
    precision: Precision
    peak: DevicePeak | None = None
    error: str = ""


def peak_table(rows: Sequence[PeakRow], caption: str = "Peaks measured on the spot") -> Table:
    """A row a device and precision."""
    measured = [row.peak.best.flops_per_s if row.peak else None for row in rows]
    rate = Rate.for_all([*measured, *(flops for row in rows if (flops := _sheet_flops(row)))])

    def spread(row: PeakRow, of: Literal["best", "copy"]) -> float:
        return getattr(row.peak, of).spread if row.peak else 0.0

    columns: tuple[Column[PeakRow], ...] = (
        Column("device", left=True),
        Column("device_name", "name", rank=3, left=True),
        Column("precision", left=True),
        Column(
            "matmul_flops_per_s",
            f"matmul ({rate.name})",
            text=lambda row: _marked(rate.show(row.peak.best.flops_per_s if row.peak else None), spread(row, "best")),
        ),
        Column("matmul_size", "size", rank=5),
        Column("sheet_flops_per_s", f"data sheet ({rate.name})", rank=1, show=lambda flops: rate.show(flops, UNSTATED)),
        Column(
            "share_of_sheet",
            "% of data sheet",
            text=lambda row: percent(_share(row), UNKNOWN if _sheet_flops(row) else UNSTATED),
        ),
        Column(
            "copy_bytes_per_s",
            "copy (GB/s)",
            text=lambda row: _marked(bandwidth(row.peak.copy.bytes_per_s if row.peak else None), spread(row, "copy")),
        ),
        Column("sheet_bytes_per_s", "data sheet (GB/s)", rank=4, show=lambda moved: bandwidth(moved, UNSTATED)),
        Column("at", "measured", rank=6, left=True, text=lambda row: _when(row.peak)),
    )
    notes = (METHOD, *_notes(rows))
    return Table.of(rows, columns, record=_record, caption=caption, footnotes=notes, label="peaks", doubt=_doubt)


def _doubt(row: PeakRow) -> str:
    """Why a measured peak is in doubt, in a word; ``failed`` of one that is not there."""
    peak = row.peak
    if peak is None:
        return "failed"
    if peak.disturbance:
        return "contended"
    return "noisy" if max(peak.best.spread, peak.copy.spread) > NOISY else "doubtful" if doubt(peak) else ""


def _sheet_flops(row: PeakRow) -> float | None:
    sheet = sheet_ceiling(row.device, row.precision)
    return sheet.flops_per_s if sheet else None


def _share(row: PeakRow) -> float | None:
    flops = _sheet_flops(row)
    return row.peak.best.flops_per_s / flops if row.peak and flops else None


_TRIAL = ("layout", "median_s", "fastest_s", "timings", "spread")


def _record(row: PeakRow) -> dict[str, Value]:
    peak, sheet = row.peak, sheet_ceiling(row.device, row.precision)
    return {
        **attributes(row.device, device="name", device_name="label"),
        "precision": row.precision,
        **attributes(peak and peak.best, "flops_per_s", "size", *_TRIAL, prefix="matmul_"),
        "sizes": tuple(float(trial.size) for trial in peak.matmul) if peak else None,
        "sizes_flops_per_s": tuple(trial.flops_per_s for trial in peak.matmul) if peak else None,
        "sheet_flops_per_s": _sheet_flops(row),
        "share_of_sheet": _share(row),
        **attributes(peak and peak.copy, "bytes_per_s", "bytes", "spread", prefix="copy_"),
        **attributes(sheet, "bytes_per_s", "source", prefix="sheet_"),
        **attributes(peak, "dtype", "matmul_precision", "allow_tf32", "threads", "torch", "at", "busy_cores"),
        **attributes(peak, others_on_gpu="others", disagreement="disagreement"),
        "kept": not peak.disturbance if peak else None,
        "note": "; ".join(_said(row)),
    }


def _notes(rows: Sequence[PeakRow]) -> Iterator[str]:
    if any(row.peak and max(row.peak.best.spread, row.peak.copy.spread) > NOISY for row in rows):
        yield f"~ noise had not settled: the 95 % interval of the median is wider than ± {NOISY * 100:g} %"
    for device in dict.fromkeys(row.device for row in rows):
        of_device = [row for row in rows if row.device == device]
        sheets = [sheet for row in of_device if (sheet := sheet_ceiling(device, row.precision))]
        yield f"{device.name}: {sheets[0].source if sheets else 'data sheet: unknown'}"
        yield from (f"{device.name}, {text}" for text in dict.fromkeys(_in_force(row) for row in of_device if row.peak))
        for row in of_device:
            yield from (f"{device.name}, {row.precision}: {text}" for text in _said(row))


def _said(row: PeakRow) -> tuple[str, ...]:
    peak = row.peak
    kept = f"not kept: {peak.disturbance}" if peak and peak.disturbance else ""
    return tuple(filter(None, (row.error, kept, *((doubt(peak), peak.note) if peak else ()))))


def _in_force(row: PeakRow) -> str:
    peak = row.peak
    assert peak is not None
    parts = (
        f"{row.precision}: {peak.dtype}",
        f"float32 matmul precision {peak.matmul_precision}",
        {True: "TF32 on", False: "TF32 off", None: ""}[peak.allow_tf32],
        counted(peak.threads, "thread") if peak.device == "cpu" else "",
        f"torch {peak.torch}",
    )
    return ", ".join(filter(None, parts))


def _marked(text: str, spread: float) -> str:
    return f"{text}~" if spread > NOISY else text


def _when(peak: DevicePeak | None) -> str:
    """Local time."""
    return datetime.fromtimestamp(peak.at).strftime("%Y-%m-%d %H:%M") if peak else "failed"
