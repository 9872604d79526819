"""Sessions of jobs: the cost of watching many, and the time to fold many cells, from made logs of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import psutil

from benchmarks.large_session import ENVIRONMENT, cells
from benchmarks.reporting import publish, table, verdict
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.runner.jobs.bench import JobsBench
from cs336_tui.runner.jobs.job import (
    JobCell,
    JobRequest,
    LaunchChoice,
    folder_of,
    log_path,
    write_choice,
    write_request,
)
from cs336_tui.session.load import load
from cs336_tui.session.log import SessionLog
from cs336_tui.session.state import SessionState
from cs336_tui.stats.summaries import summarize
from tests.terminal import Terminal

ARRAY = 4242
_SQUEUE = """#!/bin/sh
cat "$MADE_SQUEUE"
"""
STEP_S = 0.5
"""Steps of the cells that are watched, each a line of its own."""
SAMPLE_S = 2.0


def begin(log: Path, specs: list[CellSpec], submitted: bool) -> None:
    """A session with a job for each cell, as ``bench --launcher slurm`` leaves it."""
    folder = folder_of(log)
    write_choice(folder, LaunchChoice(launcher="slurm", partition="made"))
    session = SessionLog(log)
    session.write([ev.SessionStarted(at=time.time(), schema=ev.SCHEMA, session=log.stem, app="0")])
    session.write([ev.CellsQueued(at=time.time(), first=0, specs=tuple(specs))])
    if submitted:
        session.write(map(_submitted, range(len(specs))))
    session.close()
    for cell, spec in enumerate(specs):
        write_request(folder, JobRequest(session=log.stem, job=str(cell + 1), cells=(JobCell(cell, spec),)))


def _submitted(cell: int) -> ev.JobSubmitted:
    return ev.JobSubmitted(
        at=time.time(), job=str(cell + 1), launcher="slurm", id=f"{ARRAY}_{cell}", cells=(cell,), where="made"
    )


def started(cell: int, spec: CellSpec) -> Iterator[ev.Event]:
    """The beginning of a job's log, up to the first step."""
    now = time.time()
    yield ev.SessionStarted(at=now, schema=ev.SCHEMA, session="made", app="0")
    yield ev.CellsQueued(at=now, first=cell, specs=(spec,))
    yield ev.SessionResumed(at=now, app="0")
    yield ev.EnvironmentRead(at=now, environment=ENVIRONMENT)
    yield ev.CellStarted(at=now, cell=cell, pid=cell + 2)
    yield ev.StageChanged(at=now, cell=cell, stage="building")
    in_force = ev.EffectiveSettings(matmul_precision="highest")
    yield ev.ModelBuilt(at=now, cell=cell, num_params=10**8, num_params_without_head=10**8, in_force=in_force)
    yield ev.StageChanged(at=now, cell=cell, stage="warm-up")
    yield steps(cell, 0, 5, "warm-up")
    yield ev.StageChanged(at=now, cell=cell, stage="measuring")


def steps(cell: int, first: int, number: int = 1, kind: ev.StepKind = "measured") -> ev.StepsTimed:
    took = (0.1,) * number
    phases = {"forward": (0.03,) * number, "loss": (0.005,) * number, "backward": (0.065,) * number}
    return ev.StepsTimed(at=time.time(), cell=cell, kind=kind, first=first, times_s=took, phases_s=phases, host_s=took)


def sample(cell: int) -> ev.DeviceSampled:
    gpu = GpuSample(uuid=f"GPU-{cell}", name="Some GPU", utilisation=0.9, power_w=500.0, sm_clock_mhz=1900)
    return ev.DeviceSampled(at=time.time(), host=HostSample(cpu=0.5, memory_used_bytes=10**10, load_1m=1.0), gpu=gpu)


def finished(cell: int) -> Iterator[ev.Event]:
    now = time.time()
    yield ev.StageChanged(at=now, cell=cell, stage="finishing")
    yield ev.CellFinished(
        at=now, cell=cell, status="ok", logits_dtype="float32", peak_allocated_bytes=10**10, peak_rss_bytes=10**9,
        warmup_steps_done=5, summary=summarize([0.1] * 20),
    )  # fmt: skip
    yield ev.SessionEnded(at=now, reason="finished")


