"""`cs336-tui plan`: where communication begins to bound under DP, FSDP, TP and both, from dimensions alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click
import msgspec

from cs336_tui.analysis.scaling import PARTS, Device, Part
from cs336_tui.analysis.scaling import plan as planned
from cs336_tui.cli.export import write_figures
from cs336_tui.cli.flags import DIRECTORY, Parsed, choices_of, file_options, gpu_option, options
from cs336_tui.cli.targets import deliver, to_json
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.ranks import bytes_per_s_of, flops_per_s_of, rank_counts_of
from cs336_tui.events.gpus import find_gpu
from cs336_tui.export.formats import answer
from cs336_tui.export.scaling import limit_table, plan_document, plan_figure, rank_table

_BYTES = {"bf16": 2, "tf32": 4, "fp32": 4}


@choices_of("size", "edition", "arch", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length")
@click.option(
    "--batch",
    "batches",
    type=click.IntRange(1),
    metavar="N",
    help="Sequences of the whole batch, which all ranks share. [default: 4]",
)
@gpu_option
@click.option(
    "--flops",
    "flops_per_s",
    type=Parsed("RATE", flops_per_s_of),
    help="FLOP/s of a device, such as 700TFLOP/s or 7e14, in place of the data sheet's peak.",
)
@click.option(
    "--link",
    "link_bytes_per_s",
    type=Parsed("RATE", bytes_per_s_of),
    required=True,
    help="Outgoing bandwidth of a device: 450GB/s, or in bits 400Gb/s.",
)
@click.option(
    "--ranks",
    type=Parsed("N,...|N..N", rank_counts_of),
    default="1..1024",
    show_default=True,
    help="Numbers of ranks: 1,2,6, or 1..1024, which doubles.",
)
@click.option(
    "--part",
    type=click.Choice(PARTS),
    default="model",
    show_default=True,
    help="The whole model, or one feed-forward layer, as the handout's calculations have it.",
)
@click.option(
    "--precision",
    type=click.Choice(tuple(_BYTES)),
    default="bf16",
    show_default=True,
    help="Of all numbers: bf16 has 2 bytes, the others 4; says which peak of the data sheet is meant.",
)
@click.option(
    "--shared-link", is_flag=True, help="FSDP's and TP's communication share a link, so that their times add up."
)
@click.option("--figures", type=DIRECTORY, metavar="DIR", help="Also write figures here, as SVG, PDF and PNG.")
@options(*file_options("table"))
def plan_command(
    *,
    batches: int | None,
    gpu: str | None,
    flops_per_s: float | None,
    link_bytes_per_s: float,
    ranks: tuple[int, ...],
    part: Part,
    precision: Literal["bf16", "tf32", "fp32"],
    shared_link: bool,
    figures: Path | None,
    format_: str,
    output: Path | None,
    force: bool,
    **choices: Any,
) -> str:
    """Say on how many ranks communication begins to bound DP, FSDP, TP and FSDP+TP, and which split is best.

    From dimensions, FLOP/s and bandwidth alone; nothing is run. The whole batch stays the same as ranks are added.

    \f
    As JSON ``{"plans": [...]}``, one for each size and context. Raises `UserError` or `click.UsageError`.
    """
    choices |= {"batches": batches and (batches,), "passes": ("train-step",), "devices": ("cpu",)}
    sweep = sweep_from(**choices)
    device = Device(_speed(gpu, flops_per_s, precision), link_bytes_per_s)
    specs = [msgspec.structs.replace(spec, precision=precision) for spec in sweep.cells()]
    plans = [planned(spec, part, _BYTES[precision], device, ranks, shared_link=shared_link) for spec in specs]
    if figures is not None:
        write_figures([plan_figure(each) for each in plans], figures, overwrite=force)
    if format_ == "json":
        return deliver(to_json({"plans": [plan_document(each) for each in plans]}), output, force=force)
    tables = [table for each in plans for table in (limit_table(each), rank_table(each))]
    return deliver(answer(tables, format_), output, force=force)


def _speed(gpu: str | None, flops_per_s: float | None, precision: Literal["bf16", "tf32", "fp32"]) -> float:
    if flops_per_s is not None:
        return flops_per_s
    if gpu is None:
        raise click.UsageError('how fast is a device? give --gpu, such as "H100", or --flops, such as 700TFLOP/s')
    found = find_gpu(gpu)
    peak = found.peak_flops(precision)
    if peak is None:
        raise click.UsageError(f"{found.name}: no data sheet states its peak in {precision}; give --flops")
    return peak


plan = click.command("plan")(plan_command)
