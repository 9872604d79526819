"""Everything that needs a CUDA GPU, in one command: the GPU tests, then the benchmarks, into one report file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from benchmarks.reporting import machine

_COMPILING = ("tests/gpu/test_compiling_cuda.py", "tests/gpu/test_variants_cuda.py")
"""Test files that compile for a minute or more."""
_PYTEST = ["-m", "pytest", "-v", "-rs", "--tb=short", "-p", "no:cacheprovider"]
STEPS = (
    ("GPU tests", [*_PYTEST, "tests/gpu", *(f"--ignore={file}" for file in _COMPILING)], False),
    ("GPU tests that compile", [*_PYTEST, *_COMPILING], False),
    ("Doctor", ["-m", "cs336_tui", "doctor"], False),
    ("Selftest", ["-m", "cs336_tui", "selftest", "--device", "cuda", "--format", "markdown"], False),
    ("Predicted peak", ["-m", "benchmarks.predicted_peak", "--device", "cuda", "--quick"], True),
    ("Creation", ["-m", "benchmarks.creation"], True),
    ("Overhead", ["-m", "benchmarks.overhead", "--device", "cuda"], True),
    ("Start", ["-m", "benchmarks.start"], True),
    ("Screen", ["-m", "benchmarks.screen_cost"], True),
)
"""Title, arguments to Python, and whether the step appends its own section to the report."""


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("gpu-report.md"), show_default=True)
@click.option("--timeout", default=420.0, show_default=True, help="Seconds that one step may take.")
def main(output: Path, timeout: float) -> None:
    output.write_text(f"# GPU report\n\n{machine()}\n\n")
    failed = []
    for title, arguments, reports_itself in STEPS:
        click.echo(f"== {title}")
        command = [sys.executable, *arguments, *(["--output", str(output)] if reports_itself else [])]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
            text, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as error:
            said = error.stdout or b""
            text, code = f"{said.decode(errors='replace')}\nended after {timeout:.0f} s", 1
        click.echo(text)
        if code:
            failed.append(title)
        if code or not reports_itself:
            with output.open("a") as file:
                file.write(f"## {title} (exit code {code})\n\n```\n{text}\n```\n\n")
    click.echo(f"wrote {output}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