def squeue(folder: Path, jobs: int, running: int) -> None:
    """A program that prints what ``squeue`` would of these jobs, of which the first run and the others wait; it comes
    before others in the path."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    program, answer = tools / "squeue", folder / "squeue.txt"
    program.write_text(_SQUEUE)
    program.chmod(0o755)
    states = (f"RUNNING|None|node{n % 64}" if n < running else "PENDING|Resources|" for n in range(jobs))
    answer.write_text("".join(f"{ARRAY}_{n}|{state}|0|0|30:00|\n" for n, state in enumerate(states)))
    os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    os.environ["MADE_SQUEUE"] = str(answer)


def grow(folder: Path, jobs: int, seconds: float) -> None:
    """Append what running cells would, evenly over time: a step every `STEP_S`, a sample every `SAMPLE_S`."""
    end, step, tick = time.monotonic() + seconds, 0, 0
    slices = 20
    while time.monotonic() < end:
        began = time.monotonic()
        for cell in range(tick % slices, jobs, slices):
            events: list[ev.Event] = [steps(cell, step)]
            if step % round(SAMPLE_S / STEP_S) == 0:
                events.append(sample(cell))
            with log_path(folder, str(cell + 1)).open("ab") as file:
                file.write(b"".join(map(to_line, events)))
        tick += 1
        step += tick % slices == 0
        time.sleep(max(0.0, began + STEP_S / slices - time.monotonic()))


def watching(
    folder: Path, jobs: int, running: int, seconds: float, *, in_app: bool = False
) -> tuple[float, float, int]:
    """Share of a core that ``cs336-tui watch`` uses for these jobs, of which some run, without a screen or in the app;
    the time in seconds until an end is in its log; its resident memory."""
    log = folder / f"{'shown' if in_app else 'watched'}-{running}.jsonl"
    specs = cells(jobs, 25)
    begin(log, specs, submitted=True)
    of_jobs = folder_of(log)
    for cell, spec in enumerate(specs[:running]):
        log_path(of_jobs, str(cell + 1)).write_bytes(b"".join(map(to_line, started(cell, spec))))
    squeue(folder, jobs, running)
    command = [sys.executable, "-m", "cs336_tui", "watch", str(log)]
    with _shown(command) if in_app else _unseen(command) as pid:
        return _watched(pid, log, of_jobs, running, seconds)


@contextmanager
def _unseen(command: Sequence[str]) -> Iterator[int]:
    watch = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield watch.pid
    finally:
        watch.kill()
        watch.wait()


@contextmanager
def _shown(command: Sequence[str]) -> Iterator[int]:
    terminal = Terminal(list(command), emulate=False)
    try:
        yield terminal.pid
    finally:
        terminal.close()


def _watched(pid: int, log: Path, of_jobs: Path, jobs: int, seconds: float) -> tuple[float, float, int]:
    growing = threading.Thread(target=grow, args=(of_jobs, jobs, seconds + 6.0))
    await_in(log, b"CellStarted")
    await_in(log, b'"stage":"running"')
    growing.start()
    time.sleep(4.0)
    process = psutil.Process(pid)
    before, began = _cpu_s(process), time.monotonic()
    time.sleep(seconds)  # the thing measured is a rate over time
    share = (_cpu_s(process) - before) / (time.monotonic() - began)
    memory = process.memory_info().rss
    growing.join()
    with log_path(of_jobs, "1").open("ab") as file:
        file.write(b"".join(map(to_line, finished(0))))
    wrote = time.monotonic()
    await_in(log, b"CellFinished")
    return share, time.monotonic() - wrote, memory


def await_in(log: Path, text: bytes) -> None:
    """Wait until the log has this text in its last part. Raises `click.ClickException` after a minute."""
    give_up_at = time.monotonic() + 60.0
    while text not in log.read_bytes()[-(1 << 20) :]:
        if time.monotonic() > give_up_at:
            raise click.ClickException(f"{log}: no {text.decode()} came")
        time.sleep(0.02)


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return used.user + used.system + used.children_user + used.children_system


def folding(folder: Path, number: int) -> tuple[float, float, float, float]:
    """Seconds to open a session of jobs; to fold their logs, which are over, into it, a cell each; to load the session;
    and to load it with the steps of all cells."""
    log = folder / "folded.jsonl"
    specs = cells(number, 25)
    begin(log, specs, submitted=True)
    of_jobs = folder_of(log)
    for cell, spec in enumerate(specs):
        events = [
            *started(cell, spec),
            steps(cell, 0, 10),
            sample(cell),
            steps(cell, 10, 10),
            sample(cell),
            *finished(cell),
        ]
        log_path(of_jobs, str(cell + 1)).write_bytes(b"".join(map(to_line, events)))
    squeue(folder, 0, 0)
    state = SessionState()

    def apply(events: Sequence[ev.Event]) -> None:
        for event in events:
            state.apply(event)

    bench = JobsBench(apply, log)
    began = time.perf_counter()
    bench.watch()
    opened = time.perf_counter() - began
    bench.work()
    bench.close()
    folded = time.perf_counter() - began - opened
    assert sum(cell.status == "ok" for cell in state.cells.values()) == number
    began = time.perf_counter()
    loaded = load(log)
    loading = time.perf_counter() - began
    assert sum(cell.status == "ok" for cell in loaded.cells.values()) == number
    for each in loaded.cells.values():
        assert len(each.step_times_s) == 20
    return opened, folded, loading, time.perf_counter() - began


@click.command(help=__doc__)
@click.option("--jobs", default=1000, show_default=True, help="Jobs that are watched.")
@click.option("--cells", "number", default=10_000, show_default=True, help="Cells that are folded, a job each.")
@click.option("--seconds", default=30.0, show_default=True, help="Time of watching.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Append the report here.")
def main(jobs: int, number: int, seconds: float, output: Path | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="cs336-tui-jobs-"))
    try:
        some, _, _ = watching(folder, jobs, jobs // 10, seconds)
        some_in_app, _, _ = watching(folder, jobs, jobs // 10, seconds, in_app=True)
        share, delay, memory = watching(folder, jobs, jobs, seconds)
        share_in_app, _, _ = watching(folder, jobs, jobs, seconds, in_app=True)
        opened, folded, loading, with_steps = folding(folder, number)
    finally:
        shutil.rmtree(folder)
    rows = [
        [f"watching {jobs:,} jobs, {jobs // 10:,} run: share of a core", f"{some:.1%}", "3 %", verdict(some, 0, 0.03)],
        ["and in the app, 120x40", f"{some_in_app:.1%}", "3 %", verdict(some_in_app, 0, 0.03)],
        [f"watching {jobs:,} jobs, all run", f"{share:.1%}", "3 %", verdict(share, 0, 0.03)],
        ["and in the app, 120x40", f"{share_in_app:.1%}", "3 %", verdict(share_in_app, 0, 0.03)],
        ["from the end of a cell in its job's log to the session's", f"{delay:.2f} s", "3 s", verdict(delay, 0, 3)],
        ["memory of the watching process", f"{memory / 1e6:.0f} MB", "", ""],
        [f"folding {number:,} cells from as many logs", f"{folded:.2f} s", "2 s", verdict(folded, 0, 2)],
        ["opening the session before it", f"{opened:.2f} s", "", ""],
        ["loading the folded session", f"{loading:.2f} s", "2 s", verdict(loading, 0, 2)],
        ["and all of its steps", f"{with_steps:.2f} s", "", ""],
    ]
    text = table(["what", "found", "mark", ""], rows)
    text += (
        f"\n\nEach job that runs writes a step every {STEP_S} s and a sample every {SAMPLE_S} s. A program that "
        "prints a line a job stands in for squeue, and its time counts."
    )
    publish("Jobs", f"python -m benchmarks.jobs --jobs {jobs} --cells {number} --seconds {seconds:g}", text, output)


if __name__ == "__main__":
    main()
