"""Accuracy of the predicted remaining time, on simulated sweeps with stalls.

    python -m benchmarks.eta --seeds 100

A sweep is a list of cells of very different lengths. Each cell starts, runs a cold step and warm ones with noise, and
ends; its steps take as long as its work does, no less than a floor, as on a GPU that small models leave idle. Nothing
sleeps: the events carry the times. After every event from a quarter of the sweep's time and of its cells on, the
foretold time is divided by the real one. A rare stall that has not begun yet cannot be foretold and is left out of the
real time. So are the last 5 % of a sweep, where no factor means anything.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cs336_tui.analysis.eta import outlook_of
from cs336_tui.config.order import Order, in_order, relative_work
from cs336_tui.config.spec import CellSpec, Pass
from cs336_tui.events.events import CellFinished, CellsQueued, CellStarted, Event, StageChanged, StepKind, StepsTimed
from cs336_tui.session.state import SessionState
from cs336_tui.stats.summaries import summarize
from tests.samples import sized

CELLS = 30
FROM = 0.25
"""Share of the sweep's time and of its cells from which on predicted times are judged."""
UNTIL = 0.95


class Step(NamedTuple):
    cell: int
    number: int
    share: float
    """Share of the sweep that is over, by cells."""


class Trouble(NamedTuple):
    """A disturbance: seconds added to a step of a usual length, and a factor by which everything slows down."""

    stall_s: Callable[[Step, float], float] = lambda _step, _usual_s: 0.0
    slowdown: Callable[[Step], float] = lambda _step: 1.0
    before_s: Callable[[int], float] = lambda _cell: 0.0
    """Seconds that a cell's start takes longer."""
    is_foreseeable: bool = True


def one_stall(draw: random.Random, whole_s: float) -> Trouble:
    """One step of one cell that takes up to a third of the sweep."""
    cell, number, takes_s = draw.randrange(CELLS), draw.randrange(15), draw.uniform(0.05, 0.33) * whole_s
    return Trouble(lambda at, _: takes_s if (at.cell, at.number) == (cell, number) else 0.0, is_foreseeable=False)


def three_stalls(draw: random.Random, whole_s: float) -> Trouble:
    """Three such steps, each of a tenth."""
    where = {(draw.randrange(CELLS), draw.randrange(15)) for _ in range(3)}
    return Trouble(lambda at, _: 0.1 * whole_s if (at.cell, at.number) in where else 0.0, is_foreseeable=False)


def slow_start(draw: random.Random, whole_s: float) -> Trouble:
    """One cell whose start takes up to a fifth of the sweep."""
    cell, takes_s = draw.randrange(CELLS), draw.uniform(0.05, 0.2) * whole_s
    return Trouble(before_s=lambda at: takes_s if at == cell else 0.0, is_foreseeable=False)


def frequent_stalls(draw: random.Random, _whole_s: float) -> Trouble:
    """Three steps in a hundred take six times as long."""
    return Trouble(lambda _, usual_s: 5 * usual_s if draw.random() < 0.03 else 0.0)


def slow_cells(draw: random.Random, _whole_s: float) -> Trouble:
    """Three cells of thirty take twice as long, as with another's work beside them."""
    slow = set(draw.sample(range(CELLS), 3))
    return Trouble(slowdown=lambda at: 2.0 if at.cell in slow else 1.0)


def a_change(draw: random.Random, _whole_s: float) -> Trouble:
    """Everything becomes 35 % slower or faster from some cell on."""
    since, factor = draw.randrange(CELLS), draw.choice((1.35, 1 / 1.35))
    return Trouble(slowdown=lambda at: factor if at.cell >= since else 1.0)


def an_early_change(draw: random.Random, _whole_s: float) -> Trouble:
    """Everything becomes twice as slow or as fast within the first six cells."""
    since, factor = draw.randrange(1, 6), draw.choice((2.0, 0.5))
    return Trouble(slowdown=lambda at: factor if at.cell >= since else 1.0)


def a_drift(_draw: random.Random, _whole_s: float) -> Trouble:
    """Everything becomes slower evenly, by half in all."""
    return Trouble(slowdown=lambda at: 1 + 0.5 * at.share)


def nothing(_draw: random.Random, _whole_s: float) -> Trouble:
    return Trouble()


TROUBLES = (
    nothing, one_stall, three_stalls, slow_start, frequent_stalls, slow_cells, a_change, an_early_change, a_drift,
)  # fmt: skip


