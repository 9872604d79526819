"""Judges the trust in a cell's numbers: several verdicts, each with its evidence. Launch-bound steps are told
by how far the host runs ahead of the device.

Run as a process, it judges the cells that another one sends, so that that one need not have numpy in its own memory: it
reads pickled pairs (a cell, the share of its profiled step in which the GPU was idle) from standard input, and writes
for each a pickled pair: the judgement, and the error if there is none.
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.nice(19)  # a cell may be measured, also while numpy is imported

import pickle
import select
import sys
from collections.abc import Iterator, Sequence
from math import fsum
from statistics import fmean
from typing import BinaryIO, NamedTuple

import msgspec

from cs336_tui.analysis.contention import contention, milliseconds, ran_beside, unseen
from cs336_tui.analysis.judgement import Check, Finding, Judgement, VerdictName, limited_note
from cs336_tui.analysis.referee import refereed
from cs336_tui.config.counts import duration_words
from cs336_tui.config.processes import BLOCKING, CACHE_FOLDER, INTERPRETED, slowing
from cs336_tui.events.gpus import ORDINARY_REASONS
from cs336_tui.session.states import CellState
from cs336_tui.stats.intervals import MeanInterval, mean_interval
from cs336_tui.stats.quantities import TOO_NOISY, change_percent, counted, is_too_noisy, named
from cs336_tui.stats.steady import FEWEST, Class, Steadiness, classify, enough_warmup, still_falling

LEAST_SHARE = 0.9
"""Share of a step in which the host was enqueuing it."""
QUEUE = 1000
"""Launches that a CUDA driver holds at least; at one more the host waits until the device has begun an earlier one."""
_LEAST_LAUNCH_S = 2e-6
"""Less than any launch takes the host. A queue fills only with kernels that take the device longer than that."""
_UNLIKE = 1.5
"""A second of a later phase may take so many times as much launching as one of the first that fills the queue."""
FULL_S = QUEUE * _LEAST_LAUNCH_S
"""The least time that a full queue keeps the device busy. Where the device has less to do, the host is not waiting."""


class Phase(NamedTuple):
    """Seconds: how long the host took to enqueue a phase, waiting included, and how long the device took for it."""

    name: str
    host_s: float
    device_s: float


class Enqueuing(NamedTuple):
    """Bounds of the host's time to enqueue a step without waiting for the device, in seconds; `ahead` is the phase at
    whose end it was ahead the most, if so far that the queue may have been full, and by how much."""

    least_s: float
    most_s: float
    ahead: tuple[str, float] | None


def launching(cell: CellState, idle: float | None = None) -> Finding:
    """True if the host needs nearly the whole step to enqueue it, without waiting for room in the device's queue.
    `idle` is the share of a profiled step of the same work in which the GPU ran nothing, if known. Of steps of a window
    the first tells, as others begin while steps are queued, and the quickest enqueuing counts."""
    spec, host_s, times_s = cell.spec, cell.times.host_s, cell.step_times_s
    if spec.device == "cpu":
        return Finding(None, "on cpu the host does the work itself")
    if not host_s:
        return Finding(None, "the host's time to enqueue a step was not recorded")
    if spec.pass_ == "train-step" and cell.in_force is not None and cell.in_force.grad_scaler:
        return Finding(None, "the gradient scaler makes the host wait for backward in every step")
    if cell.in_force and any(said.startswith(f"{BLOCKING}=") for said in slowing(cell.in_force.variables or ())):
        return Finding(None, f"{BLOCKING} makes the host wait for every kernel")
    mean_s = fmean(times_s)
    if mean_s <= 0:
        return Finding(None, "the mean step time is not above 0 s")
    each = not spec.is_window
    all_s = fmean(host_s) if each else min(host_s)
    text = (
        f"enqueuing takes the host{'' if each else ' at the quickest'} {milliseconds(all_s)} of a step's "
        f"{milliseconds(mean_s)} ({change_percent(all_s / mean_s)})"
    )
    if phases_s := [fmean(phase) for phase in cell.phase_times_s.values() if phase]:
        text += f", its phases {milliseconds(fsum(phases_s))} on the device"
    holds: bool | None = all_s / mean_s >= LEAST_SHARE
    why = ""
    if holds and (phases := _phases(cell, steps=len(times_s) if each else 1)):
        found = enqueuing(phases)
        holds = found.least_s / mean_s >= LEAST_SHARE
        if not holds and found.ahead:
            name, ahead_s = found.ahead
            text += f"; it was {milliseconds(ahead_s)} ahead of the device at the end of the {name}"
            if found.most_s / mean_s >= LEAST_SHARE:
                holds, why = None, "the host may have waited for a full queue"
            text += f", so that it {'may have waited' if why else 'waited'} for room in the queue of launches"
    elif holds:
        holds, why = None, "the host's time in each phase was not recorded"
        text += "; whether it waited for room in the queue of launches is not known, as its time in each phase is not"
    if spec.cuda_graph != "off":
        text += "; the host launches one CUDA graph"
    elif idle is None:
        text += "; the GPU's idle share is known once its kernels are profiled (cs336-tui kernels)"
    else:
        text += f"; profiled, the GPU was idle for {change_percent(idle)} of a step"
    graph = ", a CUDA graph of the step" if spec.device.startswith("cuda") and spec.cuda_graph == "off" else ""
    advice = f"a faster GPU would not help: a larger batch or context{graph} or fewer kernels would"
    return Finding(holds, text, advice if holds else "", why)


def enqueuing(phases: Sequence[Phase]) -> Enqueuing:
    """Bounds of what enqueuing a step takes without waiting, from its phases; the queue is empty before the first. The
    host waits where the queue is full, and is then ahead of the device by all that the queue holds. In a phase at whose
    end it was ahead by less than `FULL_S`, it waited no longer than it was ahead at its beginning. Of any other only
    the most is known: what it took, and half as much again as it would take at the rate of the first such phase, which
    began with an empty queue. A phase that fills the queue and then drains it cannot be told."""
    least_s = most_s = ahead_s = 0.0
    rate: float | None = None
    furthest: tuple[str, float] | None = None
    for phase in phases:
        waited_s = ahead_s if ahead_s >= FULL_S else 0.0
        ahead_s += phase.device_s - phase.host_s
        if ahead_s < FULL_S:
            least_s += max(phase.host_s - waited_s, 0.0)
            most_s += phase.host_s
            continue
        rate = _UNLIKE * phase.host_s / phase.device_s if rate is None else rate
        most_s += min(phase.host_s, rate * phase.device_s)
        if furthest is None or ahead_s > furthest[1]:
            furthest = phase.name, ahead_s
    return Enqueuing(least_s, most_s, furthest)


def _phases(cell: CellState, steps: int) -> list[Phase]:
    """Means over the first `steps` steps; none where the host's time of a phase was not recorded, or is below 0."""
    device_s = cell.phase_times_s
    host_s = cell.times.host_phases_s or (dict.fromkeys(device_s, cell.times.host_s) if len(device_s) == 1 else {})
    count = len(cell.step_times_s)
    if host_s.keys() != device_s.keys() or any(len(each) != count for each in (*host_s.values(), *device_s.values())):
        return []
    found = [Phase(name, fmean(host_s[name][:steps]), fmean(device_s[name][:steps])) for name in device_s]
    return found if all(phase.host_s >= 0 and phase.device_s >= 0 for phase in found) else []


