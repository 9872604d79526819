"""Measured cells under the ceilings of their devices: a table, and a roofline to look at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import cycle
from math import log
from operator import itemgetter, truediv
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, warmup_value
from cs336_tui.analysis.grouping import ALWAYS, SHARED, TELLING, label, shared, telling
from cs336_tui.analysis.measures import MEASURES
from cs336_tui.analysis.merge import Result, measured
from cs336_tui.analysis.roofline import Ceiling, RooflinePoint, doubt, sheet_ceiling, why_unknown
from cs336_tui.config.spec import Precision
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.peaks import WRONG_PEAK, DevicePeak
from cs336_tui.export.subjects.results_columns import percent_of_measured
from cs336_tui.export.writing.drawing import LOOKS, Absent, Drawing, plain_ticks
from cs336_tui.export.writing.tables import Column, Source, Table, Value, attributes, cell_record
from cs336_tui.stats.quantities import NOT_MEASURED, UNKNOWN, UNSTATED, Rate, bandwidth, counted, percent, rate_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_PANELS = 4
MOST_POINTS = 40
"""More of each cannot be told apart in a figure; its title then says how many cells there are."""
_LEGEND_COLUMNS = 110
"""Characters that fit beside one another below the narrowest figure."""
_NAME_COLUMNS = 95
"""Characters of a cell's name in a line of its own, beside its marker."""
_Looks = dict[str, tuple[str, str]]
"""Colour and marker of each precision."""
_Line = Literal["-", "-.", "--"]

INTENSITY = (
    "intensity: these FLOPs over the least bytes that a step must move (parameters, gradients and optimizer state; no "
    "activations), so at most this; bandwidth-bound is certain; compute-bound may not be"
)


def left_out(results: Iterable[Result]) -> tuple[str, ...]:
    """Why measured cells have no place under a roofline, a line each reason."""
    return tuple(dict.fromkeys(f"left out: {why}" for result in measured(results) if (why := why_unknown(result))))


def roofline_table(points: Sequence[RooflinePoint], left_out: Sequence[str] = ()) -> Table:
    """A row a cell: how fast it was, of what share of its ceilings, and which side of these bounds it.

    `left_out` says which cells have no row and why.
    """
    keys = naming_keys(points)
    rate = Rate.for_all(point.flops_per_s for point in points)
    alike = len({point.device_name for point in points}) < len({point.machine for point in points})
    columns: list[Source[RooflinePoint]] = [
        _record_of_cell,
        Column("cell", left=True, text=lambda point: _name(point.result, keys)),
        Column("device", rank=5, left=True, text=lambda point: point.machine if alike else point.device_name),
        Column("flops_per_s", f"achieved ({rate.name})", show=rate.show, short=rate.name),
        lambda point: attributes(point.sheet, *_OF_CEILING, prefix="sheet_"),
        Column("share_of_sheet", "% of data sheet", show=lambda share: percent(share, UNSTATED), short="% sheet"),
        lambda point: attributes(point.measured, *_OF_CEILING, "doubt", prefix="measured_"),
        Column("share_of_measured", "% of measured peak", rank=4, show=_percent_of_measured, short="% peak"),
        Column("intensity", "intensity (FLOP/B)", rank=2, show="{:.4g}".format, short="FLOP/B"),
        Column("bound", left=True),
        lambda point: attributes(point, min_bytes_per_s="bytes_per_s", min_share_of_bandwidth="share_of_bandwidth"),
    ]
    if any(point.bound == "bandwidth" for point in points):

        def least(point: RooflinePoint, text: str) -> str:
            """A lower limit of what is achieved, if bandwidth is the bound."""
            return f"≥ {text}" if point.bound == "bandwidth" else UNKNOWN

        moved = Column[RooflinePoint]("min_bytes_per_s", "bandwidth (GB/s)", short="GB/s")
        share = Column[RooflinePoint]("min_share_of_bandwidth", "% of bandwidth", rank=3)
        columns.append(moved._replace(text=lambda point: least(point, bandwidth(point.bytes_per_s))))
        columns.append(share._replace(text=lambda point: least(point, percent(point.share_of_bandwidth))))
    notes = (*left_out, *((MEASURES["flops"].note, INTENSITY, *ceiling_notes(points)) if points else ()))
    return Table.of(points, columns, caption="Achieved FLOP/s against the peak", footnotes=notes, label="roofline")


