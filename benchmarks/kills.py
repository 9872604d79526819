"""Children, fork servers, commands and apps killed or stopped (SIGSTOP) at random moments, and resumed: no finished
step lost or doubled. Commands and apps run below a parent that never reaps. Ranks, watchers, submitters: `job_kills`.

What is killed runs small cells of a model that counts its forwards in a file, so that what a child had finished is
known from outside. Then the session is resumed to its end, and its log is looked through.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.killed_logs import CELLS, STEPS, WARMUP, lost_steps, wrong_in
from benchmarks.reporting import app, publish, table
from benchmarks.unreaped import PARENTS, Unreaped, below_parent
from cs336_tui.config.processes import lives
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, CellStarted, Event, StepsTimed
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.processes import server_pid
from cs336_tui.session.log import LogReader
from tests.terminal import Terminal

MARK = "CS336_TUI_KILLS"
"""Environment variable of every process that is started here: the folder where forwards are counted."""
MODEL = f"""
import os
from torch import nn

class LM(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)
        self.count = os.open(f"{{os.environ['{MARK}']}}/{{os.getpid()}}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def forward(self, tokens):
        os.write(self.count, b".")
        return self.head(self.embed(tokens))
"""
GONE_WITHIN_S = 10.0
LONGEST_WAIT_S = 15.0
STOP_AND_KILL = "SIGSTOP, SIGKILL"
SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", STOP_AND_KILL)
"""Of commands and apps in turn."""


@dataclass
class Tally:
    """Results of the kills."""

    kills: Counter[str] = field(default_factory=Counter)
    """Kills by signal; only those of a live process."""
    left: Counter[int] = field(default_factory=Counter)
    """Kills by the number of cells left without a result."""
    wrong: list[str] = field(default_factory=list)
    slowest_end_s: float = 0.0
    """Longest time that a process outlived the killed one."""
    longest_wait_s: float = 0.0
    """Longest time in which a session whose cells ran had no event."""
    longest_but_imports_s: float = 0.0
    """The same without the time in which a new fork server imports torch."""


class Folder:
    """A folder with the model, its counts and a session's log."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally
        self.sessions = path / "sessions"
        (path / "counted_lm.py").write_text(MODEL)
        self.commands: list[Unreaped] = []
        """Those whose parents have not reaped them."""

    def words(self) -> list[str]:
        """The sweep as flags of the command line."""
        sizes = (
            "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --threads 1 --device cpu"
        )
        batches = ",".join(str(number + 1) for number in range(CELLS))
        sweep = f"--batch {batches} --pass forward --warmup {WARMUP} --steps {STEPS} --device-interval 0"
        model = ["--model", "counted_lm:LM", "--model-path", str(self.path), "--session-dir", str(self.sessions)]
        return [*sizes.split(), *sweep.split(), *model]

    def specs(self) -> list[CellSpec]:
        """The cells of the sweep."""
        return [_spec(self.path, batch + 1) for batch in range(CELLS)]

    @property
    def log(self) -> Path | None:
        return next(iter(self.sessions.glob("*.jsonl")), None)

    def run(self, sink: Callable[[Sequence[Event]], None]) -> None:
        """Run the sweep in this process."""
        bench = _bench(sink, self.sessions)
        try:
            bench.run(self.specs(), "a command")
        finally:
            bench.close()

    def resume(self, before: bytes, *, failed: bool = False) -> None:
        """Resume the session to its end and check the log, which began with `before`."""
        log = self.log
        if log is None or b'"CellsQueued"' not in before:
            return  # killed before there was a cell to run
        finished = {event.cell for event in LogReader(log) if isinstance(event, CellFinished) and event.status == "ok"}
        self.tally.left[CELLS - len(finished)] += 1
        bench = _bench(lambda _: None, log.parent, log.stem)
        try:
            bench.resume(failed=failed, trusted=True)
            bench.work()
        finally:
            bench.close()
        self.tally.wrong += wrong_in(log, before)


def _spec(folder: Path, batch: int) -> CellSpec:
    return CellSpec(
        check="off",  # it counts forwards
        size="custom", edition="2026", arch="swiglu-rope", d_model=32, d_ff=64, num_layers=1, num_heads=2,
        vocab_size=64, context_length=8, batch_size=batch, pass_="forward", precision="fp32", device="cpu",
        warmup_steps=WARMUP, measure_steps=STEPS, threads=1, model="counted_lm:LM", model_path=(str(folder),),
    )  # fmt: skip


def _bench(sink: Callable[[Sequence[Event]], None], folder: Path, session: str | None = None) -> Bench:
    bench = Bench(sink, session_dir=folder, session=session, device_interval_s=0, check_fit=False, explain_oom=False)
    bench.prepare()
    bench.start()
    return bench


def left_over(mark: str) -> list[psutil.Process]:
    """Processes that were started here, without this program, its fork server and resource tracker."""
    server: Any = forkserver._forkserver
    tracker: Any = resource_tracker._resource_tracker
    own = {os.getpid(), server._forkserver_pid, tracker._pid}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in own | PARENTS and lives(process.pid) and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def expect_all_gone(tally: Tally, mark: str) -> None:
    """Wait until all processes that a killed process had started have ended."""
    began = time.monotonic()
    while (left := left_over(mark)) and time.monotonic() - began < GONE_WITHIN_S:
        time.sleep(0.02)  # not waited for: some are children of this process, whose end others are to hear of
    tally.slowest_end_s = max(tally.slowest_end_s, time.monotonic() - began)
    for process in left:
        with contextlib.suppress(psutil.Error):
            tally.wrong.append(f"process {process.pid} is left: {' '.join(process.cmdline())[:100]}")
            process.kill()


def shoot(target: psutil.Process, name: str, chance: random.Random) -> None:
    """Send the process a signal of this name; `STOP_AND_KILL` has some time between the two. Raises `psutil.Error`."""
    if name == STOP_AND_KILL:
        target.suspend()
        time.sleep(chance.uniform(0, 1.0))
        target.kill()
    else:
        target.send_signal(getattr(signal, name))


class Killer:
    """A sink that kills what each cell runs in at a random moment of its life, until there were so many `kills`, by one
    of the `signals`."""

    def __init__(
        self,
        tally: Tally,
        chance: random.Random,
        kills: int,
        victim: Callable[[CellStarted], int | None],
        signals: Sequence[str],
    ) -> None:
        self._tally, self._chance, self._kills, self._victim = tally, chance, kills, victim
        self._signals = signals
        self._last: float | None = None
        self.longest_wait_s = 0.0
        """Longest time without an event, while cells ran."""
        self.longest_but_imports_s = 0.0
        """The same without the time in which a new fork server imports torch."""
        self._server = server_pid()
        self._at = 0
        self._target: psutil.Process | None = None
        self._timers: list[threading.Timer] = []

    def __call__(self, events: Sequence[Event]) -> None:
        now = time.monotonic()
        if any(isinstance(event, CellStarted | StepsTimed | CellFinished) for event in events):
            wait_s = now - (self._last or now)
            self.longest_wait_s = max(self.longest_wait_s, wait_s)
            self.longest_but_imports_s = max(self.longest_but_imports_s, wait_s - min(wait_s, self._imported_s()))
            self._last = now
        for event in events:
            match event:
                case CellStarted() if self._tally.kills.total() < self._kills:
                    self._begin(event)
                case StepsTimed() if self._target is not None and event.first + len(event.times_s) >= self._at > 0:
                    self._shoot(self._chance.uniform(0, 0.03))
                case CellFinished():
                    self._target = None

    def _imported_s(self) -> float:
        """The age of a server that is new since this was asked last: it has just started its first process."""
        before, self._server = self._server, server_pid()
        with contextlib.suppress(psutil.Error):
            if self._server not in (None, before):
                return max(0.0, time.time() - psutil.Process(self._server).create_time())
        return 0.0

    def _begin(self, event: CellStarted) -> None:
        pid = self._victim(event)
        self._at = self._chance.choice([0, self._chance.randrange(1, STEPS)])
        with contextlib.suppress(psutil.Error):
            self._target = psutil.Process(pid)
            if not self._at:
                self._shoot(self._chance.uniform(0, 0.3))

    def _shoot(self, after_s: float) -> None:
        target, self._target = self._target, None
        self._timers.append(threading.Timer(after_s, self._kill, (target,)))
        self._timers[-1].start()

    def _kill(self, target: psutil.Process) -> None:
        name = self._chance.choice(self._signals)
        with contextlib.suppress(psutil.Error):  # of a process that has ended, and of another one with its pid
            shoot(target, name, self._chance)
            self._tally.kills[name] += 1

    def wait(self) -> None:
        for timer in self._timers:
            timer.join()


def kill_within(
    tally: Tally,
    chance: random.Random,
    kills: int,
    victim: Callable[[CellStarted], int | None],
    signals: Sequence[str],
) -> None:
    """Sessions in this process, whose cells or fork servers are killed one after another, then run again. A server that
    is stopped stays so."""
    while tally.kills.total() < kills:
        with marked_folder() as path:
            folder = Folder(path, tally)
            killer = Killer(tally, chance, kills, victim, signals)
            folder.run(killer)
            killer.wait()
            assert folder.log is not None
            tally.longest_wait_s = max(tally.longest_wait_s, killer.longest_wait_s)
            tally.longest_but_imports_s = max(tally.longest_but_imports_s, killer.longest_but_imports_s)
            if killer.longest_wait_s > LONGEST_WAIT_S:
                tally.wrong.append(f"nothing happened for {killer.longest_wait_s:.1f} s")
            tally.wrong += lost_steps(folder.log, path)
            folder.resume(folder.log.read_bytes(), failed=True)
            tally.wrong += lost_steps(folder.log, path)
            stop_server()
            expect_all_gone(tally, str(path))


def kill_commands(tally: Tally, chance: random.Random, kills: int) -> None:
    """`cs336-tui bench`, and then perhaps `resume`, killed at a random moment."""
    while tally.kills.total() < kills:
        with marked_folder() as path:
            folder = Folder(path, tally)
            before = killed_command(folder, chance, [*app(), "bench", *folder.words()])
            if folder.log is not None and b'"CellsQueued"' in before and chance.random() < 0.3:
                words = [*app(), "resume", str(folder.log), "--trust", "--device-interval", "0"]
                before = killed_command(folder, chance, words)
            folder.resume(before)
            for command in folder.commands:
                command.close()
            stop_server()
            expect_all_gone(tally, str(path))


def killed_command(folder: Folder, chance: random.Random, words: Sequence[str]) -> bytes:
    """Kill the command at a random moment; returns the whole lines of its log then."""
    silent = subprocess.DEVNULL
    process = Unreaped(words, start_new_session=True, stdin=silent, stdout=silent, stderr=silent)
    folder.commands.append(process)
    await_moment(folder, chance, lambda: process.poll() is not None)
    name = SIGNALS[folder.tally.kills.total() % len(SIGNALS)]
    with contextlib.suppress(psutil.Error):
        shoot(psutil.Process(process.pid), name, chance)
        folder.tally.kills[name] += 1
    expect_all_gone(folder.tally, str(folder.path))
    process.kill()
    return whole_lines(folder.log)


def kill_apps(tally: Tally, chance: random.Random, kills: int) -> None:
    """The app in a terminal, killed at random moments by each signal in turn. After a signal that can be handled the
    terminal must be as before."""
    while tally.kills.total() < kills:
        with marked_folder() as path:
            folder = Folder(path, tally)
            env = {"XDG_CONFIG_HOME": str(path), "XDG_DATA_HOME": str(path)}
            terminal = Terminal(below_parent([*app(), *folder.words()], path / "pid"), env=env, emulate=False)
            PARENTS.add(terminal.pid)
            try:
                if chance.random() < 0.9:
                    terminal.until_bytes(b"\x1b[?1049h")
                    threading.Thread(target=press_run, args=(terminal,), daemon=True).start()
                await_moment(folder, chance, partial(getattr, terminal, "is_over"))
                name = SIGNALS[tally.kills.total() % len(SIGNALS)]
                with contextlib.suppress(psutil.Error, OSError):
                    shoot(psutil.Process(int((path / "pid").read_text())), name, chance)
                    tally.kills[name] += 1
                expect_all_gone(tally, str(path))
                before = whole_lines(folder.log)
                folder.resume(before)  # its lock is that of a zombie
                os.kill(terminal.pid, signal.SIGKILL)
                if "SIGKILL" not in name:
                    tally.wrong += not_restored(terminal, name)
            finally:
                terminal.close()
                PARENTS.discard(terminal.pid)
            stop_server()
            expect_all_gone(tally, str(path))


def press_run(terminal: Terminal) -> None:
    with contextlib.suppress(AssertionError, OSError):
        terminal.until_bytes(b"Configure")
        terminal.send("r")


def not_restored(terminal: Terminal, name: str) -> Iterator[str]:
    """Traces that an ended app leaves in the terminal."""
    terminal.wait()
    raw = bytes(terminal.raw)
    if raw.rfind(b"\x1b[?1049h") > raw.rfind(b"\x1b[?1049l"):
        yield f"after {name} the terminal shows the app's screen"
    if not terminal.takes_lines():
        yield f"after {name} the terminal is raw"


def await_moment(folder: Folder, chance: random.Random, is_over: Callable[[], bool]) -> None:
    """Wait for a random moment: some time after the start, or after so many lines of the log and ends of cells."""
    lines, ends = chance.choice([0, 0, *range(1, 5 * CELLS)]), chance.randrange(CELLS)
    after_s = chance.uniform(0, 0.05) if lines else chance.uniform(0, 4.0)
    began = time.monotonic()
    while lines and not is_over() and time.monotonic() - began < 60.0:
        whole = whole_lines(folder.log)
        if whole.count(b"\n") >= lines and whole.count(b'{"type":"CellFinished"') >= ends:
            break
        time.sleep(0.005)
    end_at = time.monotonic() + after_s
    while not is_over() and time.monotonic() < end_at:
        time.sleep(0.005)


def whole_lines(log: Path | None) -> bytes:
    data = log.read_bytes() if log is not None else b""
    return data[: data.rfind(b"\n") + 1]


@contextlib.contextmanager
def marked_folder() -> Iterator[Path]:
    """A folder whose path marks the processes that are started meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        os.environ[MARK] = name
        yield Path(name)


def stop_server() -> None:
    """End this program's fork server, so that the next one has the next folder in its environment."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGCONT)  # it may be stopped
    server._stop()


def child_of(event: CellStarted) -> int | None:
    return event.pid


def server_of(_: CellStarted) -> int | None:
    return server_pid()


KINDS: dict[str, Callable[[Tally, random.Random, int], None]] = {
    "child": lambda tally, chance, kills: kill_within(
        tally, chance, kills, child_of, ("SIGKILL", "SIGTERM", STOP_AND_KILL)
    ),
    "server": lambda tally, chance, kills: kill_within(
        tally, chance, kills, server_of, ("SIGKILL", "SIGTERM", "SIGSTOP", STOP_AND_KILL)
    ),
    "command": kill_commands,
    "app": kill_apps,
}


def killed(kind: str, kills: int, seed: int) -> Tally:
    """Kill processes of one of `KINDS` at least `kills` times."""
    tally = Tally()
    KINDS[kind](tally, random.Random(f"{kind} {seed}"), kills)
    return tally


@click.command()
@click.option("--kills", default=200, show_default=True, help="At least so many of each kind.")
@click.option("--kinds", default=",".join(KINDS), show_default=True)
@click.option("--seed", default=336, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(kills: int, kinds: str, seed: int, output: Path | None) -> None:
    rows = []
    for kind in kinds.split(","):
        began = time.monotonic()
        tally = killed(kind, kills, seed)
        for each in tally.wrong:
            click.echo(f"{kind}: {each}", err=True)
        signals = ", ".join(f"{count} {name}" for name, count in sorted(tally.kills.items()))
        left = ", ".join(f"{cells}: {count}" for cells, count in sorted(tally.left.items()))
        wait = f"{tally.longest_wait_s:.1f}, {tally.longest_but_imports_s:.1f}" if tally.longest_wait_s else ""
        verdict = f"{len(tally.wrong)}; at most 0: {'MISSED' if tally.wrong else 'met'}"
        rows.append([kind, signals, left, f"{tally.slowest_end_s:.1f}", wait, verdict])
        click.echo(f"{kind}: {signals}, {len(tally.wrong)} wrong, {time.monotonic() - began:.0f} s", err=True)
    left_then = f"resumed sessions, by cells then without a result (of {CELLS})"
    header = [
        "killed",
        "signals",
        left_then,
        "longest life after it, s",
        "longest wait for an event, and without imports of torch, s",
        "steps lost or doubled, anything left",
    ]
    command = f"python -m benchmarks.kills --kills {kills} --kinds {kinds} --seed {seed}"
    publish("Killed at random moments and resumed", command, table(header, rows), output)


if __name__ == "__main__":
    main()