def a_sweep(draw: random.Random, order: Order) -> tuple[CellSpec, ...]:
    """Cells of very different lengths, in the order in which they run."""
    passes: tuple[Pass, ...] = ("forward", "forward+backward", "train-step")
    specs = [
        CellSpec(
            **sized(size),
            arch="swiglu-rope",
            context_length=draw.choice((128, 256, 512, 1024)),
            batch_size=draw.choice((1, 4)),
            pass_=draw.choice(passes),
            precision="fp32",
            device="cuda:0",
            seed=seed,
        )
        for seed, size in enumerate(draw.choices(("small", "medium", "large"), k=CELLS))
    ]
    return in_order(specs, order)


def step_s(spec: CellSpec) -> float:
    """Step time on an imaginary GPU: 40 TFLOP/s, a fifth slower with an optimizer, at least 8 ms for 12 layers."""
    slower = 1.25 if spec.pass_ == "train-step" else 1.0
    floor = 0.008 * spec.num_layers / 12 * (1 if spec.pass_ == "forward" else 3)
    return max(relative_work(spec) / 40e12 * slower, floor)


def events_of(specs: tuple[CellSpec, ...], trouble: Trouble, draw: random.Random) -> Iterator[tuple[Event, float]]:
    """Events of the sweep, each with the seconds of unforeseeable stalls until then."""
    at = stalled_s = 0.0
    yield CellsQueued(at=at, first=0, specs=specs, command="bench", ddof=1), stalled_s
    for cell, spec in enumerate(specs):
        at += 0.1
        yield CellStarted(at=at, cell=cell, pid=1), stalled_s
        lost_s = trouble.before_s(cell)
        at, stalled_s = at + draw.uniform(0.9, 1.2) + lost_s, stalled_s + lost_s
        measured: list[float] = []
        for number in range(spec.total_steps):
            kind: StepKind = "warm-up" if number < spec.warmup_steps else "measured"
            if number in (0, spec.warmup_steps):
                yield StageChanged(at=at, cell=cell, stage="warm-up" if number == 0 else "measuring"), stalled_s
            step = Step(cell, number, (cell + number / spec.total_steps) / CELLS)
            usual_s = step_s(spec) * trouble.slowdown(step) * draw.gauss(1.0, 0.02)
            lost_s = trouble.stall_s(step, usual_s)
            taken_s = usual_s + lost_s + (0.4 if number == 0 else 0.0)
            at, stalled_s = at + taken_s, stalled_s + lost_s
            measured += [taken_s] if kind == "measured" else []
            first = number if kind == "warm-up" else number - spec.warmup_steps
            yield StepsTimed(at=at, cell=cell, kind=kind, first=first, times_s=(taken_s,)), stalled_s
        at += 0.2
        yield CellFinished(at=at, cell=cell, status="ok", summary=summarize(measured), warmup_steps_done=5), stalled_s


def factors(specs: tuple[CellSpec, ...], trouble: Trouble, draw: random.Random) -> list[float]:
    """Ratios of predicted to real remaining time or the reverse, at least 1, at each event that is judged."""
    told: list[tuple[float, float, float | None]] = []
    state = SessionState()
    happened = list(events_of(specs, trouble, draw))
    end, lost_s = happened[-1][0].at, happened[-1][1]
    for event, stalled_s in happened:
        state.apply(event)
        if len(state.finished_cells) >= FROM * len(specs) and FROM * end <= event.at <= UNTIL * end:
            told.append((event.at, stalled_s, outlook_of(state).ends.last_s))
    found: list[float] = []
    for at, stalled_s, foretold in told:
        real = end - at - (0.0 if trouble.is_foreseeable else lost_s - stalled_s)
        if real < (1 - UNTIL) * (end - lost_s):
            continue
        found.append(max(foretold / real, real / foretold) if foretold else float("inf"))
    return found


def judge(kind: Callable[[random.Random, float], Trouble], order: Order, seed: int) -> list[float]:
    """The `factors` of one simulated sweep."""
    draw = random.Random(seed)
    specs = a_sweep(draw, order)
    whole_s = sum(1.5 + spec.total_steps * step_s(spec) for spec in specs)
    return factors(specs, kind(draw, whole_s), draw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    orders: tuple[Order, ...] = ("as-given", "smallest-first")
    for order in orders:
        print(f"{order:<16} {'worst':>6} {'99 %':>6} {'median':>6}  within 1.5, of moments and of sweeps")
        for kind in TROUBLES:
            each = [judge(kind, order, seed) for seed in seeds]
            ordered = sorted(factor for found in each for factor in found)
            within = sum(factor <= 1.5 for factor in ordered) / len(ordered)
            whole = sum(max(found) <= 1.5 for found in each)
            print(
                f"{kind.__name__:<16} {ordered[-1]:6.2f} {ordered[int(0.99 * len(ordered))]:6.2f} "
                f"{ordered[len(ordered) // 2]:6.2f}  {within:.1%} of {len(ordered)}, {whole} of {len(each)}"
            )


if __name__ == "__main__":
    main()
