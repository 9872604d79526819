"""How the screen bears a session of many cells: opening it, and the longest frame while somebody scrolls."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from benchmarks.reporting import publish, table, verdict
from cs336_tui.events import (
    SCHEMA,
    CellFinished,
    CellsQueued,
    CellStarted,
    Event,
    InForce,
    ModelBuilt,
    SessionStarted,
    StepsTimed,
    to_line,
)
from cs336_tui.session.state import SessionState
from cs336_tui.spec import RunSpec
from cs336_tui.sweep import Sweep
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.session import read_session

KEYS = ("down", "pagedown", "end", "pageup", "home")


def cells(count: int) -> list[RunSpec]:
    """Many different cells."""
    passes = ("inference", "forward", "backward", "forward+backward", "train-step")
    sweep = Sweep(sizes=("small", "medium"), devices=("cuda:0",), passes=passes)
    specs: list[RunSpec] = []
    for batch in range(1, count // len(sweep.cells()) + 2):
        specs += msgspec.structs.replace(sweep, batches=(batch,)).cells()
    return specs[:count]


def events(count: int, steps: int, waiting: int) -> Iterator[Event]:
    """A session of `count` cells with `steps` each, of which the last ones still wait."""
    specs = cells(count)
    yield SessionStarted(at=1.0, schema=SCHEMA, session="large", app="0")
    yield CellsQueued(at=2.0, first=0, specs=tuple(specs))
    for cell in range(count - waiting):
        at = 10.0 + cell
        yield CellStarted(at=at, cell=cell)
        yield ModelBuilt(
            at=at,
            cell=cell,
            num_params=10**8,
            num_params_without_head=10**8,
            in_force=InForce(matmul_precision="highest"),
        )
        for kind, number in (("warm-up", 5), ("measured", steps - 5)):
            times = tuple(0.1 + cell * 1e-5 + step * 1e-6 for step in range(number))
            yield StepsTimed(at=at + 0.5, cell=cell, kind=kind, first=0, times_s=times)  # type: ignore[arg-type]
        yield CellFinished(at=at + 0.9, cell=cell, status="ok", peak_allocated_bytes=10**9)


def timed(act: Callable[[], object]) -> float:
    """Seconds on the clock."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


async def frames(state: SessionState, size: tuple[int, int]) -> dict[str, list[float]]:
    """Seconds of every frame of Results and Queue: the first on the clock, then for each key the processor time of the
    whole app from the key to the painted screen. (On the clock a test's pilot waits longer than the app works.)"""
    app = Cs336App()
    app.live.state = state
    found: dict[str, list[float]] = {}
    async with app.run_test(size=size) as pilot:
        for tab in ("results", "queue"):
            app.main.open(tab)
            app.main.focus_pane(tab)
            await pilot.pause()
            times = found[tab] = [timed(app.paint)]
            for key in KEYS * 10:
                began = time.process_time()  # the pilot waits longer than the app works
                await pilot.press(key)
                app.paint()
                times.append(time.process_time() - began)
        app.main.open("compare")
        await pilot.pause()
        found["compare, what is not on a thread"] = [timed(app.paint)]
    return found


@click.command()
@click.option("--cells", "count", default=10_000, show_default=True)
@click.option("--steps", default=100, show_default=True, help="Of each cell, warm-up included.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(count: int, steps: int, output: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "large.jsonl"
        log.write_bytes(b"".join(map(to_line, events(count, steps, waiting=count // 2))))
        done = Path(folder) / "done.jsonl"
        done.write_bytes(b"".join(map(to_line, events(count, steps, waiting=0))))
        opened = timed(lambda: read_session(done))
        rows = [["open from the Sessions tab (clock)", f"{opened:.2f} s", f"under 2 s: {verdict(opened, 0, 2.0)}"]]
        for path in (done, log):
            state = read_session(path).state
            for size in ((80, 24), (200, 60)):
                for tab, times in asyncio.run(frames(state, size)).items():
                    worst = max(times) * 1e3
                    what = f"{tab} {size[0]}x{size[1]}, {path.stem}"
                    rows.append([what, f"{worst:.1f} ms", f"at most 50 ms: {verdict(worst, 0, 50.0)}"])
    header = [f"{count:,} cells, {steps * count:,} steps", "longest frame (processor time)", "mark"]
    publish("A large session", f"python -m benchmarks.large_session --cells {count}", table(header, rows), output)


if __name__ == "__main__":
    main()
