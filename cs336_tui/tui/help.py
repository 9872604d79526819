"""The help text: what the keys do and what each number means."""

from __future__ import annotations

import textwrap

from cs336_tui.tui.widgets.lines import Line, line

_KEYS = (
    ("r", "run the chosen cells"),
    ("s", "stop the running cell and those after it"),
    ("e", "export the results table and the session summary to files"),
    ("c", "copy the results table to the clipboard (OSC 52, also over SSH)"),
    ("1 2 3 4 5", "Configure, Live, Results, Log, Device"),
    ("Tab  Shift+Tab", "next and previous field"),
    ("arrows  Space", "move within a field and choose"),
    ("Esc", "from the fields to the buttons; out of a dialog"),
    ("Enter", "on a result: everything known of that cell"),
    ("t", "next theme"),
    (":  Ctrl+P", "command palette: presets, themes, every action"),
    ("q  Ctrl+C", "quit; asks while something runs"),
    ("Ctrl+Q", "quit at once; finished steps are in the session log"),
)
_REPLAY_KEYS = (
    ("Space", "pause and go on"),
    ("+  -", "faster and slower"),
)
_NUMBERS = (
    ("mean ± std", "over the measured steps; warm-up steps are shown but never counted. std is the sample standard "
     "deviation (n-1) unless ddof says otherwise."),
    ("step time", "wall time in ms between two synchronisations of the device."),
    ("phases", "device time of each part of a step, in ms. In the backward pass only backward is timed."),
    ("tokens/s", "batch × context over the mean step time."),
    ("peak allocated", "most memory that tensors held at once after warm-up, in GB (10⁹ bytes)."),
    ("RSS", "resident memory of the cell's process on the host."),
    ("memory (Device)", "GPU memory used by all processes, as NVML counts it."),
    ("util", "share of time in which any kernel ran, over about a second: it cannot resolve one step."),
    ("limited", "why the clocks are below their highest: a power cap alone is ordinary."),
    ("energy", "what the GPU used since the run began, all of it, not only this process."),
    ("ETA", "steps left, priced by the timed steps most like them."),
    ("n/a", "this device or driver does not report the figure."),
)  # fmt: skip


def help_lines(width: int, *, replaying: bool) -> list[Line]:
    """The help text for a window of `width` columns."""
    lines = [line(("Keys", "title"))]
    for keys, meaning in (*_KEYS, *(_REPLAY_KEYS if replaying else ())):
        lines += _entry(keys, meaning, width)
    lines += [(), line(("What the numbers mean", "title"))]
    for name, meaning in _NUMBERS:
        lines += _entry(name, meaning, width)
    return lines


def _entry(name: str, meaning: str, width: int) -> list[Line]:
    label = 17
    first, *rest = textwrap.wrap(meaning, max(width - label, 12))
    return [line((f"{name:<{label}}", "key"), first), *(line(" " * label + row) for row in rest)]
