"""A race as events: made costs, the same in every round but for a little scatter."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.tuned_sweep import over_of
from cs336_tui.config.tuning import LeftOut, Tuning, space_of
from cs336_tui.events import events as ev
from tests.samples import ENVIRONMENT, START, a_spec, summary_of

OVER = ("attention=naive,sdpa", "checkpoint=0,1", "optimizer=adamw,adamw-for-loop")
_EFFECTS = {"sdpa": 0.6, "adamw-for-loop": 1.15, 1: 1.3}
"""Factors of the choices' values; those that are missing are 1."""
_SCATTER = (0.003, -0.004, 0.001, 0.004, -0.002)
VISIT_S = 1.0


def made_tuning(*over: str, **changes: Any) -> Tuning:
    base = a_spec(device="cpu", pass_="train-step", warmup_steps=1, measure_steps=3)
    return Tuning(base=base, over=over_of(over or OVER, base, "step"), **({"budget_s": 60.0} | changes))


def race_events(
    tuning: Tuning | None = None,
    *,
    rounds: Iterable[Iterable[int]] = (range(8), (0, 4, 5, 6), (0, 4, 5)),
    lost: Mapping[int, str] | None = None,
    ended: str = "",
    running: int | None = None,
) -> list[ev.Event]:
    """A race whose candidates are visited in these rounds, by number. Those `lost` fail, each for its reason. `ended`
    says why it is over; else the candidate `running`, if given, is in its next visit."""
    tuning = tuning or made_tuning()
    space = space_of(tuning)
    left_out = (LeftOut("attention flash", "needs a GPU"), *space.left_out)
    events: list[ev.Event] = [
        ev.SessionStarted(at=START, schema=ev.SCHEMA, session="race", app="0.1.0"),
        ev.EnvironmentRead(at=START, environment=ENVIRONMENT),
        ev.TuningStarted(at=START, tuning=tuning, candidates=space.candidates, left_out=left_out),
    ]
    first, last = 0, 0
    for last, round_ in enumerate(rounds, 1):
        visits = [number for number in round_ if not (lost and number in lost and last > 1)]
        events.append(_queued(first, [space.candidates[number] for number in visits], last))
        for place, number in enumerate(visits):
            why = (lost or {}).get(number, "")
            events += _visit(first + place, space.candidates[number], number, last, why)
        first += len(visits)
    at = events[-1].at
    if ended:
        events.append(ev.TuningEnded(at=at, reason=ended))
    elif running is not None:
        events.append(_queued(first, [space.candidates[running]], last + 1))
        events += list(_visit(first, space.candidates[running], running, last + 1, ""))[:-1]
    return events


def cost_of(spec: CellSpec) -> float:
    """The time of a step without scatter, s."""
    found = 0.1
    for value in (spec.attention, spec.optimizer, spec.checkpoint):
        found *= _EFFECTS.get(value, 1.0)
    return found


def _queued(first: int, specs: list[CellSpec], round_: int) -> ev.Event:
    at = START + VISIT_S * first
    return ev.CellsQueued(at=at, first=first, specs=tuple(specs), repeats=(round_,) * len(specs))


def _visit(cell: int, spec: CellSpec, number: int, round_: int, lost: str) -> Iterator[ev.Event]:
    at = START + VISIT_S * cell
    yield ev.CellStarted(at=at, cell=cell, pid=1000 + cell)
    if lost:
        yield ev.CellFinished(at=at + VISIT_S, cell=cell, status="failed", error=lost, stage="building")
        return
    scatter = _SCATTER[(3 * number + round_) % len(_SCATTER)]
    times = [cost_of(spec) * (1 + scatter + step / 1000) for step in (-1, 0, 1)]
    for kind, stage, these in (("warm-up", "warm-up", times[:1]), ("measured", "measuring", times)):
        yield ev.StageChanged(at=at + 0.1, cell=cell, stage=stage)
        for first, time_s in enumerate(these):
            yield ev.StepsTimed(at=at + 0.5, cell=cell, kind=kind, first=first, times_s=(time_s,))
    yield ev.CellFinished(
        at=at + VISIT_S,
        cell=cell,
        status="ok",
        peak_rss_bytes=400_000_000 + 10_000_000 * number,
        warmup_steps_done=1,
        summary=summary_of(times),
    )
