"""Cost of the screen: bytes written to a 120x40 terminal, processor share and memory of the user interface's
process, during a run of steps of about 50 ms and idle. Eight lanes are a made session that is played at its own pace:
they need eight GPUs."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from benchmarks.reporting import app, publish, table, verdict
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import HostSample
from tests.samples import START, a_gpu, a_spec, machine_of_gpus, session_start
from tests.terminal import Terminal

COMMAND = app()
STEP_S = 0.05
RANKS_MEAN = "8 ranks: a small train-step under DDP on gloo"


@dataclass(frozen=True)
class Cost:
    """Cost over a stretch of time: bytes a second, share of a core, resident bytes."""

    bytes_per_s: float
    cpu: float
    rss: int


def stretch(terminal: Terminal, seconds: float) -> Cost:
    """Cost of the app over the next `seconds`."""
    process = psutil.Process(terminal.pid)
    before, cpu_before, at = terminal.bytes_written, sum(process.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)  # the thing measured is a rate over time
    elapsed = time.monotonic() - at
    cpu = sum(process.cpu_times()[:2]) - cpu_before
    return Cost((terminal.bytes_written - before) / elapsed, cpu / elapsed, process.memory_info().rss)


def batch_for_step_time(home: str) -> int:
    """The batch size at which a tiny forward at context 128 takes about 50 ms here, on one thread."""
    words = "--size tiny --context 128 --batch 1 --pass forward --threads 1 --warmup 3 --steps 20 --device cpu"
    done = subprocess.run(
        [*COMMAND, "bench", *words.split(), "--format", "json", "--session-dir", home],
        capture_output=True,
        check=True,
    )
    step_s: float = json.loads(done.stdout)["runs"][0]["summary"]["median_s"]
    return max(1, round(STEP_S / step_s))


OF_RANKS = (
    "--d-model 64 --d-ff 128 --num-layers 2 --num-heads 2 --context 32 --batch 1 --pass train-step "
    "--ranks 8 --parallel ddp"
)
"""A cell of 8 ranks whose steps take as long, or longer where they share few cores."""


def of_one_rank(batch: int) -> str:
    return f"--size tiny --context 128 --batch {batch} --pass forward"


def run_cost(home: str, cell: str, seconds: float, *extra: str) -> tuple[Cost, Cost]:
    """Cost while a long cell runs, and idle after it was stopped."""
    words = f"{cell} --threads 1 --warmup 5 --steps 100000 --device cpu"
    terminal = Terminal([*COMMAND, *words.split(), "--session-dir", home, *extra], emulate=False)
    try:
        terminal.until_bytes(b"Configure")
        time.sleep(3)  # let the machine be read
        terminal.send("r")
        terminal.until_bytes(b"measuring")
        time.sleep(2)
        running = stretch(terminal, seconds)
        terminal.send("s")
        time.sleep(4)
        return running, stretch(terminal, seconds)
    finally:
        terminal.close()


LANES = 8
_BEFORE_S = 8.0
"""Seconds of a played session before its cost is taken."""


def log_of_lanes(path: Path, seconds: float) -> None:
    """A session in whose eight lanes cells measure steps of 50 ms, each with a sample of its GPU twice a second."""
    specs = [a_spec(context_length=64 * (1 + n), measure_steps=100_000) for n in range(2 * LANES)]
    lanes = tuple(ev.Lane(lane=n, device=f"cuda:{n}") for n in range(LANES))
    events: list[ev.Event] = [*session_start(specs, environment=machine_of_gpus(LANES))]
    events.append(ev.LanesOpened(at=START + 2, lanes=lanes))
    for n in range(LANES):
        at = START + 2 + n / LANES
        events.append(ev.CellStarted(at=at, cell=n, pid=1000 + n, lanes=(n,), device=f"cuda:{n}"))
        events.append(ev.StageChanged(at=at + 1, cell=n, stage="measuring"))
    dice = random.Random(336)
    for tick in range(round(seconds / STEP_S)):
        for n in range(LANES):
            at, time_s = START + 5 + tick * STEP_S + n / 1e3, dice.gauss(STEP_S, STEP_S / 200)
            phases: dict[str, tuple[float, ...]] = {"forward": (time_s / 3,), "backward": (time_s * 2 / 3,)}
            events.append(ev.StepsTimed(at=at, cell=n, kind="measured", first=tick, times_s=(time_s,), phases_s=phases))
            if tick % 10 == 0:
                gpu = a_gpu(f"GPU-gpu-box-{n}", dice.uniform(0.9, 1.0))
                host = HostSample(cpu=dice.uniform(0.1, 0.2), child_rss_bytes=10**9, load_1m=8.0, cpu_count=64)
                events.append(ev.DeviceSampled(at=at, host=host, gpu=gpu, cells=(n,)))
    path.write_bytes(b"".join(map(to_line, events)))


def lanes_cost(home: str, seconds: float, *extra: str) -> Cost:
    """Cost while cells run in eight lanes, the tab Queue open."""
    log = Path(home) / "lanes.jsonl"
    log_of_lanes(log, 2 * seconds + 60)
    terminal = Terminal([*COMMAND, "--replay", str(log), "--session-dir", home, *extra], emulate=False)
    try:
        terminal.until_bytes(b"Configure")
        terminal.send("6")
        time.sleep(_BEFORE_S)
        return stretch(terminal, seconds)
    finally:
        terminal.close()


@click.command()
@click.option("--seconds", default=20.0, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(seconds: float, output: Path | None) -> None:
    with tempfile.TemporaryDirectory() as home:
        batch = batch_for_step_time(home)
        running, idle = run_cost(home, of_one_rank(batch), seconds)
        ranks, _ = run_cost(home, OF_RANKS, seconds)
        low, _ = run_cost(home, of_one_rank(batch), seconds, "--low-bandwidth")
        low_ranks, _ = run_cost(home, OF_RANKS, seconds, "--low-bandwidth")
        lanes, low_lanes = lanes_cost(home, seconds), lanes_cost(home, seconds, "--low-bandwidth")

    def row(name: str, cost: Cost, bytes_mark: float, cpu_mark: float, resident_mark: int = 80) -> list[str]:
        return [
            name,
            f"{cost.bytes_per_s / 1e3:.2f}",
            f"at most {bytes_mark}: {verdict(cost.bytes_per_s / 1e3, 0, bytes_mark)}",
            f"{cost.cpu:.2%}",
            f"at most {cpu_mark:.1%}: {verdict(cost.cpu, 0, cpu_mark)}",
            f"{cost.rss / 1e6:.0f}",
            f"under {resident_mark}: {verdict(cost.rss / 1e6, 0, resident_mark)}",
        ]

    rows = [
        row("running", running, 3.0, 0.03),
        row("running, 8 ranks", ranks, 3.0, 0.03),
        row("running, 8 lanes", lanes, 3.0, 0.03),
        row("running, --low-bandwidth", low, 1.0, 0.03),
        row("running, 8 ranks, --low-bandwidth", low_ranks, 1.0, 0.03),
        row("running, 8 lanes, --low-bandwidth", low_lanes, 1.0, 0.03),
        row("idle", idle, 0.3, 0.003, 50),
    ]
    header = ["120x40", "kB/s", "mark", "of a core", "mark", "MB resident", "mark"]
    body = f"tiny forward, context 128, batch {batch}, one thread: about {STEP_S * 1e3:.0f} ms a step; {RANKS_MEAN}\n\n"
    publish("Screen", f"python -m benchmarks.screen_cost --seconds {seconds:g}", body + table(header, rows), output)


if __name__ == "__main__":
    main()
