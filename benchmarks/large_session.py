"""A session of 10,000 cells and 1,000,000 steps: made up, written as a log, then opened, scrolled and exported."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import click
import msgspec

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import DeviceInfo, Environment, HostSample
from cs336_tui.events.events import (
    SCHEMA,
    CellFinished,
    CellsQueued,
    CellStarted,
    DeviceSampled,
    EffectiveSettings,
    EnvironmentRead,
    Event,
    ModelBuilt,
    SessionEnded,
    SessionStarted,
    Stage,
    StageChanged,
    StepKind,
    StepsTimed,
)
from cs336_tui.stats.summaries import summarize
from tests.terminal import Terminal

COMMAND = str(Path(sys.executable).with_name("cs336-tui"))
KEYS = ("down", "pagedown", "end", "pageup", "home")
WARMUP = 5
ENVIRONMENT = Environment(
    host="made-up", os="Linux", cpu="Some CPU", cpu_count=64, memory_bytes=2**39, python="3.12", app="0", torch="2",
    devices=(DeviceInfo(name="cuda:0", label="Some GPU", precisions=("fp32",)),),
)  # fmt: skip


def cells(count: int, steps: int) -> list[CellSpec]:
    """Many different cells."""
    passes = ("inference", "forward", "backward", "forward+backward", "train-step")
    sweep = Sweep(
        sizes=("small", "medium"), devices=("cuda:0",), passes=passes, warmups=(WARMUP,), steps=steps - WARMUP
    )
    specs: list[CellSpec] = []
    for batch in range(1, count // len(sweep) + 2):
        specs += msgspec.structs.replace(sweep, batches=(batch,)).cells()
    return specs[:count]


def events(count: int, steps: int, waiting: int = 0) -> Iterator[Event]:
    """A session of `count` cells with `steps` each, of which the last ones still wait.

    The log is as long as it can be: steps of 0.1 s, so that each is a line of its own, with phases and the host's time,
    and two device samples a second.
    """
    noise = random.Random(336)
    at = 1_790_000_000.0
    specs = cells(count, steps)
    yield SessionStarted(at=at, schema=SCHEMA, session="large", app="0")
    yield EnvironmentRead(at=at, environment=ENVIRONMENT)
    yield CellsQueued(at=at, first=0, specs=tuple(specs), command="cs336-tui bench")
    for cell in range(count - waiting):
        yield CellStarted(at=at, cell=cell, pid=cell + 2)
        yield StageChanged(at=at, cell=cell, stage="building")
        in_force = EffectiveSettings(matmul_precision="highest")
        yield ModelBuilt(at=at, cell=cell, num_params=10**8, num_params_without_head=10**8, in_force=in_force)
        measured: list[float] = []
        kinds: tuple[tuple[StepKind, Stage, int], ...] = (
            ("warm-up", "warm-up", WARMUP),
            ("measured", "measuring", steps - WARMUP),
        )
        for kind, stage, number in kinds:
            yield StageChanged(at=at, cell=cell, stage=stage)
            for first in range(number):
                took = noise.gauss(0.1, 0.001)
                at += took
                if kind == "measured":
                    measured.append(took)
                phases = {"forward": (took * 0.3,), "loss": (took * 0.05,), "backward": (took * 0.65,)}
                yield StepsTimed(
                    at=at, cell=cell, kind=kind, first=first, times_s=(took,), phases_s={**phases}, host_s=(took,)
                )
                if first % 5 == 0:
                    yield DeviceSampled(at=at, host=HostSample(cpu=0.5, memory_used_bytes=10**10, load_1m=1.0))
        yield CellFinished(
            at=at, cell=cell, status="ok", logits_dtype="float32", peak_allocated_bytes=10**10, peak_rss_bytes=10**9,
            warmup_steps_done=WARMUP, summary=summarize(measured),
        )  # fmt: skip
    if not waiting:
        yield SessionEnded(at=at, reason="finished")


def write(path: Path, made: Iterator[Event]) -> Path:
    with path.open("wb") as file:
        file.writelines(map(to_line, made))
    return path


def opening_s(log: Path, env: dict[str, str]) -> float:
    """Seconds from exec until the app says that the replay of all cells is at its end."""
    terminal = Terminal([COMMAND, "--replay", str(log), "--speed", "0"], env=env, emulate=False)
    try:
        return terminal.until_bytes(b"at its end")
    finally:
        terminal.close()


def exporting_s(log: Path, env: dict[str, str]) -> float:
    begin = time.monotonic()
    subprocess.run([COMMAND, "export", str(log)], stdout=subprocess.DEVNULL, env=os.environ | env, check=True)
    return time.monotonic() - begin


async def scrolling_ms(log: Path, tab: str, size: tuple[int, int], keys: int) -> tuple[list[float], list[float]]:
    """Longest delay of the event loop and processor time of each of `keys` keys in a tab, in milliseconds.

    The delay includes other work on the machine, as a user feels it.
    """
    from cs336_tui.tui.app import Cs336App
    from cs336_tui.tui.widgets.rows import Rows

    app = Cs336App(replay=log, speed=0)
    held: list[float] = []
    used: list[float] = []
    cursors: set[int] = set()
    async with app.run_test(size=size) as pilot:
        while app.run_in_progress or not app.state.cells:
            await asyncio.sleep(0.02)
        await app.action_open(tab)
        await pilot.pause()
        for key in islice(cycle(KEYS), keys):
            before = time.process_time()
            app.simulate_key(key)
            worst, until = 0.0, time.perf_counter() + 0.06
            while (begin := time.perf_counter()) < until:
                await asyncio.sleep(0.001)
                worst = max(worst, time.perf_counter() - begin - 0.001)
            app.paint()
            used.append((time.process_time() - before) * 1e3)
            held.append(worst * 1e3)
            cursors.add(app.main.query_one(f"#{tab}", Rows).cursor)
    assert len(cursors) >= 5, "the keys did not reach the table"
    return held, used


@click.command()
@click.option("--cells", "count", default=10_000, show_default=True)
@click.option("--steps", default=100, show_default=True, help="Of each cell, warm-up included.")
@click.option("--runs", default=5, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(count: int, steps: int, runs: int, output: Path | None) -> None:
    with tempfile.TemporaryDirectory() as home:
        env = {"XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home}
        done = write(Path(home) / "done.jsonl", events(count, steps))
        half = write(Path(home) / "half.jsonl", events(count, steps, waiting=count // 2))
        megabytes = done.stat().st_size / 1e6
        opened = [opening_s(done, env) for _ in range(runs)]
        exported = [exporting_s(done, env) for _ in range(runs)]
        rows = [
            ["opens in the app, s", spread(opened, 2), f"under 2: {verdict(statistics.median(opened), 0, 2)}"],
            ["markdown export, s", spread(exported, 2), f"under 3: {verdict(statistics.median(exported), 0, 3)}"],
        ]
        for log, tab, size in ((done, "results", (120, 40)), (done, "results", (200, 60)), (half, "queue", (120, 40))):
            held, used = asyncio.run(scrolling_ms(log, tab, size, 100))
            where = f"{tab} at {size[0]}x{size[1]}"
            share = f"each at most 50: {verdict(max(held), 0, 50)}"
            rows.append([f"event loop held up by a key in {where}, ms", spread(held, 1), share])
            rows.append([f"processor time of a key in {where}, ms", spread(used, 1), ""])
    header = [f"{count:,} cells, {count * steps:,} steps, {megabytes:.0f} MB", "median (least to greatest)", "mark"]
    command = f"python -m benchmarks.large_session --cells {count} --steps {steps} --runs {runs}"
    publish("A large session", command, table(header, rows), output)


if __name__ == "__main__":
    main()
