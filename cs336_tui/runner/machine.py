"""Facts about this machine that need no torch: operating system, processor, memory, Python."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from cs336_tui import __version__
from cs336_tui.environment import Environment, TorchEnvironment


def read_environment(
    torch: TorchEnvironment | None, *, driver: str | None, start_method: str | None, problems: tuple[str, ...] = ()
) -> Environment:
    """This machine with what torch reported; `problems` are added to torch's own."""
    import psutil

    found = torch or TorchEnvironment()
    return Environment(
        host=platform.node(),
        os=f"{platform.system()} {platform.release()}",
        cpu=processor_name(),
        cpu_count=usable_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        python=platform.python_version(),
        app=__version__,
        torch=found.torch,
        cuda=found.cuda,
        cudnn=found.cudnn,
        driver=driver,
        threads=found.threads,
        start_method=start_method,
        devices=found.devices,
        problems=(*problems, *found.problems),
    )


def usable_cpus() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """The processor as people know it, or its architecture where the system does not say."""
    if sys.platform == "darwin":
        found = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        if found.stdout.strip():
            return found.stdout.strip()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