def naming_keys(points: Sequence[RooflinePoint]) -> tuple[str, ...]:
    """The fields that name a cell on its device: `ALWAYS`, and others where they tell cells apart."""
    results = [point.result for point in points]
    return (*ALWAYS, *telling(results, but=(*ALWAYS, "device", "machine"), among=(*TELLING, "repeat")))


def _name(result: Result, keys: Sequence[str]) -> str:
    """The cell in these fields, and in which variants it is."""
    usual = {key: (field.usual, OWN) for key, field in FIELDS.items() if field.usual and key not in keys}
    return label(result, (*keys, *(key for key, plain in usual.items() if FIELDS[key].show(result) not in plain)))


_OF_CEILING = ("flops_per_s", "bytes_per_s", "source")
_percent_of_measured = partial(percent_of_measured, unknown=NOT_MEASURED)


def _record_of_cell(point: RooflinePoint) -> dict[str, Value]:
    result, spec = point.result, point.result.spec
    return {
        **{key: FIELDS[key].show(result) for key in ("session", "size", "context", "batch", "pass", "device")},
        **cell_record(spec, "variants"),
        "warmup": warmup_value(spec),
        "repeat": result.cell.repeat,
        "device_name": point.device_name,
        "precision": spec.precision,
        **attributes(point, precision_in_force="precision", flops="flops", min_bytes_moved="bytes_moved"),
        "step_s": point.step_s,
    }


def ceiling_notes(points: Sequence[RooflinePoint], *, sheet: bool = True, measured: bool = True) -> Iterator[str]:
    """The peaks that the shares are of: the data sheet's peaks, of the measured ones, or of both are shares of."""
    if sheet:
        sheets = dict.fromkeys((point.machine, point.sheet.source if point.sheet else None) for point in points)
        for name, source in sheets:
            yield f"{name}: {source or 'data sheet: unknown'}"
    if measured:
        yield from _measured_notes(points)
    if sheet and any((point.share_of_sheet or 0) > 1 for point in points):
        yield (
            "above 100 % of the data sheet: the GPU ran at a higher clock than is stated, or is another than its name "
            "says, or computed in a lower precision than was read back"
        )
    asked = [(point.result.spec.precision, point.precision) for point in points if sheet or measured]
    for wanted, found in dict.fromkeys(pair for pair in asked if pair[0] != pair[1]):
        yield f"{wanted} was asked for, {found or 'another setting'} was in force and is what the peaks are of"


def _measured_notes(points: Sequence[RooflinePoint]) -> Iterator[str]:
    for name, precision, ceiling in dict.fromkeys((point.machine, point.precision, point.measured) for point in points):
        if ceiling:
            rates = f"{rate_text(ceiling.flops_per_s)} and {bandwidth(ceiling.bytes_per_s)} GB/s"
            yield f"{name}, {precision}: {rates}, {ceiling.source}"
    if any(point.measured is None and point.precision for point in points):
        yield "not measured: run cs336-tui peak on the machine of these cells"
    if any(1 < (point.share_of_measured or 0) <= WRONG_PEAK for point in points):
        yield (
            "above 100 % of the measured peak: the device was slower when that was measured; "
            "repeat it with cs336-tui peak --refresh"
        )


