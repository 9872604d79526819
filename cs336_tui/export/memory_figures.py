"""The active-memory timeline of a recorded step as a figure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cs336_tui.events.reports import MemoryReport
from cs336_tui.export.drawing import Drawing
from cs336_tui.stats.quantities import ByteUnit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cs336_tui.analysis.memory import Timeline

MOST_COLUMNS = 1000
"""Columns of the timeline at most: as many as a page can show. Each is the highest moment of its share of events."""
_LABELLED_SHARE = 0.06
"""A phase with a smaller share of the width has its name in the title of the axis only."""

# Okabe and Ito 2008: told apart with every common kind of colour vision. What lives longest lies at the bottom.
_LOOKS: Mapping[str, tuple[str, str]] = {
    "parameters": ("#0072B2", ""),
    "optimizer_state": ("#56B4E9", "..."),
    "buffers": ("#999999", ""),
    "gradients": ("#CC79A7", "///"),
    "activations": ("#E69F00", ""),
    "temporary": ("#D55E00", "xxx"),
    "unknown": ("#BBBBBB", "\\\\\\"),
}
"""Colour and hatch of each category."""


def memory_figure(report: MemoryReport) -> Drawing:
    """Live bytes by category against the allocations and frees of the step, stacked, with its phases marked."""

    def draw(figure: Figure) -> None:
        from cs336_tui.analysis.memory import Timeline

        axis = figure.subplots()
        unit = ByteUnit.for_largest(report.peak_bytes)
        _areas(axis, Timeline(report), unit)
        _phases(axis, report)
        _peak(axis, report, unit)
        axis.set_xlim(0, report.events)
        axis.set_ylim(0, report.peak_bytes / unit.bytes * 1.15 or 1.0)
        axis.set_xlabel("event (an allocation or a free) · phases: " + ", ".join(span.phase for span in report.phases))
        axis.set_ylabel(f"live ({unit.name})")
        handles, names = axis.get_legend_handles_labels()
        figure.legend(handles[::-1], names[::-1], loc="outside right upper")

    spec = report.spec
    batch = "" if spec.recording else f" b{spec.batch_size}"
    name = "memory-timeline-" + re.sub("[^A-Za-z0-9.+]+", "-", f"{spec.title}{batch}")
    title = f"Active memory of one step\n{spec.heading}, {report.device_name}"
    return Drawing(name, title, (9.5, 4.5), draw)


def _areas(axis: Axes, timeline: Timeline, unit: ByteUnit) -> None:
    """Each category's bytes on top of those before it; a category that is never there is left out."""
    import numpy as np

    columns = min(MOST_COLUMNS, timeline.events)
    at = timeline.moments(columns)
    live = timeline.by_category[:, at] / unit.bytes
    # The last one, too, is as wide as an event.
    at, live = np.append(at, timeline.events), np.append(live, live[:, -1:], axis=1)
    floor = np.zeros(columns + 1)
    heights = dict(zip(timeline.categories, live, strict=True))
    for category, (colour, hatch) in _LOOKS.items():
        height = heights.get(category)
        if height is None or not height.any():
            continue
        axis.fill_between(
            at, floor, floor + height, step="post", label=category.replace("_", " "), facecolor=colour,
            hatch=hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        floor = floor + height


def _phases(axis: Axes, report: MemoryReport) -> None:
    for span in report.phases:
        axis.axvline(span.first, color="#333333", linewidth=0.6, linestyle=":")
        if span.end - span.first >= _LABELLED_SHARE * report.events:
            middle = (span.first + span.end) / 2
            axis.annotate(span.phase, (middle, 0.985), xycoords=("data", "axes fraction"), ha="center", va="top")


def _peak(axis: Axes, report: MemoryReport, unit: ByteUnit) -> None:
    peak = report.peak_bytes / unit.bytes
    left = report.peak_event > report.events / 2
    activations = report.activation_peak_bytes
    apart = f" (activations at most {unit.fixed(activations)})" if activations is not None else ""
    axis.plot([report.peak_event], [peak], marker="v", color="#000000", linestyle="none", clip_on=False)
    axis.annotate(
        f"peak {unit.fixed(report.peak_bytes)} {unit.name}{apart}",
        (report.peak_event, peak),
        (-7 if left else 7, 1),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom",
    )
