"""Jobs, their watchers and submitters, lanes and ranks killed or stopped (SIGSTOP) at random moments, on this machine
and in a real Slurm, until each cell has one result: ``python -m benchmarks.job_kills``. Every second command runs below
a parent that never reaps.

A session is killed up to six times, also while it is watched or resumed after a kill. Then it is resumed to its end,
its log is looked through (`job_logs`), and its processes and files are looked for on all nodes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import psutil

from benchmarks.job_logs import Account, account_of, queued_in
from benchmarks.reporting import app, publish, table
from benchmarks.unreaped import PARENTS, Unreaped
from cs336_tui.config.processes import lives
from cs336_tui.session.lock import lock_path
from tests.cluster.slurm import NODES, Slurm, missing, started

MARK = "CS336_TUI_KILLS"
"""Environment variable of every process that is started here: its session's folder, by which it is found."""
CELLS, WARMUP, STEPS = 6, 1, 200
MOST_KILLS = 6
"""Of one session."""
GONE_WITHIN_S = 10.0
PATIENCE_S, IN_SLURM_S = 120.0, 600.0
"""A command ends within that; a job of Slurm may wait for the nodes that stale jobs hold."""
NO_STEPD = "KILL of a slurmstepd"
STALE = "job in Slurm's list alone"
SIGNALS = ("KILL", "TERM", "INT", "STOP+KILL", "STOP")
"""A server that is stopped stays so; other processes go on after a while."""
_TINY = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --threads 1 --device cpu"
SWEEP = [*_TINY.split(), *f"--pass forward --warmup {WARMUP} --steps {STEPS} --device-interval 0".split()]


class Place(NamedTuple):
    """A way to start a session, and the processes of it that can be killed."""

    starts: tuple[str, ...]
    victims: tuple[str, ...]


_OF_LANES = ("bench", "cell", "server")
_OF_JOBS = ("watcher", "submitter", "job", "cell", "server")
PLACES = {
    "lanes": Place(("--lanes 2",), _OF_LANES),
    "ranks": Place(("--ranks 2",), _OF_LANES),
    "local jobs": Place(("--launcher local", "--launcher local --as allocation --lanes 2"), _OF_JOBS),
    "Slurm": Place(
        (
            "--launcher slurm --partition ci",
            "--launcher slurm --partition ci --as allocation --lanes 2",
            "--launcher slurm --partition ci --nodes 2 --lanes 1",
        ),
        (*_OF_JOBS, "scancel", "requeue", "slurmstepd", "node"),
    ),
}
AT_ONCE = {"lanes": 2, "ranks": 1, "local jobs": 2, "Slurm": 4}
"""Sessions side by side at most; those of jobs wait most of the time."""
MIXED = "any of them"


@dataclass
class Tally:
    """Results of the kills of one kind."""

    kills: dict[str, int] = field(default_factory=dict)
    """By signal."""
    amid: int = 0
    """Kills while a process of a cell lived."""
    sessions: int = 0
    cells: int = 0
    results: int = 0
    twice: int = 0
    again: int = 0
    lost: int = 0
    orphans: int = 0
    """Processes and jobs that were left."""
    files: dict[str, int] = field(default_factory=dict)
    """Files of dead processes that were left, by what they are."""
    wrong: list[str] = field(default_factory=list)


