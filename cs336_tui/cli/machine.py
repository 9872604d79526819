"""`cs336-tui doctor` and `peak`: what this machine offers and what is missing; what its devices do at best, measured on
the spot, with the data sheet's figures beside it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast, get_args

import click

from cs336_tui.analysis.gpu_words import APPLE, figures, notes, numbered
from cs336_tui.cli.files import Destination, file_options, json_text, text_or_json
from cs336_tui.cli.flags import COUNT, WORDS
from cs336_tui.cli.help import command, heading, option
from cs336_tui.cli.suggestions import devices
from cs336_tui.cli.targets import Counter, child_processes, read_environment, read_machine
from cs336_tui.config.reading import exists
from cs336_tui.config.spec import Precision, SpecError
from cs336_tui.events.environment import DeviceInfo, Environment, GpuSample
from cs336_tui.events.peaks import PeakCache, PeakError, peak_key
from cs336_tui.export.subjects.roofline import PeakRow, peak_table
from cs336_tui.runner.device.nvml import NO_LIBRARY, NvmlReport, nvml_report
from cs336_tui.runner.lanes import Core, cores_here
from cs336_tui.runner.machine import Diagnosis, lacking_code, measure_peak
from cs336_tui.session.log import default_session_dir
from cs336_tui.stats.quantities import counted, gigabytes

_MOST_CORES = 8
"""Most cores that are listed."""


def _machine(env: Environment, nvml: NvmlReport) -> list[str]:
    no_driver = "no NVIDIA driver found" if nvml.why in (None, NO_LIBRARY) else "unknown, see below"
    rows = {
        "cs336-tui": env.app,
        "host": f"{env.host}, {env.os}",
        "processor": f"{env.cpu}, {counted(env.cpu_count, 'usable core')}",
        "memory": f"{gigabytes(env.memory_bytes)} GB",
        "Python": env.python,
        "torch": f"{env.torch}, {counted(env.threads or 1, 'thread')}" if env.torch else "missing",
        "CUDA": f"{env.cuda}, cuDNN {env.cudnn or 'n/a'}" if env.cuda else "this torch is built without CUDA",
        "driver": env.driver or no_driver,
        "children": f"started by {env.start_method}",
        "ranks": ranks_row(env),
        "lanes": lanes_row(env, cores_here()),
    }
    return [f"{name:<10} {value}" for name, value in rows.items()]


def ranks_row(env: Environment) -> str:
    """The backends by which several ranks communicate, and on how many GPUs there may be ranks."""
    gpus = sum(device.name.startswith("cuda") for device in env.devices)
    most = f"up to {gpus} on GPUs" if gpus > 1 else "on the CPU only"
    return f"{most}, with {' and '.join(env.backends)}" if env.backends else "this torch has no backend for several"


def lanes_row(env: Environment, cores: Sequence[Core]) -> str:
    """The lanes that cells may run in side by side: a GPU each, or on the CPU the cores of each with one thread."""
    gpus = [device.name for device in env.devices if device.name.startswith("cuda")]
    on_gpus = f"{len(gpus)}, one for each GPU" if len(gpus) > 1 else ""
    several = [",".join(map(str, core)) for core in cores]
    shown = several if len(several) <= _MOST_CORES else [*several[: _MOST_CORES - 1], "...", several[-1]]
    on_cpu = f"{len(cores)} on the CPU with --threads 1: cores {' | '.join(shown)}" if len(cores) > 1 else ""
    return "; ".join(filter(None, (on_gpus, on_cpu))) or "one: there is neither a second GPU nor a second core"


def _devices(env: Environment) -> list[str]:
    lines = ["devices"]
    for device in env.devices:
        memory = f", {gigabytes(device.memory_bytes)} GB" if device.memory_bytes else ""
        lines.append(f"  {device.name:<8} {device.label}{memory}: {', '.join(device.precisions)}")
        if device.attentions:
            lines.append(f"{'':<11}attention: {', '.join(device.attentions)}")
        lines.append(f"{'':<11}torch.compile: {device.cannot_compile or 'yes'}")
        lines.append(f"{'':<11}CUDA graphs: {'yes' if device.name.startswith('cuda') else 'no, only on cuda'}")
        lines += [f"{'':<11}{APPLE}"] if device.name == "mps" else []
    return lines if env.devices else ["devices    none"]


def gpus_of(env: Environment, gpus: Sequence[GpuSample]) -> list[str]:
    """The NVIDIA GPUs as they are now, with the words of the app's Device pane."""
    named: dict[str | None, str] = {device.uuid: device.name for device in env.devices if device.uuid}
    lines = ["GPUs"] if gpus else []
    for _, title, gpu in numbered(gpus):
        lines.append("  " + " · ".join(filter(None, (title, named.get(gpu.uuid), gpu.name))))
        told = [f"{label} {text}" for label, text, _ in figures(gpu)]
        lines += [f"{'':<11}{text}" for text in (", ".join(told), *notes(gpu))]
    return lines


def _app() -> list[str]:
    directory = default_session_dir()
    existing = next(path for path in (directory, *directory.parents) if exists(path))
    writable = os.access(existing, os.W_OK)
    terminal = f"{os.environ.get('TERM', 'unset')}, {'x'.join(map(str, shutil.get_terminal_size()))}"
    return [
        f"sessions   {directory}{'' if writable else ' (not writable: use --session-dir)'}",
        f"terminal   {terminal}" if sys.stdout.isatty() else "terminal   standard output is no terminal",
    ]


