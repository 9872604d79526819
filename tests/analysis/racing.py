"""A race whose events are made one after another: visits with given costs, turns, checks."""

import random
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from cs336_tui.analysis.agreement import agreement_key
from cs336_tui.analysis.next_step import next_step
from cs336_tui.analysis.tuning import Entry, Race, race_of
from cs336_tui.config.order import Step
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuning import BUDGET_ENDED, Goal, Over, Tuning, space_of
from cs336_tui.events import events as ev
from cs336_tui.events.reports import AgreementReport, PositionsSketch, Sketch
from cs336_tui.session.state import SessionState
from tests.samples import START, a_spec

OVER = (Over("attention", ("naive", "sdpa")), Over("optimizer", ("adamw", "adamw-fused")))
COSTS = (1.0, 0.99, 0.8, 0.8)
"""Of starting point, fused optimizer, sdpa, and both."""
VISIT_S = 2.0


class Made:
    """A race whose events are made one after another; each visit takes `VISIT_S`."""

    def __init__(
        self, over: Sequence[Over] = OVER, goal: Goal = "step", limit_bytes: int | None = None, **base: Any
    ) -> None:
        tuning = Tuning(base=a_spec(pass_="train-step", **base), over=tuple(over), goal=goal, budget_s=100.0)
        self.candidates = space_of(tuning).candidates
        self.state, self.at, self.cells, self.reports = SessionState(), START, 0, 0
        self.draw, self.noise = random.Random(1), 0.003
        self.tell(ev.TuningStarted(at=START, tuning=tuning, candidates=self.candidates, limit_bytes=limit_bytes))

    def tell(self, *events: ev.Event) -> None:
        for event in events:
            self.state.apply(event)

    @property
    def race(self) -> Race:
        return race_of(self.state)

    def entry(self, number: int) -> Entry:
        return next(entry for entry in self.race.entries if entry.number == number)

    @property
    def statuses(self) -> list[str]:
        return [self.entry(number).status for number in range(len(self.candidates))]

    def next(self, left_s: float = 80.0) -> Step:
        return next_step(self.state, left_s)

    def queue(self, *numbers: int, round_: int, in_turns: bool = False) -> range:
        specs = tuple(self.candidates[number] for number in numbers)
        first, self.cells = self.cells, self.cells + len(numbers)
        repeats = (round_,) * len(numbers)
        self.tell(ev.CellsQueued(at=self.at, first=first, specs=specs, repeats=repeats, in_turns=in_turns))
        return range(first, self.cells)

    def visit(
        self, number: int, step_s: float, *, round_: int, noise: float | None = None, status: str = "ok", **end: Any
    ) -> None:
        (cell,) = self.queue(number, round_=round_)
        noise = self.noise if noise is None else noise
        self._run([cell], [step_s * self.draw.lognormvariate(0, noise)], status, **end)

    def round(self, round_: int, costs: Sequence[float] = COSTS, only: Iterable[int] | None = None) -> None:
        for number in range(len(costs)) if only is None else only:
            self.visit(number, costs[number], round_=round_)

    def turns(self, a: int, b: int, times_s: tuple[float, float], status: str = "ok") -> None:
        cells = self.queue(a, b, round_=100 + self.cells, in_turns=True)
        noisy = [step_s * self.draw.lognormvariate(0, 0.002) for step_s in times_s]
        self._run(cells, noisy, status)

    def cut_off(self, cells: Iterable[int], why: str = BUDGET_ENDED) -> None:
        self.tell(*(ev.CellSkipped(at=self.at, cell=cell, reason=why) for cell in cells))

    def _run(self, cells: Sequence[int], times_s: Sequence[float], status: str, **end: Any) -> None:
        self.tell(*(ev.CellStarted(at=self.at, cell=cell, pid=1000 + cells[0]) for cell in cells))
        for cell, step_s in zip(cells, times_s, strict=True):
            steps = tuple(step_s * factor for factor in (1.0, 1.002, 0.998, 1.001, 0.999))
            self.tell(ev.StageChanged(at=self.at, cell=cell, stage="measuring"))
            if status == "ok":
                self.tell(ev.StepsTimed(at=self.at + 1, cell=cell, kind="measured", first=0, times_s=steps))
        self.at += VISIT_S
        peaks = {"peak_allocated_bytes": 10**9} | end
        self.tell(*(ev.CellFinished(at=self.at, cell=cell, status=status, **peaks) for cell in cells))

    def check(self, spec: CellSpec, *, scale: float = 1.0, status: str = "ok") -> None:
        """A report whose logits are those of all others times `scale`."""
        number, self.reports = self.reports, self.reports + 1
        buckets = array("f", [scale] * 4).tobytes()
        content = AgreementReport(
            spec=spec,
            device_name="a GPU",
            torch="2.9",
            shape=(1, 4, 8),
            dtype="float32",
            logits=(PositionsSketch(0, 4, Sketch(2.0 * scale, buckets)),),
            parameters=(),
            loss=1.0,
        )
        self.tell(ev.ReportStarted(at=self.at, report=number, kind="agreement", spec=spec))
        self.at += 1.0
        made = content if status == "ok" else None
        error = None if made else "it broke"
        self.tell(ev.ReportFinished(at=self.at, report=number, status=status, content=made, error=error))

    def checked(self, *, wrong: Iterable[int] = ()) -> None:
        """All checks that can be asked for; the keys of `wrong` candidates differ."""
        base = self.candidates[0]
        bad = {agreement_key(self.candidates[number], base) for number in wrong}
        for key in dict.fromkeys(agreement_key(spec, base) for spec in self.candidates):
            self.check(key, scale=1.5 if key in bad else 1.0)
