"""Report parts that all benchmarks share: the machine, medians, ratios, verdicts against marks."""

from __future__ import annotations

import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path


def machine() -> str:
    """One line on the machine of the figures."""
    from cs336_tui.runner.machine import processor_name, usable_cpus

    return f"{processor_name()}, {usable_cpus()} cores, {platform.system()}, Python {platform.python_version()}"


def app() -> list[str]:
    """The command that starts the app: the installed one beside Python, or the module if there is none."""
    script = Path(sys.executable).with_name("cs336-tui")
    return [str(script)] if script.exists() else [sys.executable, "-m", "cs336_tui"]


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median with the least and the greatest: ``1.003 (0.991 to 1.020)``."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [" | ".join(header), " | ".join("---" for _ in header), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def verdict(value: float, low: float, high: float) -> str:
    """Verdict on a figure against its mark."""
    return "met" if low <= value <= high else "MISSED"


def publish(title: str, command: str, body: str, output: Path | None) -> None:
    """Print a section of markdown, and append it to `output` when given."""
    text = f"## {title}\n\n`{command}`, on {machine()}\n\n{body}\n"
    print(text, flush=True)
    if output is not None:
        with output.open("a") as file:
            file.write(text + "\n")
