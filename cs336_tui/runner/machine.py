"""Examines this machine: its own facts, and from a child process torch's and a device's peak."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import msgspec

from cs336_tui import __version__
from cs336_tui.config.reading import is_folder
from cs336_tui.config.spec import Precision
from cs336_tui.config.variants import why_no_module, why_not_there
from cs336_tui.events.environment import Environment, TorchEnvironment
from cs336_tui.events.peaks import DevicePeak, PeakError
from cs336_tui.runner.child import FORKED_AFTER_DRIVER, Answer, peak, probe, tried
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.pipes import StopSignal, last_line
from cs336_tui.runner.queue import STOPPED
from cs336_tui.worker import worker_entry

PROBE_TIMEOUT_S = 120.0
DEVICE_ANSWERS_S = 60.0
"""Seconds in which a device does a small product, once its process has started."""


class Diagnosis(msgspec.Struct, frozen=True):
    """The content of ``cs336-tui doctor --json``: the machine, what is missing or odd, and which of a user's own code
    is not here. The machine is left out where only code was asked for."""

    environment: Environment | None = None
    missing: tuple[str, ...] = ()
    missing_code: tuple[str, ...] = ()


def probe_machine(launcher: Launcher | None) -> Environment:
    """This machine. Asks torch in a child, spawned if a fork cannot use CUDA; without a launcher in this process."""
    if launcher is None:
        return read_environment(worker_entry.probe(), start_method="in-process")
    answer, slower = _ask_child(launcher), ""
    if answer.error == FORKED_AFTER_DRIVER:
        launcher.method = "spawn"
        slower = "the CUDA driver was initialised in the fork server; children are spawned instead (slower)"
        answer = _ask_child(launcher)
    problems = tuple(filter(None, (slower, answer.error)))
    return read_environment(answer.found, start_method=launcher.method, problems=problems)


def _ask_child(launcher: Launcher) -> Answer[TorchEnvironment]:
    try:
        child = launcher.start_answers("probe", probe)
    except StartError as error:
        return Answer(error=str(error))
    with closing(child):
        with suppress(TimeoutError):
            for payload in child.messages(PROBE_TIMEOUT_S):
                return msgspec.json.decode(payload, type=Answer[TorchEnvironment])
        child.process.kill()
        child.process.join()
        reason = last_line(child.output) or f"exit code {child.process.exitcode}"
        return Answer(error=f"torch could not list this machine's devices: {reason}")


def read_environment(
    torch: TorchEnvironment | None, *, start_method: str | None, problems: tuple[str, ...] = ()
) -> Environment:
    """This machine with torch's report and the driver's version; `problems` are added to torch's and NVML's."""
    import psutil

    from cs336_tui.runner.device.nvml import NO_LIBRARY, nvml_report

    found = torch or TorchEnvironment()
    nvml = nvml_report(gpus=False)
    if nvml.why and nvml.why != NO_LIBRARY:  # a machine without NVIDIA's driver lacks nothing
        problems = (*problems, nvml.why)
    return Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=processor_name(),
        cpu_count=usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        app=__version__,
        driver=nvml.driver,
        start_method=start_method,
        **msgspec.structs.asdict(msgspec.structs.replace(found, problems=(*problems, *found.problems))),
    )


def lacking_code(names: Iterable[str], folders: Sequence[str]) -> Iterator[str]:
    """A line for each folder of a user's own code that is not here, and each name that cannot be there. Imports
    nothing."""
    yield from (f"the folder {folder} is not there" for folder in folders if not is_folder(Path(folder)))
    found = (why_no_module(name, folders) or why_not_there(name, folders) for name in dict.fromkeys(names))
    yield from dict.fromkeys(filter(None, found))


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """The processor's model name, or its architecture if the system does not tell."""
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        if name := subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip():
            return name
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def device_fault(
    launcher: Launcher, device: str, within_s: float = DEVICE_ANSWERS_S, *, stop: StopSignal | None = None
) -> str | None:
    """Why a fresh process cannot use a device, in one line; None if it can, or if `stop` is set before it is known."""
    try:
        child = launcher.start_answers(f"try-{device.replace(':', '-')}", partial(tried, device))
    except StartError as error:
        return str(error)
    with closing(child):
        try:
            answer = next(child.messages(within_s, stop), None)
        except TimeoutError:
            return f"{device} does not answer within {within_s:g} s"
        if stop and stop.is_set():
            return None
        if answer is not None:
            return msgspec.json.decode(answer, type=Answer[None]).error
        return f"a process that used {device} ended early: {last_line(child.output) or 'it printed nothing'}"


def measure_peak(
    launcher: Launcher, device: str, precision: Precision, threads: int | None = None, *, stop: StopSignal | None = None
) -> DevicePeak:
    """The device's peak in a precision; takes some seconds. Raises `PeakError`, also when `stop` is set meanwhile."""
    try:
        child = launcher.start_answers("peak", partial(peak, device, precision, threads))
    except StartError as error:
        raise PeakError(str(error)) from None
    with closing(child):
        for payload in child.messages(stop=stop):
            answer = msgspec.json.decode(payload, type=Answer[DevicePeak])
            if answer.found is None:
                raise PeakError(answer.error or "no reason was given")
            return with_others(answer.found, child.process.pid)
        raise PeakError(STOPPED if stop and stop.is_set() else "the process that measures ended early")


def with_others(peak: DevicePeak, pid: int | None) -> DevicePeak:
    """The peak with the number of other processes on its GPU, beside that of `pid`, as NVML sees them now."""
    if peak.uuid is None:
        return peak
    from cs336_tui.runner.device.gpu import GpuMonitor

    monitor = GpuMonitor()
    monitor.follow(peak.uuid)
    sample, _ = monitor.sample(time.monotonic(), pid, fresh=True)
    monitor.close()
    seen = sample.other_processes if sample else None
    return msgspec.structs.replace(peak, others=None if seen is None else len(seen))
