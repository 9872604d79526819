"""Reads this machine's environment: its own facts, and torch's from a child process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from cs336_tui import __version__
from cs336_tui.events.environment import Environment, TorchEnvironment
from cs336_tui.runner.child import ProbeReport, probe
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.pipes import last_line
from cs336_tui.worker import worker_entry

PROBE_TIMEOUT_S = 120.0


def probe_machine(launcher: Launcher | None) -> Environment:
    """This machine. Asks torch in a child, spawned if a fork cannot use CUDA; without a launcher in this process."""
    if launcher is None:
        return read_environment(worker_entry.probe(), start_method="in-process")
    report, slower = _ask_child(launcher), ""
    if report.forked_after_driver:
        launcher.method = "spawn"
        slower = "the CUDA driver was initialised in the fork server; children are spawned instead (slower)"
        report = _ask_child(launcher)
    problems = tuple(filter(None, (slower, report.error)))
    return read_environment(report.torch, start_method=launcher.method, problems=problems)


def _ask_child(launcher: Launcher) -> ProbeReport:
    try:
        child = launcher.start_answers("probe", probe)
    except StartError as error:
        return ProbeReport(None, False, str(error))
    with closing(child):
        with suppress(TimeoutError):
            for payload in child.messages(PROBE_TIMEOUT_S):
                return msgspec.json.decode(payload, type=ProbeReport)
        child.process.kill()
        child.process.join()
        reason = last_line(child.output) or f"exit code {child.process.exitcode}"
        return ProbeReport(None, False, f"torch could not be asked what this machine offers: {reason}")


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


def usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
