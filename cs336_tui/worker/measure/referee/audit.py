"""Checks a cell after its measured steps, outside of every figure: its accounts, its work, its results."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, process_time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn

from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.config.variants import IN_MODEL, is_imported
from cs336_tui.events.audit import SLOWER, Audit, Books, Difference, Inputs, Results
from cs336_tui.stats.differences import relative_error
from cs336_tui.worker.measure.failures import in_one_line, is_out_of_memory
from cs336_tui.worker.measure.referee.kernels import attention_checks
from cs336_tui.worker.measure.referee.reference import Reference, Referred, Unchecked, reference_of
from cs336_tui.worker.measure.referee.results import (
    Moves,
    differences,
    finite,
    gradient_parts,
    logits_parts,
    part_of,
    unequal_parameters,
)
from cs336_tui.worker.measure.referee.work import count_work, device_speed
from cs336_tui.worker.measure.settings import generator_state
from cs336_tui.worker.measure.timing import StepTimer, clock_for, some_logits
from cs336_tui.worker.ranks import Place
from cs336_tui.worker.workload.building import Workload
from cs336_tui.worker.workload.compile_and_capture import CapturedStep, ReadyStep
from cs336_tui.worker.workload.import_problems import raise_interrupt
from cs336_tui.worker.workload.norms import OperationAlone
from cs336_tui.worker.workload.passes import Step
from cs336_tui.worker.workload.transformer import FreshTokens

if TYPE_CHECKING:
    from cs336_tui.config.spec import CellSpec

_STEPS, _LEAST_S = 3, 1.0
"""A check takes at most the time of so many steps, or so many seconds of steps that are shorter."""
_SEED = 0x5EED
_AGAIN, _AGAIN_S = 4, 1.0
"""A step that was slower than the measured ones is repeated so often, and for so long, at least."""
_APART, _MOVED, _SMALL, _LAST = 5, 0.05, 1e-4, "the last measured step"
"""From so many times the difference between two later forwards on, and of a training step from the second difference
on, of others from the third, the last measured step was another one."""
_ABOUT = 0.1
"""The share of the reference's loss by which a sum may differ from it, over the number of targets."""
_DRAWS = "its step draws random numbers"
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class CellCheck:
    """The check of a cell whose steps are measured."""

    spec: CellSpec
    workload: Workload
    step: ReadyStep
    timer: StepTimer
    place: Place
    step_s: float
    books: Books | None
    inputs: Inputs
    _reference_s: float | None = field(init=False, default=None)
    _batch_flops: tuple[int, int] | None = field(init=False, default=None)
    _some: Tensor | None = field(init=False, default=None)

    def audit(self) -> Audit:
        """All that can be found out about the cell. Whatever fails is left out with its reason: it never costs the cell
        its result."""
        began, spec = perf_counter(), self.spec
        results = self.results()
        synchronize = clock_for(self._device).synchronize
        speed = _unless_it_fails(device_speed, spec, self._device, self.step_s, self._reference_s, synchronize)
        counted = spec.workload != "norm"
        work = _unless_it_fails(count_work, spec, self.workload, self._batch_flops) if counted else None
        checks = attention_checks(spec, self._device, self.workload.autocast) if is_imported(spec.attention) else ()
        found = Audit(books=self.books, work=work, results=results, speed=speed, inputs=self.inputs)
        # Last, as a kernel that reads beyond its inputs may end CUDA.
        return msgspec.structs.replace(found, attention=tuple(checks), took_s=perf_counter() - began)

    @property
    def _device(self) -> torch.device:
        return self.workload.batch.targets.device

    def results(self) -> Results:
        """The comparison with the reference, or why there is none."""
        words = ""
        try:
            self._refuse()
            reference = self._agreed(lambda: reference_of(self.spec, self.workload, self._device))
            words = reference.words
            return self._compared(reference)
        except Unchecked as error:
            return Results(reference=words, unchecked=str(error))
        except BaseException as error:
            raise_interrupt(error)
            why = "no room for the reference" if is_out_of_memory(error) else f"the check failed: {in_one_line(error)}"
            return Results(reference=words, unchecked=why)

    def _refuse(self) -> None:
        if isinstance(self.step, CapturedStep) and not self.step.training:
            raise Unchecked("a CUDA graph keeps no logits")
        if self.workload.shared.whole is not None:
            raise Unchecked("the wrapper shards the parameters itself")
        training = self.workload.training
        if training and training.scales_gradients and getattr(training.optimizer, "_step_supports_amp_scaling", False):
            raise Unchecked("a fused optimizer leaves scaled gradients")

    def _compared(self, reference: Reference) -> Results:
        others = list[Difference]()
        backward = self.spec.pass_ not in WITHOUT_BACKWARD
        with _without_dropout(self.workload, self.spec) as dropout:
            if isinstance(self.step, Step) and not self.inputs.fresh:  # which may remember them
                referred = self._referred(reference, backward=False)
                self._forward(self.step)
                others += differences("logits", logits_parts(self._logits(), referred))
                self.step.end_trial()
            seed, seen, again = self.spec.seed + _SEED + self.place.rank, 0, None
            if isinstance(self.workload.model, OperationAlone):
                self.workload.model.initialise(seed)
            else:
                # Where tokens change, half of the sequences are those of the last measured step.
                seen = len(self.workload.batch.inputs) // 2 if self.inputs.fresh else 0
                again = FreshTokens(self.workload.batch, self.spec.vocab_size, seed)
                again.put(seen)
            found, draws, step_s = self._of_unseen(reference, backward=backward)
            if again and seen and self.spec.accumulate == 1 and not (draws or dropout):
                others += self._from_last(lambda: again.put(seen))
            again_s = self._shortest(step_s)
            if draws and self.workload.runs.training:  # as dropout of a user's own does
                _evaluate(self.workload.runs, self.spec)
                found, draws, _ = self._of_unseen(reference, backward=backward)
                found = msgspec.structs.replace(found, unchecked="" if draws else _DRAWS)
        return msgspec.structs.replace(
            found,
            differences=(*others, *found.differences),
            left_out=", ".join(filter(None, (dropout, found.left_out))),
            again_s=again_s,
        )

    def _of_unseen(self, reference: Reference, *, backward: bool) -> tuple[Results, bool, float]:
        """The results of a step, whether it drew random numbers, and the time of such a step."""
        referred = self._referred(reference, backward=backward)
        self._reference_s, self._batch_flops = referred.took_s if backward else None, referred.flops
        ranks = self.place.ranks if self._shares else 1
        summed = partial(self._summed, referred)
        gradients = partial(gradient_parts, self.workload, referred, ranks, summed)
        own = is_imported(self.spec.optimizer)
        moves = Moves(self.workload, gradients if own else None) if self.workload.training else None
        before = _generators(self._device)
        step_s = self._again()  # as it was measured
        states = zip(before, _generators(self._device), strict=True)
        draws = any(state not in (None, later) for state, later in states)  # none of NumPy's, if the step imports it
        is_skipped = moves is not None and moves.is_skipped
        self._some = None if is_skipped else some_logits(self.step.results.logits)
        found, left_out = self._of_step(referred), referred.left_out
        if backward and not is_skipped:  # else they overflowed
            found += differences("gradients", moves.given if moves and moves.given else gradients())
        unmoved, unequal = tuple[str, ...](), tuple[str, ...]()
        if moves is not None:
            moved = moves.compared()
            unmoved, left_out = moved.unmoved, ", ".join(filter(None, (left_out, moved.left_out)))
            found += [*differences("moves", moved.moves), *differences("moments", moved.moments)]
            unequal = unequal_parameters(self.workload) if self._shares else ()
        words = f"{reference.words}, its loss summed" if summed() > 1 else reference.words
        self.step.clear()
        results = Results(
            reference=words, differences=tuple(found), unmoved=unmoved, unequal=unequal, left_out=left_out
        )
        return results, draws, step_s

    def _again(self) -> float:
        """Run a step as the measured ones, on the same tokens; seconds, on a CPU without those in which it waited for
        a core."""
        began = process_time()
        step_s = self.timer.time(keep=True).total_s
        return min(step_s, process_time() - began) if self._device.type == "cpu" else step_s

    def _shortest(self, step_s: float) -> float | None:
        """The shortest time of steps like the one that was compared: one, or if it took clearly longer than the
        measured ones, some. None where steps are not timed as these."""
        if self.place.ranks > 1 or self.spec.sync != "each-step" or self.spec.timer != "step":
            return None
        until = perf_counter() + _AGAIN_S
        for number in itertools.count():
            if step_s < SLOWER * self.step_s or (number >= _AGAIN and perf_counter() > until):
                break
            step_s = min(step_s, self._again())
            self.step.clear()
        return step_s

    def _referred(self, reference: Reference, *, backward: bool) -> Referred:
        within_s = max(_STEPS * self.step_s, _LEAST_S)
        return self._agreed(lambda: reference.run(self.workload.batch, backward=backward, within_s=within_s))

    def _agreed(self, make: Callable[[], T]) -> T:
        """The result of `make`. Of several ranks, whose steps wait for one another, all have it, or none goes on."""
        if self.place.ranks == 1:
            return make()
        why, made = "", None
        try:
            made = make()
        except Exception as error:
            why = str(error) or type(error).__name__
        lost = torch.tensor(int(made is None), device=self._device)
        dist.all_reduce(lost)
        if made is None or int(lost):
            raise Unchecked(why or "another rank has no reference")
        return made

    @property
    def _shares(self) -> bool:
        """True if ranks share the step."""
        return self.place.ranks > 1 and self.spec.parallel != "none"

    def _of_step(self, referred: Referred) -> list[Difference]:
        found = differences("logits", logits_parts(self._logits(), referred))
        loss = self.step.results.loss
        whole = self.spec.accumulate == 1 and not self.spec.is_alone  # whose loss is a sum that may be next to 0
        if loss is not None and referred.loss is not None and whole:
            found += differences("loss", [part_of("loss", loss.detach(), referred.loss * self._summed(referred))])
        return found

    def _summed(self, referred: Referred) -> int:
        """The number of targets of a step whose loss is about their sum; 1 of a mean."""
        loss, count = self.step.results.loss, self.workload.batch.targets.numel()
        if loss is None or referred.loss is None or self.spec.accumulate > 1 or self.spec.is_alone:
            return 1
        return count if abs(float(loss.detach()) / count - float(referred.loss)) < _ABOUT * float(referred.loss) else 1

    def _forward(self, step: Step) -> None:
        """Run a forward as the cell does."""
        step.prepare()
        if not step.prepares:
            if "zero_grad" in step.phases:
                step.run("zero_grad")
            step.run("forward")

    def _from_last(self, change: Callable[[], object]) -> list[Difference]:
        """The difference of the last measured step's logits from those of the compared one, of a sequence that both
        had, if it is more than an optimizer step may make, a forward of a model that changes itself, or a `change` of
        the other sequences."""
        last, now = self.timer.last, self._some
        if last is None or now is None or not isinstance(self.step, Step):
            return []
        apart = _apart(last, now)
        if apart < (_MOVED if self.step.training else _SMALL):
            return []
        change()
        self._forward(self.step)
        later = some_logits(self.step.results.logits)
        self.step.end_trial()
        if later is None or apart < _APART * _apart(now, later):
            return []
        return [Difference(quantity="logits", whole=0.0, worst=_LAST, worst_error=apart)]

    def _logits(self) -> Tensor:
        logits = self.step.results.logits
        if logits is None and self.spec.loss == IN_MODEL:
            return torch.empty(0)  # of no sequence: loss and gradients are compared
        if logits is None:
            raise Unchecked("the step keeps no logits")
        return logits.detach()


