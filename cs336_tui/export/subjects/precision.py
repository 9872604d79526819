"""Precision as tables: the accumulation experiment, dtypes of the toy model and of a cell's, fp32 against the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from cs336_tui.analysis.effects import SpeedUp, mixed_speedups
from cs336_tui.analysis.fields import warmup_value
from cs336_tui.analysis.merge import Result
from cs336_tui.events.reports import Accumulation, ModuleDtypes, PrecisionReport, ToyDtypes
from cs336_tui.export.subjects.comparison import side_mean, side_record, std_notes
from cs336_tui.export.writing.tables import Column, Source, Table, attributes, cell_record, known, ratio_record
from cs336_tui.stats.quantities import MILLISECONDS, NONE, gigabytes
from cs336_tui.stats.ratio import LEVEL, MARGIN

_PEAK = "peak_allocated_bytes"
_METHOD = "method"
"""In place of a class: a step of the reference's attention, which is a method of its module."""

BY_RULES = "CUDA's rules"
"""Begin of the headings of what hooks did not see on the device."""
_TOY_PARTS = {
    "parameters": "parameters in the context",
    "first_layer_output": "first layer's output (fc1)",
    "layer_norm_output": "layer norm's output (ln)",
    "logits": "logits (fc2)",
    "loss": "loss",
    "gradients": "gradients",
}
"""The parts of the toy model that have a dtype, by their names in `ToyDtypes`."""

EXPERIMENTS = ("accumulation", "toy", "toy_by_rules", "rules", "toy_note")
"""Keys of `precision_document` that no cell changes."""

ADDEND_NOTE = (
    "0.01 is rounded to its own dtype before it is added; converting it to the accumulator's afterwards brings "
    "nothing back. A float16 accumulator rounds every partial sum as well."
)


def experiment_tables(reports: Sequence[PrecisionReport]) -> list[Table]:
    """The accumulation experiment and the toy model, which no cell changes: once for all reports, again only where
    another device or torch found something else."""
    found: list[Table] = []
    for make in (accumulation_table, toy_table):
        for report in reports:
            if (table := make(report)) not in found:
                found.append(table)
    return found


def precision_document(report: PrecisionReport) -> dict[str, Any]:
    """The report for programs: its fields as they are, and each accumulation's error."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    document.pop("type", None)
    document["accumulation"] = list(accumulation_table(report).records)
    return document


def accumulation_table(report: PrecisionReport) -> Table:
    """0.01 added 1,000 times, a row for each way to do it."""
    columns: tuple[Column[Accumulation], ...] = (
        Column("accumulator", left=True),
        Column("addend", left=True),
        Column("converted", "converted first", left=True, show=lambda converted: "yes" if converted else "no"),
        # Six decimal places tell float32 sums near 10 apart.
        Column("result", show="{:.6f}".format),
        Column("error", show="{:+.6f}".format),
    )
    caption = "0.01 added 1,000 times; 10 in exact arithmetic"
    notes = (ADDEND_NOTE, f"on the CPU, torch {report.torch}")
    return Table.of(report.accumulation, columns, caption=caption, footnotes=notes, label="accumulation")


def toy_table(report: PrecisionReport) -> Table:
    """A row for each part of the toy model, a column for each autocast; a record is one autocast."""
    found = toys(report)
    return Table(
        columns=(Column("part", left=True), *(Column(name, left=True) for name in found)),
        rows=tuple(_toy_rows(tuple(found.values()))),
        records=tuple(
            {
                "by": BY_RULES if name.startswith(BY_RULES) else report.device_name,
                **attributes(toy, *(field for field in ToyDtypes.__struct_fields__ if field != "gradient_of")),
                **{f"gradient_of_{parameter}": dtype for parameter, dtype in toy.gradient_of.items()},
            }
            for name, toy in found.items()
        ),
        caption=f"dtypes in the toy model under autocast on {report.device_name}"
        + (" and by the rules of CUDA" if report.toy_by_rules else ""),
        footnotes=(
            "fc1 (10 wide, no bias), ReLU, layer norm, fc2 (no bias); as hooks saw them in one forward and backward",
            *rules_of(report),
            *_provenance(report, report.toy_note),
        ),
        label="toy-dtypes",
    )


def toys(report: PrecisionReport) -> dict[str, ToyDtypes]:
    """The toy model under each autocast, by a heading: CUDA's rules, then the cell's device."""
    device = report.spec.device.partition(":")[0]
    ruled = {f"{BY_RULES}, {toy.autocast}": toy for toy in report.toy_by_rules}
    return ruled | {f"{device}, {toy.autocast}": toy for toy in report.toy}


def _toy_rows(found: Sequence[ToyDtypes]) -> Iterator[tuple[str, ...]]:
    for name, title in _TOY_PARTS.items():
        if name == "loss" and found:
            title += f" ({', '.join(dict.fromkeys(toy.loss_function for toy in found))})"
        yield title, *(getattr(toy, name) for toy in found)
    for parameter in dict.fromkeys(name for toy in found for name in toy.gradient_of):
        yield f"gradient of {parameter}", *(toy.gradient_of.get(parameter, NONE) for toy in found)


def rules_of(report: PrecisionReport) -> Iterator[str]:
    """The rules of `toy_by_rules` and their source, if there are any."""
    if report.toy_by_rules:
        yield (
            "CUDA's rules: linear layers run in the dtype of autocast, layer norm and the loss in float32 (of "
            "cross-entropy without its log-softmax, which is in its logits' dtype), ReLU in its input's; "
            f"from the lists in {report.rules}, applied shape-only (meta tensors), without a GPU"
        )


def modules_table(report: PrecisionReport) -> Table:
    """A row for each module of the cell's model, those alike in repeated layers joined."""
    dtypes = ("parameters", "inputs", "output", "gradients")
    columns: tuple[Column[ModuleDtypes], ...] = (
        Column("path", "module", left=True),
        Column("module", "class", left=True),
        Column("count"),
        *(Column(key, left=True, show=lambda dtype: dtype or NONE) for key in dtypes),
    )
    notes = (
        f"logits {report.logits}, loss {report.loss}",
        "parameters and gradients: the module's own, without those of its submodules",
        *_reading(report.modules),
        *_provenance(report, report.note),
    )
    caption = f"dtypes in {report.spec.title} · batch {report.spec.batch_size}"
    return Table.of(report.modules, columns, caption=caption, footnotes=notes, label="module-dtypes")


