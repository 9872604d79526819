"""The correctness of one cell against another: their logits and gradients, compared by sketches."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from cs336_tui.config.spec import AXES, CellSpec, Pass, Precision
from cs336_tui.config.values import WITHOUT_BACKWARD, prepared_phases
from cs336_tui.events.reports import AgreementReport, Sketch
from cs336_tui.stats.differences import Errors, Part, relative_error, relative_errors
from cs336_tui.stats.quantities import two_digit_percent

SEQUENCES = 2
"""Sequences that are compared, if the starting point has as many: two show whether one leaks into another."""
COMPARED = (
    f"one forward and backward, the first of a fresh process, on at most {SEQUENCES} sequences; not further sequences, "
    "later steps and the steps that are timed"
)
"""The extent of a check: what it saw, and what it did not."""
_ROUNDOFF: dict[Precision, float] = {
    "fp32": 2.0**-20, "tf32": 2.0**-11, "fp16-mixed": 2.0**-11, "bf16-mixed": 2.0**-8, "bf16": 2.0**-8,
    "fp8-mixed": 2.0**-5,
}  # fmt: skip
"""Unit roundoff of the numbers that are multiplied: half the distance from 1 to the next (Higham 2002, "Accuracy and
Stability of Numerical Algorithms"). Of fp32 16 times that: sums of thousands of terms are rounded as well. Of float8
(E4M3) half of it: only linear layers round to it."""
_WHOLE, _PART = 3.0, 8.0
"""The tolerance of all logits, of all gradients and of the loss, and that of a part, in units of roundoff times the
root of the number of layers: rounding errors add up as a random walk (Higham and Mary 2019, "A new approach to
probabilistic rounding error analysis"). sdpa, other precisions and models of one's own came to half of it on a CPU."""
_SAME_START = 0.01
"""Parameters that begin alike are rounded differently at most; others differ by about their norm."""
_ALIKE = (
    "optimizer", "cuda_graph", "ranks", "parallel", "backend", "batch_is", "accumulate", "dropout", "attention_dropout",
    "timer", "flush_l2", "sync", "warmup_steps", "measure_steps", "warmup_auto", "steps_auto", "warmup_for",
    "steps_for", "within", "annotations",
)  # fmt: skip
"""Choices that change neither logits nor gradients, and dropout, which is off."""


class Agreement(NamedTuple):
    """A comparison with the starting point. `agrees` is None if the two cannot be compared. `why` says so in one line,
    without a full stop."""

    agrees: bool | None
    why: str
    logits: Errors | None = None
    gradients: Errors | None = None
    """None without a backward."""


def agreement_key(spec: CellSpec, base: CellSpec) -> CellSpec:
    """The cell whose report of logits and gradients tells those of `spec`, for comparison with a starting point `base`:
    of one rank, without optimizer, with the starting point's threads, on at most `SEQUENCES` sequences of one of its
    micro-batches. Two cells with equal keys need one report. A collective has none: raises `SpecError`."""
    alike = {field: AXES[field].alike for field in _ALIKE}
    passed: Pass = spec.pass_ if spec.pass_ in WITHOUT_BACKWARD else "forward+backward"
    return msgspec.structs.replace(
        spec,
        **alike,
        pass_=passed,
        batch_size=min(SEQUENCES, base.rank_batch_size // base.accumulate),
        threads=base.threads,
        compile="default" if spec.compile == "reduce-overhead" else spec.compile,  # which adds CUDA graphs alone
    )


def agreement(of: AgreementReport | str, base: AgreementReport | str) -> Agreement:
    """Compare a cell's report with the starting point's, both of `agreement_key`; a text is the reason why there is no
    report. The coarser of both precisions gives the tolerance."""
    if isinstance(base, str):
        return Agreement(None, f"the starting point could not be checked: {base}")
    if isinstance(of, str):
        return Agreement(None, f"could not be checked: {of}")
    if why := next(_obstacles(of, base), ""):
        return Agreement(None, why)
    if lost := next(_not_finite(of), ""):
        return Agreement(False, lost)
    logits, gradients = relative_errors(_logits(of, base)), relative_errors(_gradients(of, base))
    loss = 0.0 if of.loss is None or base.loss is None else relative_error(abs(of.loss - base.loss), abs(base.loss))
    tolerance = tolerance_of(of.spec, base.spec)
    exceeded = tolerance.exceeded(logits, gradients, loss)
    if not exceeded:
        found = (("logits", logits), ("gradients", gradients))
        said = " and ".join(f"{what} by {two_digit_percent(errors.worst_error)}" for what, errors in found if errors)
        return Agreement(True, f"differs by rounding alone: {said}; {tolerance.words}", logits, gradients)
    why = f"differs in {', '.join(exceeded)}; {tolerance.words}"
    in_tf32 = msgspec.structs.replace(of.spec, precision="tf32")
    if tolerance.precision == "fp32" and not tolerance_of(in_tf32, base.spec).exceeded(logits, gradients, loss):
        why = f"{why}; products in TF32 would explain it"
    if of.draws or base.draws:
        return Agreement(None, f"draws random numbers, which fall differently, and {why}", logits, gradients)
    return Agreement(False, why, logits, gradients)


class Tolerance(NamedTuple):
    """The largest errors that rounding in a precision explains: of all logits, all gradients and the loss, and of a
    part."""

    precision: Precision
    whole: float
    part: float

    @property
    def words(self) -> str:
        return f"{self.precision} explains {two_digit_percent(self.part)}, {two_digit_percent(self.whole)} in all"

    def exceeded(self, logits: Errors | None, gradients: Errors | None, loss: float) -> list[str]:
        """Differences that rounding does not explain, in words; the loss only if it is nothing else."""
        found = []
        for what, errors in (("logits", logits), ("gradients", gradients)):
            if errors and errors.worst_error > self.part:
                found.append(f"{what} by {two_digit_percent(errors.worst_error)} ({errors.worst})")
            elif errors and errors.whole > self.whole:
                found.append(f"{what} by {two_digit_percent(errors.whole)} in all")
        return found or ([f"loss by {two_digit_percent(loss)}"] if loss > self.whole else [])


def tolerance_of(of: CellSpec, base: CellSpec) -> Tolerance:
    """The tolerance of two cells, that of the coarser precision and of the deeper model."""
    precision = max(of.precision, base.precision, key=_ROUNDOFF.__getitem__)
    layers = max(1 if spec.is_alone else spec.num_layers for spec in (of, base))
    unit = _ROUNDOFF[precision] * math.sqrt(layers)
    return Tolerance(precision, _WHOLE * unit, _PART * unit)


def _obstacles(of: AgreementReport, base: AgreementReport) -> Iterator[str]:
    """The reasons why two reports cannot be compared."""
    yield from (f"the starting point's {lost}" for lost in _not_finite(base))
    if of.shape != base.shape:
        yield f"logits of shape {of.shape}, the starting point's of {base.shape}"
    own, others = ({each.name: each for each in report.parameters} for report in (of, base))
    if own.keys() != others.keys():
        found = [f"it has {name}" for name in sorted(own.keys() - others.keys())[:1]]
        found += [f"it has no {name}" for name in sorted(others.keys() - own.keys())[:1]]
        yield f"other parameters than the starting point: {', '.join(found)}"
        return
    for name, parameter in own.items():
        other = others[name]
        if parameter.shape != other.shape:
            yield f"{name} has shape {parameter.shape}, the starting point's {other.shape}"
        elif _apart(parameter.value, other.value) > _SAME_START * other.value.norm:
            yield f"{name} begins with other values than the starting point's"


def _not_finite(report: AgreementReport) -> Iterator[str]:
    """Values that are infinite or no number, in words; logits first."""
    if count := sum(part.sketch.not_finite for part in report.logits):
        yield f"logits are not finite: {count} of {math.prod(report.shape)}"
    if report.loss is None and "loss" in prepared_phases(report.spec.pass_):
        yield "loss is not finite"
    for parameter in report.parameters:
        if parameter.gradient and parameter.gradient.not_finite:
            count = parameter.gradient.not_finite
            yield f"gradient of {parameter.name} is not finite: {count} of {math.prod(parameter.shape)}"


def _logits(of: AgreementReport, base: AgreementReport) -> Iterator[Part]:
    length = base.logits[-1].end
    for own, other in zip(of.logits, base.logits, strict=True):
        first, last = own.first + 1, own.end
        name = f"position {last}" if first == last else f"positions {first} to {last}"
        elements = math.prod(base.shape) * (own.end - own.first) // length
        yield Part(name, _apart(own.sketch, other.sketch), other.sketch.norm, elements)


def _gradients(of: AgreementReport, base: AgreementReport) -> Iterator[Part]:
    """Of each parameter of which either has a gradient; one that is missing is 0."""
    others = {each.name: each for each in base.parameters}
    for own in of.parameters:
        a, b = own.gradient, others[own.name].gradient
        if a or b:
            yield Part(own.name, _apart(a, b), b.norm if b else 0.0, math.prod(own.shape))


def _apart(a: Sketch | None, b: Sketch | None) -> float:
    """The norm of the difference of two tensors, by their sketches."""
    of, others = (struct.unpack(f"<{len(each.buckets) // 4}f", each.buckets) if each else () for each in (a, b))
    apart = math.hypot(*(x - y for x, y in zip_longest(of, others, fillvalue=0.0)))
    return apart if math.isfinite(apart) else math.inf
