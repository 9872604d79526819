"""`cs336-tui plan`: where communication begins to bound under DP, FSDP, TP and both, from dimensions alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from cs336_tui.analysis.merge import Result, results_of
from cs336_tui.analysis.roofline import IN_RINGS, PRECISIONS_OF, Format, link_rates, speed_of
from cs336_tui.analysis.scaling import PARTS, Device, Mesh, Part, accounts
from cs336_tui.analysis.scaling import plan as planned
from cs336_tui.analysis.targets import named_target
from cs336_tui.cli.export import write_figures
from cs336_tui.cli.files import Destination, file_options, is_given, json_text
from cs336_tui.cli.flags import COUNT, DIRECTORY, Parsed, choices_of, gpu_option
from cs336_tui.cli.help import Choice, command, heading, option, option_under
from cs336_tui.cli.suggestions import sessions
from cs336_tui.config.axis import UserError
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import bytes_per_s_of, flops_per_s_of, rank_counts_of
from cs336_tui.events.gpus import find_gpu
from cs336_tui.events.peaks import PeakCache
from cs336_tui.export.subjects.scaling import account_table, limit_table, plan_document, plan_figure, rank_table
from cs336_tui.session import store
from cs336_tui.stats.quantities import bandwidth, rate_text


def mesh_of(text: str) -> Mesh:
    """Ranks and links of either axis, ``16x4:2x1``. Raises ValueError."""
    found = re.fullmatch(r"(\d{1,6})x(\d{1,6}):(\d{1,2})x(\d{1,2})", text.strip())
    numbers = [int(number) for number in found.groups()] if found else [0]
    if min(numbers) < 1:
        raise ValueError("expected ranks of FSDP and TP, and links of either, such as 16x4:2x1")
    return Mesh(*numbers)


def memory_of(text: str) -> int:
    """Bytes of ``80GB``. Raises ValueError."""
    try:
        return round(bytes_per_s_of(f"{text.strip()}/s"))
    except ValueError:
        raise ValueError("expected a size such as 80GB") from None


_BYTES: dict[Format, int] = {"bf16": 2, "tf32": 4, "fp32": 4}


@command("plan")
@choices_of("size", "edition", "arch", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length")
@option_under(
    "What to run",
    "--batch N",
    "Sequences of the whole batch, which all ranks share. [default: 4]",
    name="batches",
    type=COUNT,
)
@heading("Which device")
@gpu_option
@option(
    "--flops",
    "FLOP/s of a device, such as 700TFLOP/s or 7e14, in place of the data sheet's peak.",
    name="flops_per_s",
    type=Parsed("RATE", flops_per_s_of),
)
@option(
    "--link",
    "Outgoing bandwidth of a device: 450GB/s, or in bits 400Gb/s. [default: NVLink's by the GPU's data sheet]",
    name="link_bytes_per_s",
    type=Parsed("RATE", bytes_per_s_of),
)
@option(
    "--measured SESSION",
    "In place of --link the busbw of this session's collectives, in place of --gpu the FLOP/s of its cells or its "
    "device's measured peak; may be repeated.",
    name="sessions",
    multiple=True,
    complete=sessions,
)
@option_under(
    "Several ranks",
    "--ranks",
    "Numbers of ranks: 1,2,6, or 1..1024, by doubling.",
    type=Parsed("N,...|N..N", rank_counts_of),
    default="1..1024",
)
@heading("What to run")
@option(
    "--part",
    "The whole model, or one feed-forward layer, as the handout's calculations have it.",
    type=Choice(PARTS),
    default="model",
)
@option(
    "--precision",
    "Precision of all numbers (bf16: 2 bytes, else 4) and of the data sheet's peak.",
    type=Choice(tuple(_BYTES)),
    default="bf16",
)
@option(
    "--mesh",
    "Memory and communication of blocks of two linear layers on FSDP x TP ranks over these links: 16x4:2x1.",
    type=Parsed("XxY:MxN", mesh_of),
)
@option(
    "--memory",
    "Memory of a device, with --mesh, such as 80GB; may be repeated.",
    name="memories",
    multiple=True,
    type=Parsed("SIZE", memory_of),
)
@option("--shared-link", "FSDP's and TP's communication share a link, so that their times add up.", is_flag=True)
@option_under("Output", "--figures DIR", "Also write figures here, as SVG, PDF and PNG.", type=DIRECTORY)
@file_options("table")
def plan(
    *,
    batches: int | None,
    gpu: str | None,
    flops_per_s: float | None,
    link_bytes_per_s: float | None,
    sessions: Sequence[str],
    ranks: tuple[int, ...],
    part: Part,
    precision: Format,
    mesh: Mesh | None,
    memories: Sequence[int],
    shared_link: bool,
    figures: Path | None,
    to: Destination,
    session_dir: Path,
    **choices: Any,
) -> str:
    """Find from how many ranks on communication is the limit of DP, FSDP, TP and FSDP+TP, and the best split.

    From dimensions, FLOP/s and bandwidth alone; nothing is run. The whole batch stays the same as ranks are added.

    \f
    As JSON ``{"plans": [...]}``, one for each size and context. Raises `UserError` or `click.UsageError`.
    """
    choices |= {"batches": batches and (batches,), "passes": ("train-step",), "devices": ("cpu",)}
    sweep = sweep_from(**choices)
    states = [store.load(store.find(name, session_dir)) for name in sessions]
    results, names = results_of(*states), f"session {', '.join(sessions)}"
    if sessions and link_bytes_per_s is not None and (gpu or flops_per_s is not None):
        raise click.UsageError("--measured takes the place of --link and of --gpu or --flops; leave one of them out")
    is_known = not sessions or link_bytes_per_s
    link = _given_link(gpu, link_bytes_per_s) if is_known else _measured_link(results, names)
    if mesh is None and memories:
        raise click.UsageError("--memory is of --mesh; give --mesh, such as 16x4:2x1")
    if mesh is not None:
        if ignored := [name for name in ("figures", "ranks", "part", "shared_link") if is_given(name)]:
            raise click.UsageError(f"--mesh takes no --{ignored[0].replace('_', '-')}; leave one of them out")
        speed, _ = _given_speed(gpu, flops_per_s, precision)
        device = Device(speed, link.bytes_per_s, link.by_operation)
        tables = [account_table(each, device, accounts(each, device, mesh, memories)) for each in sweep.cells()]
        if to.format == "json":
            return to.deliver(json_text({"accounting": [record for table in tables for record in table.records]}))
        return to.show(tables)
    plans = []
    for spec in (msgspec.structs.replace(each, precision=precision) for each in sweep.cells()):
        if sessions and gpu is None and flops_per_s is None:
            speed, source = _measured_speed(results, names, spec, precision, link)
        else:
            speed, source = _given_speed(gpu, flops_per_s, precision)
        device = Device(speed, link.bytes_per_s, link.by_operation, shared_link)
        plans.append(planned(spec, part, _BYTES[precision], device, ranks, (source, *link.sources)))
    if figures is not None:
        write_figures([plan_figure(each) for each in plans], figures, overwrite=to.overwrite)
    if to.format == "json":
        return to.deliver(json_text({"plans": [plan_document(each) for each in plans]}))
    return to.show([table for each in plans for table in (limit_table(each), rank_table(each))])


class _Link(NamedTuple):
    bytes_per_s: float
    by_operation: dict[str, float]
    sources: tuple[str, ...]
    kind: str | None = None
    """The kind of the device that it was measured on."""


def _given_link(gpu: str | None, bytes_per_s: float | None) -> _Link:
    """The bandwidth that was given, or that of the GPU's data sheet."""
    if bytes_per_s is not None:
        return _Link(bytes_per_s, {}, (f"{bandwidth(bytes_per_s)} GB/s: --link",))
    target = named_target(find_gpu(gpu)) if gpu is not None else None
    if target is None or target.link_bytes_per_s is None:
        raise click.UsageError("how fast is a link? give --link, such as 450GB/s, or --measured SESSION")
    return _Link(target.link_bytes_per_s, {}, (target.link_text,))