def roofline_figure(points: Sequence[RooflinePoint], left_out: Sequence[str] = ()) -> Drawing | Absent:
    """FLOP/s against FLOPs per byte, both logarithmic: a panel a device, its ceilings as lines, its cells numbered.

    `left_out` says which cells are not there and why.
    """
    name = "roofline"
    if not points:
        return Absent(name, "; ".join(left_out) or "no cell was measured")
    machines = list(dict.fromkeys(point.machine for point in points))[:MOST_PANELS]
    shown = [point for point in points if point.machine in machines][:MOST_POINTS]
    numbered = list(enumerate(shown, 1))
    panels = {each: [(number, point) for number, point in numbered if point.machine == each] for each in machines}
    drawn = {machine: members for machine, members in panels.items() if members}
    keys = naming_keys(points)
    precisions = dict.fromkeys(str(point.precision) for point in shown)
    looks = dict(zip(precisions, cycle(LOOKS), strict=False))

    def draw(figure: Figure) -> None:
        from matplotlib.lines import Line2D

        axes = figure.subplots(1, len(drawn), squeeze=False)[0]
        for axis, (machine, members) in zip(axes, drawn.items(), strict=True):
            _panel(axis, members, looks)
            axis.set_title(machine)
        handles = [Line2D([], [], label=names[number], **_marker(point, looks)) for number, point in numbered]
        for style, text in dict.fromkeys(_line(point, ceiling) for point in shown for ceiling in _ceilings(point)):
            handles.append(Line2D([], [], color="#333333", linestyle=style, label=text))
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8)
        if left_out:
            legend.set_title("\n".join(said))
            legend.get_title().set_fontsize(8)

    some = f" (the first {len(shown)} of {len(points)} cells)" if len(shown) < len(points) else ""
    said = [line for text in left_out for line in wrap(text, _LEGEND_COLUMNS)]
    names = {
        number: "\n    ".join(wrap(f"{number}: {_name(point.result, keys)}", _NAME_COLUMNS, break_on_hyphens=False))
        for number, point in numbered
    }
    columns = 2 if max(map(len, names.values())) <= _LEGEND_COLUMNS / 2 else 1
    lines = sum(text.count("\n") + 1 for text in names.values())
    height = 4.4 + 0.19 * (lines + 3) / columns + 0.17 * len(said)
    same = shared([point.result for point in shown], (*ALWAYS, *VARIANTS, "device"), among=SHARED)
    title = f"Roofline{some}" + (f"\nevery cell: {same}" if same else "")
    return Drawing(name, title, (max(7.0, 5.5 * len(drawn)), height), draw)


def _ceilings(point: RooflinePoint) -> tuple[Ceiling, ...]:
    return tuple(filter(None, (point.measured, point.sheet)))


def _line(point: RooflinePoint, ceiling: Ceiling) -> tuple[_Line, str]:
    if ceiling is point.sheet:
        return "--", "data sheet"
    return ("-.", f"measured peak ({ceiling.doubt})") if ceiling.doubt else ("-", "measured peak")


def _marker(point: RooflinePoint, looks: _Looks) -> Any:
    colour, marker = looks[str(point.precision)]
    return {"color": colour, "marker": marker, "linestyle": "none"}


