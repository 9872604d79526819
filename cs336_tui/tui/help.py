"""The help text: what the keys do and what each number means."""

from __future__ import annotations

import textwrap

from cs336_tui.tui.widgets.lines import Line, line

_KEYS = (
    ("r", "run the chosen cells; while cells run, add them behind those that wait"),
    ("s", "stop the running cell and those after it"),
    ("e", "export the results table and the session summary to files"),
    ("c", "copy the results table to the clipboard (OSC 52, also over SSH)"),
    ("w", "save the choices as a preset of your own"),
    ("1 to 8", "Configure, Live, Results, Log, Device, Queue, Sessions, Compare"),
    ("b", "from an opened session back to the one that this app runs"),
    ("Tab  Shift+Tab", "next and previous field"),
    ("arrows  Space", "move within a field and choose"),
    ("Esc", "from the fields to the buttons; out of a dialog"),
    ("t", "next theme"),
    (":  Ctrl+P", "command palette: presets, themes, every action"),
    ("q  Ctrl+C", "quit; asks while something runs"),
    ("Ctrl+Q", "quit at once; finished steps are in the session log"),
)
_TABS = {
    "Results (3)": (
        ("Enter", "everything known of that cell"),
        ("m", "mark the cell; Compare sets two of them against each other"),
    ),
    "Queue (6)": (
        ("K  J", "the cell under the cursor runs a place earlier or later (also Shift+arrows)"),
        ("<  >", "it runs first or last"),
        ("x  Space", "do not run it, or let it wait again"),
        ("P", "hold the cells that wait, once the running one is over; again: go on"),
        ("f", "let all cells that failed wait again"),
        ("o", "after a cell that ran out of memory: skip larger ones, or try all"),
    ),
    "Sessions (7)": (
        ("Enter", "show that session in every pane; b goes back"),
        ("c  Space", "mark it; Compare puts the marked ones together"),
        ("u", "run what has no result yet, into that session"),
        ("n  a  d", "name it, annotate it, delete it"),
    ),
    "Compare (8)": (
        ("v", "next view: pivot, pairs, warm-up, reference points"),
        ("← →", "another value: mean, std, median, speed-up, memory, tokens/s"),
        ("[ ]", "what a speed-up is over"),
        ("Enter", "choose rows, columns and cells; of a pair, the reason of its verdict"),
        ("x", "swap rows and columns"),
        ("<  >", "other columns, where not all fit"),
        ("+", "reference points: keep these cells as your own"),
    ),
}
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
    ("speed-up", "mean step time of the baseline over that of the cell, so more is faster."),
    ("interval", "95 % confidence interval of a ratio of mean step times, from the runs' means where runs repeat."),
    ("verdict", "faster, slower, the same within 1 %, or ambiguous: the interval does not tell."),
    ("ETA", "steps left, priced by the timed steps most like them."),
    ("n/a", "this device or driver does not report the figure."),
)  # fmt: skip


def help_lines(width: int, *, replaying: bool) -> list[Line]:
    """The help text for a window of `width` columns."""
    lines = [line(("Keys", "title"))]
    for keys, meaning in (*_KEYS, *(_REPLAY_KEYS if replaying else ())):
        lines += _entry(keys, meaning, width)
    for tab, entries in _TABS.items():
        lines += [(), line((tab, "title"))]
        for keys, meaning in entries:
            lines += _entry(keys, meaning, width)
    lines += [(), line(("What the numbers mean", "title"))]
    for name, meaning in _NUMBERS:
        lines += _entry(name, meaning, width)
    return lines


def _entry(name: str, meaning: str, width: int) -> list[Line]:
    label = 17
    first, *rest = textwrap.wrap(meaning, max(width - label, 12))
    return [line((f"{name:<{label}}", "key"), first), *(line(" " * label + row) for row in rest)]
