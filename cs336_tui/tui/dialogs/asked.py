"""What was asked for of a cell, as labelled rows."""

from __future__ import annotations

from collections.abc import Iterator

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import INTERVAL, steps_words, warmup_words
from cs336_tui.config.variants import CROSS_ENTROPY, is_imported
from cs336_tui.tui.tabs.page import wrapped
from cs336_tui.tui.widgets.lines import Line, Span

LABEL = 16
"""Columns of a label."""


def row(label: str, value: object) -> Line:
    return (Span(f"{label:<{LABEL}}", "muted"), Span(str(value)))


def rows(label: str, text: str, width: int) -> list[Line]:
    """A longer text, over as many rows as it needs."""
    first, *more = wrapped(text, width - LABEL) or [()]
    return [(Span(f"{label:<{LABEL}}", "muted"), *first), *((Span(" " * LABEL), *each) for each in more)]


def asked(spec: CellSpec, width: int) -> list[Line]:
    """Everything that the spec says, but for what its title does."""
    lines: list[Line] = []
    for label, text in (*_what(spec), *_variants(spec), *_how(spec)):
        lines += rows(label, text, width)
    return lines


def _what(spec: CellSpec) -> Iterator[tuple[str, str]]:
    """The model and its dimensions, or those of attention alone."""
    if spec.workload == "attention":
        yield "workload", "attention alone, no model around it"
        yield "head dim", str(spec.d_model)
        yield "mask", "causal" if spec.causal else "none, every token sees all"
        yield "batch, sequence", f"{spec.batch_size} × {spec.context_length}"
        return
    if is_imported(spec.model):
        yield "model", spec.model
        if spec.model_args:
            yield "arguments", ", ".join(f"{name}={value}" for name, value in spec.model_args)
        if spec.annotations:
            yield "annotated", ", ".join(f"{name}={value}" for name, value in spec.annotations)
        yield "size", f"{spec.size} of {spec.edition}"
    else:
        yield "model", f"{spec.size} of {spec.edition}, {spec.arch}"
    yield "dimensions", f"{spec.d_model} wide, d_ff {spec.d_ff}, {spec.num_layers} layers, {spec.num_heads} heads"
    yield "vocabulary", str(spec.vocab_size)
    yield "batch, context", f"{spec.batch_size} × {spec.context_length} = {spec.tokens_per_step} tokens a step"


def _variants(spec: CellSpec) -> Iterator[tuple[str, str]]:
    """What is not as usual."""
    if spec.attention != "naive" or spec.workload == "attention":
        yield "attention", spec.attention
    if spec.compile != "off":
        yield "torch.compile", spec.compile
    if spec.checkpoint:
        yield "checkpoint", f"activations recomputed in groups of {spec.checkpoint} block{'s' * (spec.checkpoint != 1)}"
    if spec.optimizer != "adamw":
        yield "optimizer", spec.optimizer
    if spec.loss != CROSS_ENTROPY:
        yield "loss", spec.loss
    if spec.cuda_graph != "off":
        yield "CUDA graph", "of the whole step"
    if spec.model_path and spec.brings_own_code:
        yield "looked for in", ", ".join(spec.model_path)


def _how(spec: CellSpec) -> Iterator[tuple[str, str]]:
    yield "warm-up", warmup_words(spec.warmup_steps, spec.warmup_auto)
    yield "measured steps", steps_words(spec.measure_steps, None if spec.steps_auto is None else INTERVAL)
    if spec.steps_auto is not None:
        yield "interval", f"± {spec.steps_auto * 50:g} % of the mean ends it"
    yield "synchronised", spec.sync
    yield "seed", str(spec.seed)
    yield "threads", str(spec.threads) if spec.threads is not None else "torch's own choice"