EARLY = 1000
"""The measured steps that advice on warm-up looks at, from the first on: what comes later says nothing of it."""
LOOSE = 0.05
"""A mean known no better than to ± this share, also if its steps are independent, comes from too few of them."""
HIDING = 0.05
"""Steps that may hide a lasting change of this share are not called steady."""
OPEN = 0.5
"""From this share of it on the steps do not fix the mean at all."""
_POWER_CAP = "software power cap"
_TOO_FEW = "too few steps to tell"

_SERIES: dict[VerdictName, tuple[tuple[Class, ...], str]] = {
    "steady": (("flat",), "not flat"),
    "still-warming": (("warm-up",), "no warm-up"),
    "drifting": (("slowdown", "drift"), "no slowdown and no drift of 1 % or more"),
    "two-levels": (("bimodal",), "one level"),
    "periodic": (("periodic",), "no regular ups and downs"),
    "quantised": (("quantised",), "no levels at equal distances"),
    "outliers": (("outliers",), "no step stands out"),
}
"""Verdicts on the step series: the classes that mean each, and what to say where it does not hold."""


def judge(cell: CellState, idle: float | None = None) -> Judgement | None:
    """The judgement of a cell that ended well and has measured steps; None of any other. `idle` is the share of a
    profiled step of the same work in which the GPU ran nothing, if known.

    The verdicts on the series are `classify`'s, of the measured steps alone; at least one holds: ``steady`` only if the
    series is flat, ``too-few-steps`` if it is too short, has a time that is not above 0, or fixes the mean no better
    than to ± 5 %; flat is not steady then. All others come from device and host samples of the time in which the cell
    measured, and from what the cell says of itself; without these, a verdict is not observable.
    """
    times_s = cell.step_times_s
    if cell.finished is None or cell.finished.status != "ok" or not times_s:
        return None
    usable = all(0 < time_s < float("inf") for time_s in times_s)
    steadiness = classify(times_s) if usable else None
    interval = mean_interval(times_s) if usable else None
    needed = _warmup_needed(cell, steadiness)
    findings: dict[VerdictName, Finding] = {
        **dict(_of_series(cell, steadiness, interval, needed)),
        "throttled": _throttled(cell),
        "contended": contention(cell),
        "launch-bound": launching(cell, idle),
        "allocator-retry": _allocator_retry(cell),
        "slowed-by-settings": _slowed(cell),
        **refereed(cell),
        **({"autotuned-differently": _autotuned(cell)} if cell.finished.autotuned else {}),
    }
    return Judgement(
        checks=tuple(Check(name=name, **msgspec.structs.asdict(found)) for name, found in findings.items()),
        notes=(*cell.finished.remarks, *_notes(cell, steadiness)),
        warmup_advice=_warmup_advice(cell, steadiness, needed),
        interval=interval,
        limited=steadiness.limited if steadiness else 0,
    )