def _reading(modules: Sequence[ModuleDtypes]) -> Iterator[str]:
    """The meaning of joined and made-up names of modules, if there are any."""
    joined = next((each.path for each in modules if "*" in each.path), None)
    if joined is not None:
        yield f"{joined[: joined.index('*') + 1]} stands for every layer"
    if any(each.module == _METHOD for each in modules):
        yield "methods are attention's own steps: score, weigh (the softmax), mix, or attend, which is all three"


def speedup_table(results: Sequence[Result]) -> Table:
    """Every cell measured in fp32 and another precision: times, speed-up, peaks. Without rows where there is none."""
    speedups = mixed_speedups(results)

    def name(each: SpeedUp) -> str:
        spec = each.spec
        named = (spec.size_label, f"ctx {spec.context_length}", f"batch {spec.batch_size}", spec.pass_, spec.device)
        return " · ".join((*named, *spec.variants))

    columns: tuple[Source[SpeedUp], ...] = (
        lambda each: cell_record(each.spec, "size", "context", "batch", "pass", "variants", "device"),
        lambda each: {"machine": each.machine, "warmup": warmup_value(each.spec)},
        Column("cell", left=True, text=name),
        Column("precision", left=True, read=lambda each: each.spec.precision),
        *speedup_columns(),
    )
    caption, notes = "fp32 against other precisions: step times and peak allocated memory", _speedup_notes(speedups)
    return Table.of(speedups, columns, caption=caption, footnotes=notes, label="precision-speedups")


def speedup_columns(digits: str = ".4g") -> tuple[Source[SpeedUp], ...]:
    """The columns of a speed-up, after the columns that name its cell; `digits` are of the ratio and its interval."""
    return (
        lambda each: side_record("fp32", each.fp32, _PEAK) | side_record("other", each.other, _PEAK),
        Column("fp32", "fp32 ± std (ms)", text=lambda each: side_mean(each.fp32, MILLISECONDS), short="fp32 ms"),
        Column("other", "± std (ms)", text=lambda each: side_mean(each.other, MILLISECONDS), short="this ms"),
        lambda each: attributes(each.ratio, speedup="ratio") | ratio_record(each.ratio),
        Column("speedup", "speed-up", show=known(f"{{:{digits}}}")),
        Column("interval", rank=1, text=lambda each: each.ratio.bounds(digits) if each.ratio else ""),
        Column("outcome", "it is", left=True, text=lambda each: each.outcome if each.ratio else ""),
        lambda each: attributes(each, verdict="outcome", pays="pays"),
        Column("fp32_peak_allocated_bytes", "fp32 peak (GB)", rank=3, show=gigabytes, short="fp32 GB"),
        Column("other_peak_allocated_bytes", "peak (GB)", rank=2, show=gigabytes, short="this GB"),
        Column("memory_ratio", "peak / fp32", rank=2, show=known("{:.2f}"), short="memory"),
    )


def _provenance(report: PrecisionReport, note: str) -> Iterator[str]:
    yield f"read on {report.device_name}, torch {report.torch}; autocast rules differ on other devices"
    if note:
        yield note


def _speedup_notes(speedups: Sequence[SpeedUp]) -> Iterator[str]:
    yield f"speed-up: fp32's mean step time over the other precision's, above 1 is faster; interval: {LEVEL * 100:g} %"
    yield from dict.fromkeys(f"method: {each.ratio.method}" for each in speedups if each.ratio)
    yield (
        f"faster and slower: the whole interval on one side of 1 and the times at least {MARGIN * 100:g} % apart; "
        f"same: the whole interval within {MARGIN * 100:g} % of 1; else ambiguous"
    )
    yield from std_notes(side for each in speedups for side in (each.fp32, each.other))
    yield (
        "1 GB is 10⁹ bytes; peak allocated is counted after warm-up; on a device that does not count it, it is that of "
        "the cell's memory report, where one was made"
    )
    yield from dict.fromkeys(f"measured on {each.machine}" for each in speedups)