def _measured_link(results: Sequence[Result], names: str) -> _Link:
    rates = link_rates(results)
    if not rates:
        meant = f"cs336-tui comm --op {','.join(IN_RINGS)} --size 100MB --ranks 2"
        raise UserError(f"{names}: no collective was measured there; run {meant}, or give --link")
    instead = rates.get("all-reduce") or min(rates.values(), key=lambda each: each.bytes_per_s)
    sources, by_operation = [], {}
    for operation in IN_RINGS:
        rate = rates.get(operation, instead)
        as_other = "" if operation in rates else f"not measured, as {rate.spec.collective}: "
        sources.append(f"{bandwidth(rate.bytes_per_s)} GB/s busbw of {operation}: {as_other}{rate.text}")
        by_operation[operation] = rate.bytes_per_s
    return _Link(by_operation["all-reduce"], by_operation, tuple(sources), instead.kind)


def _measured_speed(
    results: Sequence[Result], names: str, spec: CellSpec, precision: Format, link: _Link
) -> tuple[float, str]:
    speed = speed_of(results, spec, precision, PeakCache().get, link.kind)
    if speed is None:
        named = PRECISIONS_OF[precision][-1]
        where = f" on {link.kind}" if link.kind else ""
        raise UserError(
            f"{names}: no FLOP/s in {precision} were measured{where}; run cs336-tui peak --precision {named}, or "
            f"bench cells with --precision {named}, choose another --precision, or give --gpu or --flops"
        )
    return speed.flops_per_s, f"{rate_text(speed.flops_per_s)}: {speed.text}"


def _given_speed(gpu: str | None, flops_per_s: float | None, precision: Format) -> tuple[float, str]:
    """The FLOP/s that were given, or those of the GPU's data sheet."""
    if flops_per_s is not None:
        return flops_per_s, f"{rate_text(flops_per_s)}: --flops"
    if gpu is None:
        raise click.UsageError(
            'how fast is a device? give --gpu, such as "H100", --flops, such as 700TFLOP/s, or --measured SESSION'
        )
    found = find_gpu(gpu)
    peak = found.peak_flops(precision)
    if peak is None:
        raise click.UsageError(f"{found.name}: no data sheet states its peak in {precision}; give --flops")
    return peak, f"{rate_text(peak)}: dense {precision} of {found.name}, {found.source}"