def _of_series(
    cell: CellState, steadiness: Steadiness | None, interval: MeanInterval | None, needed: int | None
) -> Iterator[tuple[VerdictName, Finding]]:
    n = len(cell.step_times_s)
    steps = counted(n, "measured step")
    # A series that goes somewhere has a wide interval too, which more steps would not narrow.
    moving = {"warm-up", "slowdown", "drift", "bimodal", "periodic"}
    stays = steadiness is not None and not moving & {*steadiness.classes}
    # The interval of few steps may be wide for fear that they are alike; independent ones must leave it wide too.
    std_s, mean_s = cell.running.std() or 0.0, cell.running.mean
    at_best = 2 * std_s / (mean_s * n**0.5) if mean_s > 0 else 0.0
    loose = stays and interval is not None and min(interval.half_share, at_best) > LOOSE
    hides = stays and steadiness is not None and (steadiness.hidden or 0.0) >= HIDING
    if steadiness is None or "too-few" in steadiness.classes:
        few = f"{steps}, and at least {FEWEST} are needed to tell whether they are steady"
        advice = "--steps 30" if cell.spec.steps_for is None else _more_time(cell)
        why = _TOO_FEW
        if steadiness is None:
            few, advice = "a step time is not above 0 s, so that its clock was too coarse", "--sync each-step"
            why = "clock too coarse to tell"
        for name in _SERIES:
            yield name, Finding(None, few, unknown_because=why)
        yield "too-few-steps", Finding(True, few, advice)
        return
    for name, (classes, otherwise) in _SERIES.items():
        # By its share, as a drift that slows down is a slowdown too and need not be told twice.
        found = {finding.share: finding for finding in steadiness.findings if finding.name in classes}
        texts = [finding.text.removeprefix("flat: ") for finding in found.values()]
        if found and (loose or hides) and name == "steady":
            hidden = f"noise of {change_percent(steadiness.noise or 0.0)} would hide a change"
            yield "steady", Finding(None, hidden, unknown_because=_TOO_FEW)
        elif found:
            yield name, Finding(True, " and ".join(texts), _series_advice(name, cell, steadiness, needed))
        else:
            yield name, Finding(False, f"{otherwise} in {steps}")
    if loose and interval is not None:
        few = f"{interval.level * 100:g} % CI {_width(interval)} with n={n}"
        more = "more steps, such as --steps auto"
        if cell.spec.steps_auto is not None:
            more = "a quieter machine, or a larger --steps auto:MAX"
        elif cell.spec.steps_for is not None:
            more = _more_time(cell)
        yield "too-few-steps", Finding(True, few, more)
    elif hides:
        noise, change = change_percent(steadiness.noise or 0.0), change_percent(steadiness.hidden or 0.0)
        few = f"noise of {noise} in {steps} may hide a change of {change}"
        yield "too-few-steps", Finding(True, few, "--steps 30 or more")
    else:
        yield "too-few-steps", Finding(False, f"{steps}; {FEWEST} are enough to tell")


def _width(interval: MeanInterval) -> str:
    """``± 12 % of the mean``; from `OPEN` on ``too wide (± 96 % of the mean)``."""
    half = f"± {change_percent(interval.half_share)} of the mean"
    if is_too_noisy(interval.low, interval.high):
        half = TOO_NOISY
    return f"too wide ({half})" if interval.half_share >= OPEN or half == TOO_NOISY else half