def _panel(axis: Axes, members: Sequence[tuple[int, RooflinePoint]], looks: _Looks) -> None:
    """One device: its ceilings, and its cells by their numbers."""
    ceilings: dict[tuple[str, _Line, Ceiling], None] = {}
    for _, point in members:
        for ceiling in _ceilings(point):
            ceilings[str(point.precision), _line(point, ceiling)[0], ceiling] = None
    ridges = [ceiling.ridge for _, _, ceiling in ceilings if ceiling.ridge]
    inside = [point.intensity for _, point in members] + ridges
    left, right = min(inside) / 4, max(inside) * 4
    rate = Rate.for_all([
        *(point.flops_per_s for _, point in members), *(ceiling.flops_per_s for _, _, ceiling in ceilings),
    ])  # fmt: skip
    for precision, style, ceiling in ceilings:
        at = sorted({left, right, *([ceiling.ridge] if ceiling.ridge else [])})
        heights = [ceiling.attainable(intensity) / rate.flops_per_s for intensity in at]
        axis.plot(at, heights, color=looks[precision][0], linestyle=style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(left, right)
    places = {number: (point.intensity, point.flops_per_s / rate.flops_per_s) for number, point in members}
    for number, point in members:
        axis.plot(*places[number], **_marker(point, looks))
    for number, up in _apart(places, log(right / left), log(truediv(*axis.get_ylim()[::-1]))).items():
        axis.annotate(str(number), places[number], (5, 3 + up), textcoords="offset points", fontsize=8)
    axis.set_xlabel("arithmetic intensity (FLOP/B), at most")
    axis.set_ylabel(f"achieved ({rate.name})")
    plain_ticks(axis.xaxis, (1,))
    plain_ticks(axis.yaxis)


def _apart(places: Mapping[int, tuple[float, float]], width: float, height: float) -> dict[int, float]:
    """The points by which each number stands above its place, so that none is printed on another; `width` and `height`
    are those of the panel, as logarithms."""
    ups: dict[int, float] = {}
    taken: list[tuple[float, float]] = []
    for number, (x, y) in sorted(places.items(), key=lambda each: each[1][1]):
        across, own = log(x) / width * _PANEL[0], log(y) / height * _PANEL[1]
        up = own
        for other, there in sorted(taken, key=itemgetter(1)):
            if abs(other - across) < _NUMBER[0] and abs(there - up) < _NUMBER[1]:
                up = there + _NUMBER[1]
        taken.append((across, up))
        ups[number] = up - own
    return ups


_PANEL, _NUMBER = (340.0, 240.0), (13.0, 9.0)
"""About the points that the smallest panel is wide and high, and those that a number needs."""
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


def peak_table(rows: Sequence[PeakRow]) -> Table:
    """A row a device and precision."""
    measured = [row.peak.best.flops_per_s if row.peak else None for row in rows]
    rate = Rate.for_all([*measured, *map(_sheet_flops, rows)])

    def marked(text: str, spread: float) -> str:
        return f"{text}~" if spread > NOISY else text

    def flops(row: PeakRow) -> str:
        return marked(rate.show(row.peak.best.flops_per_s), row.peak.best.spread) if row.peak else rate.show(None)

    def copied(row: PeakRow) -> str:
        return marked(bandwidth(row.peak.copy.bytes_per_s), row.peak.copy.spread) if row.peak else bandwidth(None)

    def share(row: PeakRow) -> str:
        return percent(_share(row), UNKNOWN if _sheet_flops(row) else UNSTATED)

    def local_time(row: PeakRow) -> str:
        return datetime.fromtimestamp(row.peak.at).strftime("%Y-%m-%d %H:%M") if row.peak else "failed"

    columns: tuple[Column[PeakRow], ...] = (
        Column("device", left=True),
        Column("device_name", "name", rank=3, left=True),
        Column("precision", left=True),
        Column("matmul_flops_per_s", f"matmul ({rate.name})", text=flops),
        Column("matmul_size", "size", rank=5),
        Column("sheet_flops_per_s", f"data sheet ({rate.name})", rank=1, show=lambda flops: rate.show(flops, UNSTATED)),
        Column("share_of_sheet", "% of data sheet", text=share),
        Column("copy_bytes_per_s", "copy (GB/s)", text=copied),
        Column("sheet_bytes_per_s", "data sheet (GB/s)", rank=4, show=lambda moved: bandwidth(moved, UNSTATED)),
        Column("at", "measured", rank=6, left=True, text=local_time),
    )
    caption, notes = "Peaks measured on the spot", (METHOD, *_notes(rows))
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
        settings = dict.fromkeys(_in_force(row.precision, row.peak) for row in of_device if row.peak)
        yield from (f"{device.name}, {text}" for text in settings)
        for row in of_device:
            yield from (f"{device.name}, {row.precision}: {text}" for text in _said(row))


def _said(row: PeakRow) -> tuple[str, ...]:
    peak = row.peak
    kept = f"not kept: {peak.disturbance}" if peak and peak.disturbance else ""
    return tuple(filter(None, (row.error, kept, *((doubt(peak), peak.note) if peak else ()))))


def _in_force(precision: str, peak: DevicePeak) -> str:
    parts = (
        f"{precision}: {peak.dtype}",
        f"float32 matmul precision {peak.matmul_precision}",
        {True: "TF32 on", False: "TF32 off", None: ""}[peak.allow_tf32],
        counted(peak.threads, "thread") if peak.device == "cpu" else "",
        f"torch {peak.torch}",
    )
    return ", ".join(filter(None, parts))
