"""A profile as a flame graph: nested frames, each as wide as its share of the time; as a figure, and as the lines of an
icicle for a screen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from cs336_tui.analysis.kernels import short_name, whole
from cs336_tui.events.kernel_report import KernelGroup, KernelReport
from cs336_tui.export.writing.drawing import COLOURS, Drawing
from cs336_tui.stats.quantities import tenth_percent, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Nesting = Literal["operator", "stack"]
NESTINGS: tuple[Nesting, ...] = get_args(Nesting)
ABOUT = {
    "operator": "by operator: phase, part of the model, operator, kernel",
    "stack": "by stack: phase, every range and operator that encloses the launch, kernel",
}
_NARROWEST = 0.001
"""Of the whole; frames with a smaller share are left out of a figure, but not their time."""
_PER_CHARACTER = 0.0085
"""The share of the figure's width that a character of a name takes."""


class Frame(NamedTuple):
    """A frame: its name, its depth below the whole, its begin and its width as shares of the time."""

    name: str
    depth: int
    begin: float
    width: float
    total_ns: int


def frames(report: KernelReport, nesting: Nesting) -> tuple[Frame, ...]:
    """The frames of a profile, the whole first, each followed by those in it, the widest first."""
    named = [(tuple(filter(None, _names(group, nesting))), group.total_ns) for group in report.groups]
    time_ns = sum(total_ns for _, total_ns in named)
    return tuple(_nested(whole(report.spec), named, 0, 0, time_ns)) if time_ns else ()


def _names(group: KernelGroup, nesting: Nesting) -> tuple[str, ...]:
    kernel = short_name(group.name)
    if nesting == "operator":
        return group.phase, group.range if group.range != group.phase else "", group.op, kernel
    stack = group.stack or group.path or (group.phase, group.range)
    names = (*stack, *((group.op,) if group.op not in stack else ()), kernel)
    return tuple(name for name, _ in groupby(names if group.phase in ("", *stack) else (group.phase, *names)))


def _nested(
    name: str, inside: Sequence[tuple[tuple[str, ...], int]], depth: int, begin_ns: int, time_ns: int
) -> Iterator[Frame]:
    """The frame of these stacks, by time, and those in it."""
    total_ns = sum(each for _, each in inside)
    yield Frame(name, depth, begin_ns / time_ns, total_ns / time_ns, total_ns)
    below: dict[str, list[tuple[tuple[str, ...], int]]] = {}
    for names, each_ns in inside:
        if names:
            below.setdefault(names[0], []).append((names[1:], each_ns))
    for inner, stacks in sorted(below.items(), key=lambda item: -sum(each for _, each in item[1])):
        yield from _nested(inner, stacks, depth + 1, begin_ns, time_ns)
        begin_ns += sum(each for _, each in stacks)


def flame_figure(report: KernelReport, nesting: Nesting) -> Drawing:
    """The flame graph of a profile: the whole at the bottom, kernels at the top."""
    found = [frame for frame in frames(report, nesting) if frame.width >= _NARROWEST]
    depth = max((frame.depth for frame in found), default=0) + 1

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for frame in found:
            colour = COLOURS[sum(map(ord, frame.name)) % (len(COLOURS) - 1)]
            axis.barh(
                frame.depth, frame.width, 1, frame.begin, color=colour, alpha=0.6, edgecolor="white", linewidth=0.5
            )
            text = f"{frame.name} {tenth_percent(frame.width)}"
            if (room := int(frame.width / _PER_CHARACTER)) >= 3:
                place = frame.begin + frame.width / 2, frame.depth
                axis.annotate(text[:room], place, ha="center", va="center", fontsize=7, clip_on=True)
        axis.set_xlim(0, 1)
        axis.set_ylim(-0.5, depth - 0.5)
        axis.set_yticks([])
        axis.set_xlabel(f"share of {time_text(found[0].total_ns) if found else 'no time'} of {report.activity}")
        axis.grid(visible=False)

    name = f"flame-graph-{nesting}-" + re.sub("[^A-Za-z0-9.+]+", "-", report.spec.title)
    title = f"Flame graph {ABOUT[nesting]}\n{report.spec.heading}, {report.device_name}"
    return Drawing(name, title, (11, 1.6 + 0.28 * depth), draw)


def icicle(report: KernelReport, nesting: Nesting, width: int) -> Iterator[tuple[tuple[str, bool], ...]]:
    """Lines of frames from the whole downwards: texts, cut to their frames' columns, and True for every second frame of
    a line. Frames of less than two columns are left out."""
    found = sorted(frames(report, nesting), key=attrgetter("depth", "begin"))
    for _, row in groupby(found, attrgetter("depth")):
        texts: list[tuple[str, bool]] = []
        column = 0
        for frame in row:
            first, last = round(frame.begin * width), round((frame.begin + frame.width) * width)
            if last - first < 2:
                continue
            texts.append((" " * (first - column), False))
            text = f"▏{frame.name} {tenth_percent(frame.width)}"
            texts.append((text[: last - first].ljust(last - first), len(texts) % 4 == 1))
            column = last
        yield tuple(texts)