def _apart(one: Tensor, other: Tensor) -> float:
    return finite(relative_error(float((one - other).norm()), float(other.norm())))


def _unless_it_fails(make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    try:
        return make(*args, **kwargs)
    except BaseException as error:
        raise_interrupt(error)
        return None


def _generators(device: torch.device) -> list[object]:
    """The states of the generators that a model may draw from: torch's, Python's and NumPy's."""
    numpy = sys.modules.get("numpy")
    return [generator_state(device).tolist(), random.getstate(), numpy and str(numpy.random.get_state())]


@contextmanager
def _without_dropout(workload: Workload, spec: CellSpec) -> Iterator[str]:
    """Dropout off meanwhile, and the model's mode as before at the end; yields what is off, in a word."""
    model, off = workload.runs, bool(spec.dropout or spec.attention_dropout) and workload.model.training
    before = model.training
    try:
        if off:
            _evaluate(model, spec)
        yield "dropout" if off else ""
    finally:
        if model.training != before:
            model.train(before)


def _evaluate(model: nn.Module, spec: CellSpec) -> None:
    """Turn dropout off. Raises `Unchecked` of a compiled step: another mode would compile it anew."""
    if spec.compile != "off" or spec.cuda_graph != "off":
        raise Unchecked(_DRAWS)
    model.eval()


def why_fixed(spec: CellSpec, workload: Workload) -> str:
    """The reason for which tokens stay the same between measured steps; empty if they change."""
    if spec.inputs == "fixed":
        return "--inputs fixed"
    if spec.is_alone:
        return "an operation alone has no tokens"
    if spec.sync != "each-step" or spec.timer != "step":
        return "steps are enqueued back to back"
    if is_imported(spec.model) and workload.brings_batch:
        return "the model makes its own batch"
    return ""