def _series_advice(name: VerdictName, cell: CellState, steadiness: Steadiness, needed: int | None) -> str:
    given = len(cell.warmup_times_s)
    match name:
        case "still-warming":
            return _more_warmup(cell, f"above {given + len(cell.step_times_s)}" if needed is None else f"to {needed}")
        case "drifting":
            if any(finding.name == "drift" and finding.share < 0 for finding in steadiness.findings):
                return _more_warmup(cell, f"well above {given}")
            return "repeat it when the machine is cool and quiet"
        case "two-levels":
            return "the mean lies between the levels and describes neither: look at the single steps"
        case "periodic":
            return "the clocks or something else on the machine comes and goes: measure many whole periods"
        case "quantised":
            return "the clock is coarse, or the device's clock moves in ticks: give the mean alone, or lock the clocks"
        case "outliers":
            return "give the median beside the mean, or take more steps"
    return ""


def _more_time(cell: CellState) -> str:
    assert cell.spec.steps_for is not None
    return f"--steps above {duration_words(cell.spec.steps_for)}"


def _more_warmup(cell: CellState, number: str) -> str:
    """Advice to warm up ``to 64`` or ``above 64`` steps."""
    if cell.spec.warmup_for is not None:
        return f"raise --warmup above {duration_words(cell.spec.warmup_for)}"
    if not cell.spec.warmup_auto:
        return f"raise --warmup {number}"
    all_used = len(cell.warmup_times_s) >= cell.spec.warmup_steps
    what = "did not settle" if all_used else "stopped too early"
    return f"--warmup auto {what}; try --warmup {number.removeprefix('to ')}"


def _warmup_needed(cell: CellState, steadiness: Steadiness | None) -> int | None:
    """The number of warm-up steps that would do if the measured ones still have some: as these tell, or more if warm-up
    and early measured steps together tell more. None if they have none, or do not tell."""
    if steadiness is None or "warm-up" not in steadiness.classes:
        return None
    given = len(cell.warmup_times_s)
    needed = [] if steadiness.warmup_steps is None else [given + steadiness.warmup_steps]
    if given and not cell.spec.is_window:
        together = classify((*cell.warmup_times_s, *cell.step_times_s[:EARLY])).warmup_steps
        needed += [together] if together is not None and together > given else []
    return max(needed, default=None)


def _warmup_advice(cell: CellState, steadiness: Steadiness | None, needed: int | None) -> str:
    """It never says another number than the verdicts on the measured steps do."""
    classes = steadiness.classes if steadiness else ()
    if "warm-up" in classes:
        return still_falling(len(cell.warmup_times_s), len(cell.step_times_s), needed)
    if {"slowdown", "drift"} & {*classes}:
        return "not known: the steps drift"
    if cell.spec.timer == "do_bench":
        return "not observable: nothing is flushed before warm-up steps"
    if cell.spec.sync != "each-step":
        return "not observable: warm-up steps are synchronised one by one, measured ones are not"
    if steadiness is None or not all(0 < time_s < float("inf") for time_s in cell.warmup_times_s):
        return "not observable: a step time is not above 0 s"
    return enough_warmup(cell.warmup_times_s, cell.step_times_s[:EARLY])


def _throttled(cell: CellState) -> Finding:
    around, device = cell.surroundings, cell.spec.device
    if not device.startswith("cuda"):
        return Finding(None, "only NVIDIA GPUs report clock events")
    if not around.reasons_known:
        return Finding(None, unseen(cell, "told no clock events"))
    bad = {reason: seen for reason, seen in around.reasons.items() if reason not in ORDINARY_REASONS}
    window = f"{counted(around.reasons_known, 'sample')} while measuring"
    if not bad:
        return Finding(False, f"no thermal, hardware or power supply slowdown in {window}")
    told = []
    for reason, seen in bad.items():
        ranks = around.ranks_of.get(reason, ())
        gpus = f" (GPU{'s' * (len(ranks) > 1)} of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))})"
        told.append(f"{reason} in {seen}{gpus if ranks else ''}")
    said = f"{', '.join(told)} of {window}"
    lowest, before = around.lowest_clock_mhz, around.clock_before_mhz
    if lowest is not None and before is not None and before <= lowest:
        said += f", SM clock at {lowest} MHz, {'as' if before == lowest else f'{before} MHz'} before it"
    elif lowest is not None:
        said += f", SM clock down to {lowest} MHz" + (f" from {before} MHz before it" if before is not None else "")
    return Finding(True, said, "let it cool, or lower its clocks by nvidia-smi -lgc, and repeat it")


