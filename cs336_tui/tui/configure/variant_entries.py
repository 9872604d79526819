"""The entries that choose a model of one's own and how a model is run, and what of them is not as usual."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cs336_tui.config.recent_models import RecentModel
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.variants import ATTENTIONS, COMPILES, CUDA_GRAPHS, OPTIMIZERS, WORKLOADS, short
from cs336_tui.tui.configure.form import CAUSAL, Entries, entries_of
from cs336_tui.tui.configure.reading import names_of
from cs336_tui.tui.configure.recent_entry import RecentEntry
from cs336_tui.tui.widgets.entries import Chip, Chips, Entry, TextEntry

FIELDS = (
    "workload", "causal", "model", "recent", "model_args", "model_path", "annotations", "attention",
    "other_attentions", "compile", "checkpoint", "optimizer", "other_optimizers", "loss", "cuda_graph",
)  # fmt: skip
OF_MODELS = ("model", "recent", "model_args", "annotations", "checkpoint", "optimizer", "other_optimizers", "loss")
"""Entries that attention alone has nothing of."""
_LONG = 4_000
"""The most characters of what may be a list of paths."""
_OWN = "or your module:name"
_TIPS = {
    "workload": "language-model: a whole model; attention: attention alone, over random queries, keys and values.",
    "model": "Your own: package.module:ClassOrFactory; reference is the one that comes along. Several with commas.",
    "model_args": "Arguments that your model wants beside the dimensions: rope_theta=10000, dropout=0.",
    "model_path": "Folders in which your own code is looked for, several with commas; else the current one.",
    "annotations": "Of your own model: softmax=package.module:function counts that function to this part.",
    "attention": "naive materialises the scores; sdpa lets torch choose; the others are torch's backends by name.",
    "compile": "torch.compile and its modes; compiling is timed apart.",
    "checkpoint": "Recompute activations in groups of so many blocks: 1, or several as 0,1,2,4; 0 keeps them all.",
    "optimizer": "torch's AdamW: adamw leaves the implementation to torch, the others are chosen by name.",
    "loss": "Your own: package.module:function of logits and targets.",
    "cuda_graph": "step: replay the whole step as one CUDA graph.",
}


def variant_entries(entries: Entries, recent: tuple[RecentModel, ...]) -> Iterable[Entry]:
    """All of them, filled."""

    def chips(field: str, label: str, values: Iterable[str], *, multiple: bool = True) -> Chips:
        choices = tuple(Chip(value, value) for value in values)
        return Chips(field, label, choices, entries.chosen(field), multiple=multiple, tooltip=_TIPS.get(field))

    def text(field: str, label: str, hint: str) -> TextEntry:
        return TextEntry(field, label, entries.text(field), hint=hint, tooltip=_TIPS.get(field), max_length=_LONG)

    yield chips("workload", "workload", WORKLOADS, multiple=False)
    yield chips("causal", "mask", CAUSAL, multiple=False)
    yield text("model", "model", "reference, or yours")
    yield RecentEntry(recent)
    yield text("model_args", "arguments", "none, as dropout=0")
    yield text("model_path", "folder", "the current one")
    yield text("annotations", "annotate", "part=module:name")
    yield chips("attention", "attention", ATTENTIONS)
    yield text("other_attentions", "", _OWN)
    yield chips("compile", "compile", COMPILES)
    yield text("checkpoint", "checkpoint", "0, or every k blocks")
    yield chips("optimizer", "optimizer", OPTIMIZERS)
    yield text("other_optimizers", "", _OWN)
    yield text("loss", "loss", "cross-entropy")
    yield chips("cuda_graph", "CUDA graph", CUDA_GRAPHS)


def is_shown(field: str, entries: Entries, recent: tuple[RecentModel, ...]) -> bool:
    """Whether the entry means anything beside the others, or holds something that should be seen."""
    alone = entries.workload == "attention"
    match field:
        case "recent":
            return bool(recent) and not alone
        case "causal":
            return alone
        case "model_path":
            return bool(entries.own_names or entries.model_path)
        case "model_args" | "annotations":
            return not alone and bool(":" in entries.model or entries.text(field))
    return not (alone and field in OF_MODELS)


def fold_label(entries: Entries, *, is_open: bool) -> str:
    """What the fold holds, or what in it is not as usual, so that nothing folded away surprises."""
    if is_open:
        return "model and variants"
    found = ", ".join(_unusual(entries))
    return f"variants: {found}" if found else "model, attention, compile…"


def _unusual(entries: Entries) -> Iterator[str]:
    """A few words for each choice that is not as usual; values that are tried one after another with slashes."""
    usual = entries_of(Sweep())
    alone = entries.workload == "attention"
    if alone:
        yield "attention alone"
    elif entries.model.strip():
        yield _each(map(short, names_of(entries.model)))
    if (entries.attention, entries.other_attentions) != (usual.attention, usual.other_attentions):
        yield _each((*entries.attention, *map(short, names_of(entries.other_attentions))))
    if alone and entries.causal != usual.causal:
        yield entries.causal
    if entries.compile != usual.compile:
        yield "compiled" if entries.compile == ("default",) else f"compile {_each(entries.compile)}"
    if not alone:
        if entries.checkpoint.strip() not in ("", "0"):
            yield f"checkpoint {entries.checkpoint.strip().replace(',', '/')}"
        if (entries.optimizer, entries.other_optimizers) != (usual.optimizer, usual.other_optimizers):
            yield _each((*entries.optimizer, *map(short, names_of(entries.other_optimizers))))
        if entries.loss.strip():
            yield short(entries.loss.strip())
    if entries.cuda_graph != usual.cuda_graph:
        yield "CUDA graph" if entries.cuda_graph == ("step",) else f"CUDA graph {_each(entries.cuda_graph)}"


def _each(values: Iterable[str]) -> str:
    return "/".join(values) or "none"
