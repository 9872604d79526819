"""The help text: what the keys do and what each number means."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.binding import Binding
from textual.keys import format_key

from cs336_tui.tui.keys import APP_KEYS
from cs336_tui.tui.tab_list import REPORT_TABS, TABS
from cs336_tui.tui.widgets.lines import Line, line

if TYPE_CHECKING:
    from cs336_tui.analysis.verdicts import VerdictName

ACTIONS = {
    "app.run": "run the chosen cells; while cells run, add them behind those that wait",
    "app.stop": "stop what runs and what waits, cells and reports",
    "app.export": "export the results table and the session summary to files",
    "app.copy": "copy the results table to the clipboard (OSC 52, also over SSH)",
    "app.save_preset": "save the choices as a preset of your own",
    "app.help": "keys, and what each number means",
    "app.quit": "leave; asks while something runs",
}
"""The app's keys that have a name in the command palette, too."""
_MORE = (
    ("app.back", "from an opened session back to the one that this app runs"),
    ("Tab  Shift+Tab", "next and previous field"),
    ("arrows  Space", "move within a field and choose; on a line with ▸ show what is folded away"),
    ("Esc", "from the fields to the buttons; out of a dialog"),
    ("app.theme", "next theme"),
    ("app.commands app.commands_too", "command palette: presets, themes, every action"),
    ("app.quit app.interrupt", "quit; asks while something runs"),
    ("app.quit_now", "quit at once; finished steps are in the session log"),
)
_REPLAY = (
    ("replay.pause", "pause and go on"),
    ("replay.faster replay.slower", "faster and slower"),
)
_TABS = {
    ("configure",): (
        ("preset", "Enter: ready sweeps. What this machine cannot run of one is left out and told; * says: changed"),
        (
            "variants",
            "a model of your own as package.module:Class, its arguments and its folder; attention,"
            " torch.compile, checkpointing, optimizer, loss, CUDA graph; attention alone instead of a model",
        ),
        ("recent", "Enter: your own models that were run before"),
        ("a, b=1, c='2,3'", "several with commas; in quotes what holds a comma"),
    ),
    ("results",): (
        ("Enter", "everything known of that cell"),
        ("results.mark", "mark the cell; Compare sets two of them against each other"),
    ),
    ("queue",): (
        ("queue.earlier queue.later", "the cell under the cursor runs a place earlier or later (also Shift+arrows)"),
        ("queue.first queue.last", "it runs first or last"),
        ("queue.skip", "do not run it, or let it wait again"),
        ("queue.hold", "hold the cells that wait, once the running one is over; again: go on"),
        ("queue.retry", "let all cells that failed wait again"),
        ("queue.oom", "after a cell that ran out of memory: skip larger ones, or try all"),
    ),
    ("sessions",): (
        ("sessions.open", "show that session in every pane; b goes back"),
        ("sessions.mark", "mark it; Compare puts the marked ones together"),
        ("sessions.resume", "run what has no result yet, into that session"),
        ("sessions.rename sessions.annotate sessions.delete", "name it, annotate it, delete it"),
    ),
    ("compare",): (
        ("compare.view", "next view: pivot, pairs, warm-up, reference points"),
        ("compare.value", "another value: mean, std, median, speed-up, memory, tokens/s"),
        ("compare.baseline", "what a speed-up is over"),
        ("compare.choose", "choose rows, columns and cells; of a pair, the reason of its outcome"),
        ("compare.swap", "swap rows and columns"),
        ("compare.left compare.right", "other columns, where not all fit"),
        ("compare.keep", "reference points: keep these cells as your own"),
    ),
    (): (  # of all tabs that make reports
        ("report.make", "make the report of this cell; it comes before the next cell, and never while one is timed"),
        ("report.next_cell", "the cell before, the next one"),
    ),
    ("kernels",): (
        ("kernels.view", "next view: kernels, kinds, parts of the model, attention"),
        ("kernels.sort kernels.order", "sort by another column; the other way round"),
        (
            "kernels.phase kernels.part kernels.kind kernels.search",
            "of one phase, part of the model or kind; search; Esc: all",
        ),
        ("kernels.copy", "copy the table that is shown (OSC 52)"),
        ("Enter", "the full name and all figures of that kernel"),
    ),
    ("memory",): (
        ("memory.view", "next view: timeline, peaks, largest, saved for backward, out of memory"),
        ("memory.right memory.further_left memory.further_right", "move along the timeline by one column, by ten"),
        ("memory.zoom_in memory.peak", "zoom, and to the peak"),
        ("memory.level", "largest: another detail level"),
    ),
    ("estimate",): (
        ("estimate.detail", "everything predicted of that cell"),
        ("estimate.gpu", "whether the cells fit a GPU that is not here; empty: this machine"),
        ("estimate.switch", "the cells of Configure's choices, or those of the session"),
    ),
    ("roofline",): (
        (
            "roofline.measure",
            "measure what the device does at best, between cells; what is missing, else this precision again",
        ),
        ("up  down", "another cell, and the ceilings of its precision"),
        ("Enter", "everything known of that cell"),
        ("roofline.copy", "copy the table (OSC 52)"),
    ),
}
"""The keys of tabs, by the ids of their bindings, and what can be entered there."""
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
    ("± %", "of a mean: half its 95 % confidence interval, which allows for steps that resemble those before them."),
    ("interval", "95 % confidence interval of a ratio of mean step times, from the runs' means where runs repeat."),
    ("auto", "warm-up: until steps are steady; steps: until the mean is known to ± 0.5 %. auto:50: 50 steps at most. "
     "auto 2%: until ± 1 %."),
    ("verdict", "of a cell: whether its steps are steady, and every reason to doubt its number; of a comparison: "
     "faster, slower, the same within 1 %, or ambiguous: the interval does not tell."),
    ("drifting +2", "the most telling verdict and how many others hold; Enter names them."),
    ("A ms  12.3 !", "Compare: this side is in doubt; the reason is below the table and under Enter."),
    ("not observable", "a verdict for which this device, system or run shows no evidence: neither yes nor no."),
    ("FLOP/s", "those of the matrix products in the timed phases over the mean step time."),
    ("97.6~", "a measured peak that is in doubt; the reason is above the drawing."),
    ("J/step  tokens/J", "what the whole GPU used for a mean step, from NVML's counter while it measured."),
    ("% peak", "of what was measured on this device in this precision (Roofline, n), else of its data sheet."),
    ("compiling", "torch.compile's work before the first warm-up step; in no step's time, nor is capturing."),
    ("graph breaks", "where torch.compile could not go on and the model fell into several graphs."),
    ("before backward", "memory of tensors between forward and backward, of attention alone."),
    ("checkpoint k", "activations of every k blocks are computed again in backward instead of being kept."),
    ("ETA", "steps left, priced by the timed steps most like them, compiling, and what cells take beside their steps."),
    ("prediction", "what a cell will need, worked out on tensors without data before anything runs."),
    ("peak by category", "what memory is held for when most of it is: activations are what forward and loss leave for "
     "backward, temporary is what is let go within its phase."),
    ("fits", "predicted peak and what the process itself takes, against the memory that is free now; tight: with less "
     "than a tenth of the peak to spare."),
    ("residual stream", "one tensor of batch × context × d_model, in MiB (2²⁰ bytes)."),
    ("kernels share", "time of these kernels over the time of all; on a CPU of operators, by self time."),
    ("idle share", "time in which no kernel ran, from the first one's begin to the last one's end."),
    ("launches", "how often kernels were started in the profiled step."),
    ("saved for backward", "what autograd keeps of a Transformer block until its backward, parameters left out."),
    ("detail level", "the smallest allocation that the list of the largest shows."),
    ("n/a", "this device or driver does not report the figure."),
)  # fmt: skip

