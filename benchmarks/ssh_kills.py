"""Watchers, jobs and connections killed at random moments, with two machines by ssh, until each cell has one result:
``python -m benchmarks.ssh_kills``.

A session is killed several times, and watched or resumed after a kill of its watcher. Then it is resumed to its end,
its log is looked through (`job_logs`), and its processes and files are looked for on both machines.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import psutil

from benchmarks.job_logs import account_of, queued_in
from benchmarks.reporting import app, publish, table
from tests.cluster.sshd import MACHINES, Machine, Machines, missing, started

CELLS, WARMUP, STEPS = 6, 1, 200
MOST_KILLS = 3
"""Of one session."""
_WITHIN_S = 9.0
"""A kill comes so much later than the one before, at most."""
_TINY = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --threads 1 --device cpu"
SWEEP = [*_TINY.split(), *f"--pass forward --warmup {WARMUP} --steps {STEPS} --launcher ssh".split()]
HEADER = ("kills", "sessions", "cells", "one result", "twice", "lost", "processes left", "folders left")


def _kill(processes: list[psutil.Process]) -> bool:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return bool(processes)


def _cut(machine: Machine) -> bool:
    machine.cut()
    return True


VICTIMS: dict[str, Callable[[Machine], bool]] = {
    "run-job": lambda machine: _kill(machine.processes("run-job", "python")),
    "shell": lambda machine: _kill(machine.processes("CS336_TUI_JOB=")),
    "server": lambda machine: _kill(machine.processes("multiprocessing.forkserver")),
    "connection": _cut,
}
"""The process that is killed on a machine; False if there is none now."""


class Session:
    """A session in a folder whose commands are started, and killed."""

    def __init__(self, folder: Path, machines: Machines, chance: random.Random) -> None:
        self.folder, self._machines, self._chance = folder, machines, chance

    @property
    def log(self) -> Path | None:
        return next(iter(self.folder.glob("*.jsonl")), None)

    def start(self, command: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "said").open("ab") as said:
            full = [*app(), command, *words, "--session-dir", str(self.folder)]
            return subprocess.Popen(full, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def run(self, kills: int) -> Iterator[str]:
        """Run it to its end; yields what was killed."""
        commands = [f"--remote-command={machine.name}={machine.quick}" for machine in self._machines.all.values()]
        batches = ",".join(str(number + 1) for number in range(CELLS))
        running = self.start("bench", *SWEEP, "--batch", batches, "--host", ",".join(MACHINES), *commands)
        for _ in range(kills):
            time.sleep(self._chance.uniform(0.3, _WITHIN_S))
            victim = self._chance.choice(["watcher", *VICTIMS])
            if victim != "watcher":
                if VICTIMS[victim](self._machines[self._chance.choice(MACHINES)]):
                    yield victim
            elif running.poll() is None:
                running.kill()
                running.wait()
                yield victim
            if running.poll() is not None and self.log and queued_in(self.log):
                running = self.start(self._chance.choice(["watch", "resume"]), "last")
        running.wait()
        for _ in range(3):
            if self.log and queued_in(self.log):
                self.start("resume", "last", "--failed").wait()


def account(session: Session, machines: Machines) -> tuple[Counter[str], list[str]]:
    """Counts of a session that is over, and what is wrong with it."""
    found = account_of(session.log, WARMUP, STEPS) if session.log else None
    time.sleep(1.0)
    processes = [process for machine in machines.all.values() for process in machine.of_jobs()]
    folders = [path for machine in machines.all.values() if machine.jobs.exists() for path in machine.jobs.iterdir()]
    counts = Counter({"processes left": len(processes), "folders left": len(folders), "sessions": 1})
    if found:
        counts += Counter({"cells": found.cells, "one result": found.results, "twice": found.twice, "lost": found.lost})
    return counts, [*(found.why if found else ()), *map(str, processes), *map(str, folders)]


@click.command()
@click.option("--kills", default=40, show_default=True)
@click.option("--seed", default=336, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(kills: int, seed: int, output: Path | None) -> None:
    """Kill watchers, jobs and connections at random moments, resume their sessions, count results and what is left."""
    if lacking := missing():
        raise click.ClickException(f"no {lacking[0]} here")
    chance, killed, counts = random.Random(seed), Counter[str](), Counter[str]()
    with started() as machines:
        os.environ.update(machines.environment)
        while killed.total() < kills:
            folder = Path(tempfile.mkdtemp(prefix="kills-"))
            session = Session(folder, machines, chance)
            killed.update(session.run(min(chance.randint(1, MOST_KILLS), kills - killed.total())))
            more, wrong = account(session, machines)
            counts += more
            for each in wrong:
                click.echo(f"{folder}: {each}", err=True)
            if not wrong:
                shutil.rmtree(folder)
            for machine in machines.all.values():
                machine.reset()
    what = ", ".join(f"{count} {name}" for name, count in sorted(killed.items()))
    row = [f"{killed.total()}: {what}", *(str(counts[name]) for name in HEADER[1:])]
    publish(
        "Kills with two machines by ssh",
        f"python -m benchmarks.ssh_kills --kills {kills}",
        table(HEADER, [row]),
        output,
    )


if __name__ == "__main__":
    main()