class Session:
    """A session in a folder, started and resumed by commands, and killed."""

    def __init__(self, folder: Path, place: str, chance: random.Random, tally: Tally, slurm: Slurm | None) -> None:
        self.folder, self.place, self._chance, self.tally, self._slurm = folder, PLACES[place], chance, tally, slurm
        self._sessions = folder / "sessions"
        self._temporary = folder / "tmp"
        self._temporary.mkdir()
        self._submitted = 0
        """Requests of jobs that were seen."""
        self._commands: list[subprocess.Popen[bytes] | Unreaped] = []

    @property
    def log(self) -> Path | None:
        return next(iter(self._sessions.glob("*.jsonl")), None)

    def run(self, victim: str, kills: int) -> int:
        """Run the session to its end, killing a `victim` so often; returns the number of kills."""
        done = 0
        self._start("bench", *SWEEP, *self._chance.choice(self.place.starts).split(), "--batch", self._batches())
        if len(self.place.victims) > 3 and self._chance.random() < 0.2 and self._wait(lambda: self.log is not None, 10):
            self._start("watch", str(self.log))
        try:
            while done < kills:
                name = self._chance.choice(self.place.victims) if victim == MIXED else victim
                if self._kill(name):
                    done += 1
                elif not self._go_on():
                    break
            self._finish()
        finally:
            self._count()
        return done

    def _batches(self) -> str:
        return ",".join(str(number + 1) for number in range(CELLS))

    def _start(self, *words: str, sessions: Path | None = None) -> None:
        environment = os.environ | {MARK: str(self.folder), "TMPDIR": str(self._temporary)}
        environment |= self._slurm.environment if self._slurm else {}
        said = (self.folder / "said").open("ab")
        folder = [] if words[0] in ("watch", "resume") else ["--session-dir", str(sessions or self._sessions)]
        with said:
            below = Unreaped if self._chance.random() < 0.5 else subprocess.Popen
            command = below(
                [*app(), *words, *folder], env=environment, cwd=self.folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
        self._commands.append(command)

    def _wait(self, true: Callable[[], object], within_s: float) -> bool:
        give_up_at = time.monotonic() + within_s
        while not true():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.05)
        return True

    def _is_over(self) -> bool:
        return all(command.poll() is not None for command in self._commands)

    def _lines(self) -> int:
        logs = (*self._sessions.glob("*.jsonl"), *self._sessions.glob("*.jobs/*.jsonl"))
        return sum(log.read_bytes().count(b"\n") for log in logs)

    def _requests(self) -> int:
        return len(list(self._sessions.glob("*.jobs/*.json")))

    def _cell_runs(self) -> bool:
        return any(True for _ in self._victims("cell"))

    def _moment(self) -> None:
        """Wait for a random moment: some time, or so many more lines in the logs; without jobs mostly from when a cell
        runs, as torch is imported for most of the time before."""
        if len(self.place.victims) == len(_OF_LANES) and self._chance.random() < 0.8:
            self._wait(lambda: self._cell_runs() or self._is_over(), PATIENCE_S)
        more = self._chance.choice([0, *range(1, 8 * CELLS)])
        enough = self._lines() + more
        if more:
            self._wait(lambda: self._lines() >= enough or self._is_over(), 30)
        after_s = self._chance.uniform(0, 0.1 if more else 3.0)
        self._wait(self._is_over, after_s)

    def _kill(self, name: str) -> bool:
        """Kill one at a random moment; False if there is none any more."""
        if name == "submitter":
            if not self._wait(lambda: self._requests() > self._submitted or self._is_over(), 10) or self._is_over():
                return False
            self._submitted = self._requests()
            self._wait(self._is_over, self._chance.uniform(0, 1.0))  # while it submits
        else:
            self._moment()
        if name in ("scancel", "requeue", "node"):
            return self._wait(lambda: self._by_slurm(name) or self._is_over(), 10) and not self._is_over()
        self._wait(lambda: list(self._victims(name)) or self._is_over(), 10)
        found = list(self._victims(name))
        return bool(found) and self._signal(self._chance.choice(found), name)

    def _signal(self, process: psutil.Process, name: str) -> bool:
        kind = "KILL" if name == "slurmstepd" else self._chance.choice(SIGNALS)
        said, is_amid = NO_STEPD if name == "slurmstepd" else kind, self._cell_runs()
        try:
            if kind == "STOP+KILL":
                process.suspend()
                time.sleep(self._chance.uniform(0, 1.0))
                process.kill()
            elif kind == "STOP" and name != "server":
                process.suspend()
                time.sleep(self._chance.uniform(0, 2.0))
                process.resume()
            else:
                process.send_signal(getattr(signal, f"SIG{kind}"))
        except psutil.Error:
            return False
        _add(self.tally.kills, said)
        self.tally.amid += is_amid
        return True

    def _victims(self, name: str) -> Iterator[psutil.Process]:
        """The processes of this kind."""
        for process, words in self._processes():
            if _kind_of(process, words) == ("watcher" if name in ("bench", "submitter") else name):
                yield process
            elif name == "slurmstepd" and "run-job" in words:
                with contextlib.suppress(psutil.Error):
                    yield from (each for each in process.parents() if "slurmstepd" in each.name())

    def _processes(self) -> Iterator[tuple[psutil.Process, list[str]]]:
        """The processes that were started for this session, on all nodes, with their command lines."""
        mark = os.fsencode(self.folder)
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(psutil.Error, OSError):
                if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                    process = psutil.Process(int(entry.name))
                    if process.pid not in PARENTS | {os.getpid()} and lives(process.pid):
                        yield process, process.cmdline()

    def _jobs(self) -> list[str]:
        """Slurm's jobs of this session that are not over: its name is theirs."""
        if self._slurm is None or self.log is None:
            return []
        return self._slurm.call("squeue", "-h", "-r", f"--name={self.log.stem}", "-o", "%i").split()

    def _by_slurm(self, name: str) -> bool:
        assert self._slurm is not None
        if not (jobs := self._jobs()):
            return False
        job, is_amid = self._chance.choice(jobs), self._cell_runs()
        try:
            if name == "scancel":
                self._slurm.call("scancel", *(self._chance.choice([[], ["--signal=KILL", "--full"]])), job)
            elif name == "requeue":
                self._slurm.call("scontrol", "requeue", job)
            else:
                node = self._slurm.call("squeue", "-h", "-r", "-j", job, "-o", "%N").strip()
                if node not in NODES:
                    return False
                for state in ("DRAIN", "DOWN"):
                    self._slurm.call("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=kills")
                self._wait(self._is_over, self._chance.uniform(0.5, 3.0))
                self._slurm.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        except AssertionError:  # it ended meanwhile
            return False
        _add(self.tally.kills, name)
        self.tally.amid += is_amid
        return True

    def _go_on(self) -> bool:
        """Watch or resume the session, as it is over or its watchers are; False if it never began or all is done."""
        if not self._is_over() or self.log is None or not queued_in(self.log):
            return not self._is_over()
        account = account_of(self.log, WARMUP, STEPS)
        if not (account.left or account.not_ok):
            return False
        if self._chance.random() < 0.3 and account.left and len(self.place.victims) > 3:
            self._start("watch", str(self.log))
        else:
            self._start("resume", str(self.log), *([] if account.left else ["--failed"]))
        return True

    def _finish(self) -> None:
        """Resume the session to its end."""
        self._await_commands()
        log = self.log
        if log is None or not queued_in(log):
            return  # killed before there was a cell
        for _ in range(5):
            account = account_of(log, WARMUP, STEPS)
            if not (account.left or account.not_ok):
                break
            self._start("resume", str(log), *([] if account.left else ["--failed"]))
            self._await_commands()
        if not log.read_bytes().rstrip().rpartition(b"\n")[2].startswith(b'{"type":"SessionEnded"'):
            self._start("watch", str(log))  # the last watcher was killed: of jobs whose end it did not tell
            self._await_commands()
        if lock_path(log).exists():
            self._start("resume", str(log))  # the last writer was killed when all was done
            self._await_commands()
        if any(self._temporary.glob("cs336-tui-*")):
            self._start("bench", *SWEEP, sessions=self.folder / "next")  # the next run removes what a killed one left
            self._await_commands()

    def _await_commands(self) -> None:
        if not self._wait(self._is_over, IN_SLURM_S if self._slurm else PATIENCE_S):
            self.tally.wrong.append(f"{self.folder}: a command does not end")
            for command in self._commands:
                command.kill()
                command.wait()

    def _count(self) -> None:
        """Account for the cells, and for what is left."""
        tally = self.tally
        for command in self._commands:
            if isinstance(command, Unreaped):
                command.close()
        tally.sessions += 1
        account = account_of(self.log, WARMUP, STEPS) if self.log else Account()
        tally.cells += account.cells
        tally.results += account.results
        tally.twice += account.twice
        tally.again += account.again
        tally.lost += account.lost
        self._wait(lambda: not list(self._processes()) and not self._jobs(), GONE_WITHIN_S)
        left = [f"process {process.pid}: {' '.join(words)[:120]}" for process, words in self._processes()]
        jobs = self._jobs()
        if tally.kills.get(NO_STEPD):  # Slurm goes on calling a job running whose daemon on the node is gone
            _add(tally.files, *[STALE for _ in jobs])
        else:
            left += [f"job {job} of Slurm" for job in jobs]
        tally.orphans += len(left)
        for process, _ in self._processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self._slurm and jobs:
            self._slurm.call("scancel", *jobs)
        tally.wrong += [f"{self.folder}: {text}" for text in (*account.why, *left)]
        _add(tally.files, *_files_left(self._sessions, self._temporary))


