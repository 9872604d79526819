"""Fidelity: `cs336-tui selftest` with several chosen cases in one report.

What is run, and what the ratios are, is said in `cs336_tui/selftest/`. Whether glibc's malloc gives a step's memory
back and faults it in again differs from one start of a bare script to the next. A cell's process always keeps it
(`runner/child.py`); ``--keep-memory`` has the bare script do the same.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.reporting import publish
from cs336_tui.cli.files import json_text
from cs336_tui.cli.selftest import device_of, run_selftest
from cs336_tui.cli.targets import read_machine
from cs336_tui.export.subjects.selftest import selftest_table
from cs336_tui.export.writing.formats import render
from cs336_tui.selftest.programs import SelftestCell
from cs336_tui.selftest.turns import Plan


@click.command()
@click.option(
    "--case", "cases", multiple=True, default=("tiny:forward:4:16:1.5", "small:forward:3:5:6"), show_default=True
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--keep-memory", is_flag=True, help="Tell the bare script's malloc to keep freed memory.")
@click.option("--raw", type=click.Path(path_type=Path), help="Write every step time to this JSON file.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(cases: tuple[str, ...], device: str, keep_memory: bool, raw: Path | None, output: Path | None) -> None:
    """Each --case is SIZE:PASS:STARTS:ROUNDS:SECONDS, the seconds being those of a turn."""
    environment = read_machine().environment
    name = device_of(environment, device)
    found = {}
    for case in cases:
        size, pass_, starts, rounds, turn_s = case.split(":")
        plan = Plan(starts=int(starts), rounds=int(rounds), turn_s=float(turn_s), steps=0)
        found[case] = run_selftest(
            SelftestCell(size=size, pass_=pass_, device=name), plan, environment, keep_memory=keep_memory
        )
    if raw is not None:
        raw.write_text(json_text(found))
    command = f"python -m benchmarks.fidelity {' '.join(f'--case {case}' for case in cases)} --device {device}"
    command += " --keep-memory" if keep_memory else ""
    publish("Fidelity", command, "\n".join(render(selftest_table(each), "markdown") for each in found.values()), output)


if __name__ == "__main__":
    main()
