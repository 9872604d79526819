"""Commands that answer at once: time of ``--version``, help and completion, also against another version of the tool.

Rounds are interleaved: in each, every command of this version and of the other runs once.
"""

from __future__ import annotations

import compileall
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks.reporting import app, publish, spread, table, verdict

MARK_S = 0.2
"""A person waits no longer than this for a completion."""
ASKED: dict[str, tuple[tuple[str, ...], str]] = {
    "--version": (("--version",), ""),
    "--help": (("--help",), ""),
    "bench --help": (("bench", "--help"), ""),
    "completion of a command": ((), "cs336-tui be"),
    "completion of a preset": ((), "cs336-tui bench --preset 2026/"),
    "completion of a session": ((), "cs336-tui show "),
}
"""The arguments of each command, and the line that a shell completes."""


class Taken(NamedTuple):
    wall_s: float
    cpu_s: float


def take(command: list[str], line: str, env: dict[str, str]) -> Taken:
    """Runs a command, whose answer must be there."""
    if line:
        env = {**env, "_CS336_TUI_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": line.rpartition(" ")[2]}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE)
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@click.command()
@click.option("--rounds", default=15, show_default=True)
@click.option("--before", type=click.Path(path_type=Path), help="The command of another version, to compare with.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(rounds: int, before: Path | None, output: Path | None) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir("cs336_tui", quiet=1)
    versions = {"now": app(), **({"before": [str(before)]} if before else {})}
    found: dict[tuple[str, str], list[Taken]] = {}
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home, "COMP_CWORD": ""}
        for number in range(rounds + 1):
            for name, (words, line) in ASKED.items():
                for version, command in versions.items():
                    if line and version == "before":  # it may not complete anything
                        continue
                    taken = take([*command, *words], line, env)
                    if number:  # the first round warms the disk cache
                        found.setdefault((version, name), []).append(taken)
    rows = []
    for name, (_, line) in ASKED.items():
        now = found["now", name]
        held = verdict(statistics.median(each.cpu_s for each in now), 0, MARK_S) if line else ""
        row = [name, spread([each.wall_s for each in now]), spread([each.cpu_s for each in now])]
        if before:
            others = found.get(("before", name), ())
            more = [1e3 * (one.cpu_s - other.cpu_s) for one, other in zip(now, others, strict=False)]
            row.append(spread(more, 1) if more else "")
        rows.append([*row, f"at most {MARK_S}: {held}" if held else ""])
    header = ["", "s", "CPU s", *(["CPU ms more than before"] if before else []), "mark (CPU)"]
    asked = f"python -m benchmarks.commands --rounds {rounds}{' --before COMMAND' if before else ''}"
    publish("Commands that answer at once", asked, table(header, rows), output)


if __name__ == "__main__":
    main()