def _kind_of(process: psutil.Process, words: Sequence[str]) -> str:
    """The part that a process has in its session; empty for one that nothing is done to, such as a shell."""
    if any("multiprocessing.forkserver" in word for word in words):
        with contextlib.suppress(psutil.Error):  # it or the one above has ended
            above = process.parent()
            forked = above and any("multiprocessing.forkserver" in word for word in above.cmdline())
            return "cell" if forked else "server"
        return ""
    if not words or "python" not in Path(words[0]).name:
        return ""
    if "run-job" in words:
        return "job"
    return "watcher" if {"bench", "resume", "watch"} & set(words) else ""


def _files_left(sessions: Path, temporary: Path) -> Iterator[str]:
    yield from ("lock" for _ in sessions.rglob("*.writer*"))
    yield from ("draft" for _ in sessions.rglob("*.draft"))
    for path in temporary.iterdir():
        if not path.name.startswith("torchinductor"):  # torch's own cache, which outlives every process
            yield path.name.rpartition("-")[0] or path.name


def kill_session(place: str, victim: str, kills: int, seed: str, slurm: Slurm | None = None) -> Tally:
    """One session in which a `victim` is killed so often; its folder is kept if something is wrong."""
    tally = Tally()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        Session(folder, place, random.Random(seed), tally, slurm if place == "Slurm" else None).run(victim, kills)
    except Exception as error:
        tally.wrong.append(f"{folder}: {error!r}")
    if not tally.wrong:
        shutil.rmtree(folder)
    return tally