_NAMED = ("space", "enter", "delete")
_IN_ORDER = "12345678"
"""Keys of tabs that one row of the help sums up."""
VERDICTS: tuple[tuple[VerdictName, str], ...] = (
    ("steady", "no trend, no levels, no spikes: nothing in the steps speaks against the mean."),
    ("still-warming", "the first measured steps are slower: more warm-up was needed."),
    ("drifting", "steps become slower or faster throughout: the mean depends on when it was taken."),
    ("two-levels", "steps are at one of two speeds; the mean describes neither."),
    ("periodic", "steps go up and down regularly, as a device does that throttles and recovers."),
    ("quantised", "step times lie at equal distances: a coarse clock, or a device clock that moves in large ticks."),
    ("outliers", "single steps stand out and pull the mean."),
    ("too-few-steps", "too few to tell whether they are steady to 5 %, or to know the mean to ± 5 %."),
    ("throttled", "the GPU lowered its clocks for heat or power supply while it measured."),
    ("contended", "other processes used the device or the cores while it measured."),
    ("launch-bound", "the host's launching takes as long as the step: a faster GPU would not help; no doubt."),
    ("allocator-retry", "memory was nearly full, and the allocator gave its cache back within a step."),
    ("slowed-by-settings", "an environment variable, such as CUDA_LAUNCH_BLOCKING, makes steps slower than they are."),
)