def missing(env: Environment, nvml: NvmlReport) -> list[str]:
    """Missing or odd things; `nvml` is the NVIDIA driver's answer."""
    kinds = {device.name.partition(":")[0] for device in env.devices}
    of_nvml = filter(None, (nvml.why, *nvml.lost)) if "mps" not in kinds else ()
    lines = list(dict.fromkeys((*env.problems, *of_nvml)))
    if "cuda" not in kinds and nvml.gpus:
        no_cuda = "there is an NVIDIA driver, but this torch has no CUDA: install a CUDA build of torch"
        no_gpu = "there is an NVIDIA driver and a CUDA torch, but torch sees no GPU: see the lines above"
        lines.append(no_gpu if env.cuda else no_cuda)
    return lines


@command("doctor")
@text_or_json
@heading("Your model")
@option("--code MODULE:NAME", "Only say whether this code of yours is found; may be repeated.", multiple=True)
@option("--model-path DIRECTORY", "Folder to look for it in; may be repeated.", name="folders", multiple=True)
def doctor(*, format_: str, code: tuple[str, ...], folders: tuple[str, ...]) -> str:
    """Say what this machine offers for benchmarks and what is missing."""
    as_json = format_ == "json"
    if code:
        lacking = tuple(lacking_code(code, folders))
        return json_text(Diagnosis(missing_code=lacking)) if as_json else "\n".join(lacking or ("nothing is missing",))
    environment, nvml = read_environment(), nvml_report()
    problems = missing(environment, nvml)
    if as_json:
        return json_text(Diagnosis(environment, tuple(problems)))
    parts = (
        _machine(environment, nvml),
        _devices(environment),
        gpus_of(environment, sampled_gpus() if nvml.gpus else ()),
        _app(),
        ["missing or odd", *(f"  - {each}" for each in problems)] if problems else ["nothing is missing"],
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def sampled_gpus() -> tuple[GpuSample, ...]:
    """All GPUs of this machine that NVML knows, as they are now."""
    from cs336_tui.runner.device.gpu import GpuMonitor, read_each

    monitors: dict[str | None, GpuMonitor] = {}
    found = read_each(nvml_report().gpus, monitors, time.monotonic())
    for monitor in monitors.values():
        monitor.close()
    return found


@command("peak")
@heading("What to run")
@option(
    "--device",
    "Where to measure: auto, every, cpu, mps, cuda, cuda:N. [default: auto]",
    name="devices",
    type=WORDS,
    default=(),
    complete=devices,
)
@option(
    "--precision",
    "Precisions to measure. [default: all that the device can do]",
    name="precisions",
    type=WORDS,
    default=(),
    complete=get_args(Precision),
)
@heading("How it runs")
@option("--threads", "CPU threads of one operation (torch's intra-op threads). [default: torch's own]", type=COUNT)
@option("--refresh", "Measure again, in place of remembered results.", is_flag=True)
@file_options("table")
def peak(
    *,
    devices: Sequence[str],
    precisions: Sequence[str],
    to: Destination,
    refresh: bool,
    threads: int | None = None,
    session_dir: Path | None = None,  # noqa: ARG001  # every command takes it
) -> str:
    """Measure the peak of matrix products and copies, with the data sheet's figures beside it where known.

    Takes some seconds a precision; what was measured is remembered for this device, torch and thread count.

    \f
    A peak that cannot be measured leaves its row with the reason; raises `click.ClickException` when that is all of
    them, `SpecError` for what a device cannot do.
    """
    environment, cache = read_machine().environment, PeakCache()
    asked = list(_asked(environment, devices, precisions))
    counted = Counter("measuring peaks", len(asked))
    rows = []
    with child_processes() as launcher:
        for device, precision in asked:
            found, error = None if refresh else cache.get(peak_key(environment, device.name, precision, threads)), ""
            if found is None:
                try:
                    found = measure_peak(launcher, device.name, precision, threads=threads)
                    # By the threads that were in force, so that it is never taken for a peak with others.
                    cache.put(peak_key(environment, device.name, precision, found.threads), found)
                except PeakError as failure:
                    error = str(failure)
            rows.append(PeakRow(device=device, precision=precision, peak=found, error=error))
            counted()
    if all(row.peak is None for row in rows):
        raise click.ClickException("; ".join(dict.fromkeys(row.error for row in rows)))
    return to.show([peak_table(rows)])


def _asked(
    environment: Environment, devices: Sequence[str], precisions: Sequence[str]
) -> Iterator[tuple[DeviceInfo, Precision]]:
    for name in dict.fromkeys(environment.resolve(tuple(devices) or ("auto",))):
        info = environment.device(name)
        if info is None:
            have = ", ".join(each.name for each in environment.devices) or "none that torch can use"
            raise SpecError("device", name, f"this machine has {have}")
        for precision in dict.fromkeys(precisions or info.precisions):
            if precision not in info.precisions:
                can = f"{info.title} can do {', '.join(info.precisions)}"
                raise SpecError("precision", precision, can)
            yield info, cast(Precision, precision)