def _allocator_retry(cell: CellState) -> Finding:
    assert cell.finished is not None
    retries = cell.finished.num_alloc_retries
    if retries is None:
        return Finding(None, f"the allocator of {cell.spec.device} counts no retries")
    if not retries:
        return Finding(False, "the allocator never had to give memory back")
    text = f"the allocator freed its cache and retried {counted(retries, 'time')}"
    return Finding(True, text, "memory is nearly full: a smaller batch or context")


def _slowed(cell: CellState) -> Finding:
    """By variables of the environment that have it do more than the step asks for."""
    variables = cell.in_force.variables if cell.in_force else None
    if variables is None:
        return Finding(None, "environment variables were not recorded", unknown_because="not recorded")
    if not cell.spec.brings_own_code:  # nothing to interpret
        variables = tuple(said for said in variables if not said.startswith(f"{INTERPRETED}="))
    if not (found := slowing(variables)):
        return Finding(False, "no environment variable is set that makes steps slower")
    text = ", and ".join(f"{said} is set: {how}" for said, how in found.items())
    names = ", ".join(said.partition("=")[0] for said in found)
    return Finding(True, text, f"unset {names} and repeat it")


def _autotuned(cell: CellState) -> Finding:
    """By autotuners that chose otherwise in another repeat of the same cell, or in another rank."""
    kernels: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    runs = [(n, rank, end) for n, end in sorted(cell.tuned.items()) for rank in range(len(end.autotuned))]
    for number, rank, end in runs:
        of_rank = f" rank {rank}" if len(end.autotuned) > 1 else ""
        step = f", a step {milliseconds(end.summary.mean_s)}" if end.summary and end.summary.mean_s else ""
        names: dict[tuple[str, str, str], dict[str, str]] = {}  # several of inductor's kernels may have one name
        for each in end.autotuned[rank]:
            time_s = each.times_s.get(each.chosen)
            own = f" at {milliseconds(time_s)}" if time_s is not None else ""
            names.setdefault((each.by, each.kernel, each.key), {})[each.chosen] = own
        for name, chosen in names.items():
            where = f"cell {number + 1}{of_rank}{' and'.join(filter(None, chosen.values()))}{step}"
            kernels.setdefault(name, {}).setdefault(" and ".join(sorted(chosen)), []).append(where)
    differ = {key: choices for key, choices in kernels.items() if len(choices) > 1}
    if not differ:
        alike = f"alike in {len(runs)} runs" if len(runs) > 1 else "in one run; --repeats 2 shows whether they stay"
        return Finding(False, f"{counted(len(kernels), 'choice')} of autotuners, {alike}")
    (by, kernel, _), choices = next(iter(differ.items()))
    said = "; ".join(f"{chosen} ({', '.join(places)})" for chosen, places in choices.items())
    more = f", and {len(differ) - 1} more" if len(differ) > 1 else ""
    advice = (
        "pin it: leave one triton.Config in the configs of its triton.autotune"
        if by == "triton"
        else f"pin it: set {CACHE_FOLDER} to a folder of your own, which keeps the first choice for all runs"
    )
    return Finding(True, f"{kernel}: {said}{more}", advice)


def _notes(cell: CellState, steadiness: Steadiness | None) -> Iterator[str]:
    for rank, choices in enumerate(cell.finished.autotuned if cell.finished else ()):
        of_rank = f", rank {rank}" if cell.spec.ranks > 1 else ""
        chosen = [f"{each.kernel}{f' ({each.key})' if each.key else ''}: {each.chosen}" for each in choices]
        yield f"chosen by autotuners{of_rank}: {named(chosen, 3, '; ')}"
    around = cell.surroundings
    if beside := ran_beside(cell):
        yield beside
    if capped := around.reasons.get(_POWER_CAP):
        window = f"{counted(around.reasons_known, 'sample')} while measuring"
        yield f"{_POWER_CAP} in {capped} of {window}: normal at full load, no doubt"
    if steadiness is not None and steadiness.limited:
        yield limited_note(steadiness.limited)


KEPT_S = 300.0
"""The process ends when it has been asked nothing for so many seconds."""


def serve(asked: BinaryIO, answers: BinaryIO, kept_s: float = KEPT_S) -> None:
    """Judge until the other side closes its end, or asks nothing for `kept_s`."""
    while select.select([asked], [], [], kept_s)[0]:
        try:
            cell, idle = pickle.load(asked)
        except EOFError:
            return
        answer: tuple[Judgement | None, Exception | None]
        try:
            answer = judge(cell, idle), None
        except Exception as error:
            answer = None, error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