def help_lines(width: int, *, replaying: bool) -> list[Line]:
    """The help text for a window of `width` columns."""
    in_order, others = ([tab for tab in TABS.values() if (tab.key in _IN_ORDER) == first] for first in (True, False))
    tabs = (
        (f"{in_order[0].key} to {in_order[-1].key}", ", ".join(tab.label for tab in in_order)),
        ("  ".join(tab.key for tab in others), ", ".join(tab.label for tab in others)),
    )
    ours = [(id, about) for id, about in ACTIONS.items() if id not in ("app.help", "app.quit")]
    sections: dict[str, Iterable[tuple[str, str]]] = {"Keys": (*ours, *tabs, *_MORE, *(_REPLAY if replaying else ()))}
    for ids, found in _TABS.items():
        sections[", ".join(f"{TABS[id].label} ({TABS[id].key})" for id in ids or REPORT_TABS)] = found
    sections |= {"Verdicts on a cell": VERDICTS, "What the numbers mean": _NUMBERS}
    bindings = bindings_by_id()
    lines: list[Line] = []
    for title, entries in sections.items():
        lines += [*([()] if lines else []), line((title, "title"))]
        for name, about in entries:
            keys = "  ".join(printed(bindings[id]) for id in name.split()) if name.split()[0] in bindings else name
            lines += _entry(keys, about, width)
    return lines


def bindings_by_id() -> dict[str, Binding]:
    """The keys of the app and of every tab."""
    from cs336_tui.tui.tabs.estimate import EstimateList

    panes = (cls for tab in TABS.values() for cls in tab.pane().__mro__)
    of_panes = (each for cls in (*panes, EstimateList) for each in cls.__dict__.get("BINDINGS", ()))
    return {each.id: each for each in (*APP_KEYS, *of_panes) if isinstance(each, Binding) and each.id}


def printed(binding: Binding) -> str:
    """The keys of a binding, such as ``K``, ``x  Space``, ``Ctrl+C``."""
    if binding.key_display:
        return binding.key_display
    return "  ".join(key.title() if "+" in key or key in _NAMED else format_key(key) for key in binding.key.split(","))


def _entry(name: str, meaning: str, width: int) -> list[Line]:
    label = 17
    first, *rest = textwrap.wrap(meaning, max(width - label, 12))
    return [line((f"{name:<{label}}", "key"), first), *(line(" " * label + row) for row in rest)]