def _add(counts: dict[str, int], *keys: str) -> None:
    for key in keys:
        counts[key] = counts.get(key, 0) + 1


def added(tallies: Sequence[Tally]) -> Tally:
    """The sum of tallies."""
    total = Tally()
    for tally in tallies:
        for mine, theirs in ((total.kills, tally.kills), (total.files, tally.files)):
            for key, count in theirs.items():
                mine[key] = mine.get(key, 0) + count
        total.wrong += tally.wrong
        for name in ("amid", "sessions", "cells", "results", "twice", "again", "lost", "orphans"):
            setattr(total, name, getattr(total, name) + getattr(tally, name))
    return total


class Counts:
    """The tallies by place and victim, perhaps kept in a file so that a later run goes on with them."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.of = {place: {victim: Tally() for victim in (*PLACES[place].victims, MIXED)} for place in PLACES}
        if path and path.exists():
            self.of = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Tally]])
        self._adding = threading.Lock()
        self._began: dict[str, int] = {}

    def add(self, place: str, victim: str, tally: Tally) -> None:
        with self._adding:
            self.of[place][victim] = added([self.of[place][victim], tally])
            if self._path:
                self._path.write_bytes(msgspec.json.encode(self.of))

    def kills(self, place: str) -> int:
        return sum(sum(tally.kills.values()) for tally in self.of[place].values())

    def next_session(self, place: str) -> int:
        """The number of the next session there, from 0."""
        with self._adding:
            before = sum(tally.sessions for tally in self.of[place].values())
            self._began[place] = max(self._began.get(place, 0), before) + 1
            return self._began[place] - 1


def kill_in(place: str, kills: int, seed: int, counts: Counts, slurm: Slurm | None, end_at: float) -> None:
    """Sessions in a place until there were so many kills, a kind of victim after the other, or it is late."""
    victims = (MIXED, *PLACES[place].victims)
    while (left := kills - counts.kills(place)) > 0 and time.monotonic() < end_at:
        number = counts.next_session(place)
        chance = random.Random(f"{seed} {place} {number}")
        victim = victims[number % len(victims)]
        tally = kill_session(place, victim, min(chance.randint(2, MOST_KILLS), left), f"{seed} {place} {number}", slurm)
        for each in tally.wrong:
            click.echo(f"{place}, {victim}: {each}", err=True)
        counts.add(place, victim, tally)


@contextlib.contextmanager
def hastened(slurm: Slurm) -> Iterator[Slurm]:
    """A Slurm in which a requeued job begins at once; by itself it waits for two minutes."""
    over = threading.Event()

    def hasten() -> None:
        while not over.wait(1.0):
            with contextlib.suppress(AssertionError):  # a job that began or ended meanwhile
                for line in slurm.call("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i %r").splitlines():
                    if line.endswith(" BeginTime"):
                        slurm.call("scontrol", "update", f"JobId={line.split()[0]}", "StartTime=now")

    thread = threading.Thread(target=hasten, daemon=True)
    thread.start()
    try:
        yield slurm
    finally:
        over.set()
        thread.join()


def shares(kills: int, in_slurm: int) -> Mapping[str, int]:
    """Kills by place."""
    in_lanes = (kills - in_slurm) // 4
    return {"lanes": in_lanes, "ranks": in_lanes, "local jobs": kills - in_slurm - 2 * in_lanes, "Slurm": in_slurm}


@click.command()
@click.option("--kills", default=200, show_default=True, help="Of all kinds together.")
@click.option("--slurm", "in_slurm", default=60, show_default=True, help="As many of them in a real Slurm.")
@click.option("--places", default=",".join(PLACES), show_default=True, help="Each has its share of the kills.")
@click.option("--at-once", default=max(AT_ONCE.values()), show_default=True, help="Sessions side by side in a place.")
@click.option("--seed", default=336, show_default=True)
@click.option("--seconds", type=float, default=float("inf"), help="Begin no session after that; see --counts.")
@click.option("--counts", "path", type=click.Path(path_type=Path), help="Keep the counts here, and go on with them.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(
    kills: int,
    in_slurm: int,
    places: str,
    at_once: int,
    seed: int,
    seconds: float,
    path: Path | None,
    output: Path | None,
) -> None:
    """Kill jobs, watchers and lanes at random moments, resume their sessions, and count results and what is left."""
    counts, end_at = Counts(path), time.monotonic() + seconds
    if in_slurm and (lacking := missing()):
        raise click.ClickException(f"no {lacking[0]} here; --slurm 0 does without")
    with contextlib.ExitStack() as around:
        slurm = around.enter_context(hastened(around.enter_context(started()))) if in_slurm else None
        threads = around.enter_context(ThreadPoolExecutor())
        began = [
            threads.submit(kill_in, place, share, seed, counts, slurm, end_at)
            for place, share in shares(kills, in_slurm).items()
            if place in places.split(",")
            for _ in range(min(at_once, AT_ONCE[place]))
        ]
        for each in began:
            each.result()
    rows = [
        row_of(place, victim, tally)
        for place in counts.of
        if counts.kills(place)
        for victim, tally in counts.of[place].items()
    ]
    rows.append(row_of("all", "", added([tally for place in counts.of.values() for tally in place.values()])))
    command = f"python -m benchmarks.job_kills --kills {kills} --slurm {in_slurm} --places {places} --seed {seed}"
    publish("Jobs, watchers and lanes killed at random moments", command, table(HEADER, rows), output)


HEADER = (
    "where", "killed", "kills", "while a cell ran", "sessions", "cells", "one result", "twice", "run twice", "lost",
    "processes left", "files left",
)  # fmt: skip


def row_of(place: str, victim: str, tally: Tally) -> list[str]:
    kills = ", ".join(f"{count} {name}" for name, count in sorted(tally.kills.items()))
    files = ", ".join(f"{count} {name}" for name, count in sorted(tally.files.items()))
    numbers = (
        tally.amid,
        tally.sessions,
        tally.cells,
        tally.results,
        tally.twice,
        tally.again,
        tally.lost,
        tally.orphans,
    )
    return [place, victim, f"{sum(tally.kills.values())}: {kills}", *map(str, numbers), files or "0"]


if __name__ == "__main__":
    main()
