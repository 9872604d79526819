"""Checks a cell after its measured steps, outside of every figure: its accounts, its work, its results."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.config.variants import IN_MODEL, is_imported
from cs336_tui.events.audit import SLOWER, Audit, Books, Difference, Inputs, Results, Speed, Work
from cs336_tui.worker.measure.failures import in_one_line, is_out_of_memory
from cs336_tui.worker.measure.referee.reference import Reference, Referred, Unchecked, reference_of
from cs336_tui.worker.measure.referee.results import (
    Moves,
    Part,
    difference,
    gradient_parts,
    logits_parts,
    ratio,
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
_DRAWS = "its step draws random numbers"
T = TypeVar("T")


def audited(
    spec: CellSpec,
    workload: Workload,
    step: ReadyStep,
    timer: StepTimer,
    place: Place,
    times_s: list[float],
    books: Books | None,
    inputs: Inputs,
) -> Audit:
    """All that can be found out about a cell whose steps are measured. Whatever fails is left out with its reason: it
    never costs the cell its result."""
    began = perf_counter()
    check = _Check(spec, workload, step, timer, place, median(times_s), fresh=inputs.fresh)
    results = check.results()
    speed = check.guarded(check.speed)
    work = None if spec.workload == "norm" else check.guarded(check.work)
    return Audit(books=books, work=work, results=results, speed=speed, inputs=inputs, took_s=perf_counter() - began)


class _Check:
    def __init__(
        self,
        spec: CellSpec,
        workload: Workload,
        step: ReadyStep,
        timer: StepTimer,
        place: Place,
        step_s: float,
        *,
        fresh: bool,
    ) -> None:
        self._place, self._fresh = place, fresh
        self._spec, self._workload, self._step, self._timer = spec, workload, step, timer
        self._step_s, self._within_s = step_s, max(_STEPS * step_s, _LEAST_S)
        self._device = workload.batch.targets.device
        self._synchronize = clock_for(self._device).synchronize
        self._reference_s: float | None = None
        self._batch_flops: tuple[int, int] | None = None
        self._some: Tensor | None = None

    def guarded(self, make: Callable[[], T]) -> T | None:
        """The result of `make`; None if it fails."""
        try:
            return make()
        except BaseException as error:
            raise_interrupt(error)
            return None

    def speed(self) -> Speed | None:
        return device_speed(self._spec, self._device, self._step_s, self._reference_s, self._synchronize)

    def work(self) -> Work | None:
        return count_work(self._spec, self._workload, self._batch_flops)

    def results(self) -> Results:
        """The comparison with the reference, or why there is none."""
        words = ""
        try:
            self._refuse()
            reference = self._agreed(lambda: reference_of(self._spec, self._workload, self._device))
            words = reference.words
            return self._compared(reference)
        except Unchecked as error:
            return Results(reference=words, unchecked=str(error))
        except BaseException as error:
            raise_interrupt(error)
            why = "no room for the reference" if is_out_of_memory(error) else f"the check failed: {in_one_line(error)}"
            return Results(reference=words, unchecked=why)

    def _refuse(self) -> None:
        if isinstance(self._step, CapturedStep) and not self._step.training:
            raise Unchecked("a CUDA graph keeps no logits")
        if self._workload.shared.whole is not None:
            raise Unchecked("the wrapper shards the parameters itself")
        training = self._workload.training
        if training and training.scales_gradients and getattr(training.optimizer, "_step_supports_amp_scaling", False):
            raise Unchecked("a fused optimizer leaves scaled gradients")

    def _compared(self, reference: Reference) -> Results:
        differences: list[Difference | None] = []
        backward = self._spec.pass_ not in WITHOUT_BACKWARD
        with _Still(self._workload, self._spec) as still:
            if isinstance(self._step, Step) and not self._fresh:  # which may remember them
                referred = self._referred(reference, backward=False)
                self._forward(self._step)
                differences.append(difference("logits", "timed", logits_parts(self._logits(), referred)))
                self._step.end_trial()
            seed, seen, again = self._spec.seed + _SEED + self._place.rank, 0, None
            if isinstance(self._workload.model, OperationAlone):
                self._workload.model.initialise(seed)
            else:
                # Where tokens change, half of the sequences are those of the last measured step.
                seen = len(self._workload.batch.inputs) // 2 if self._fresh else 0
                again = FreshTokens(self._workload.batch, self._spec.vocab_size, seed)
                again.put(seen)
            found, draws, step_s = self._of_unseen(reference, backward=backward)
            if again and seen and self._spec.accumulate == 1 and not (draws or still.words):
                differences.append(self._from_last(lambda: again.put(seen)))
            again_s = self._shortest(step_s)
            if draws and still.is_training:  # as dropout of a user's own does
                still.evaluate()
                found, draws, _ = self._of_unseen(reference, backward=backward)
                found = msgspec.structs.replace(found, unchecked="" if draws else _DRAWS)
        return msgspec.structs.replace(
            found,
            differences=(*(each for each in differences if each), *found.differences),
            partly=", ".join(filter(None, (still.words, found.partly))),
            again_s=again_s,
        )

    def _of_unseen(self, reference: Reference, *, backward: bool) -> tuple[Results, bool, float]:
        """The results of a step, whether it drew random numbers, and the time of such a step."""
        referred = self._referred(reference, backward=backward)
        self._reference_s, self._batch_flops = referred.took_s if backward else None, referred.flops
        ranks = self._place.ranks if self._shares else 1
        gradients = partial(gradient_parts, self._workload, referred, ranks)
        own = is_imported(self._spec.optimizer)
        moves = Moves(self._workload, gradients if own else None) if self._workload.training else None
        before = _generators(self._device)
        step_s = self._again()  # as it was measured
        draws = _drew(before, self._device)
        is_skipped = moves is not None and moves.is_skipped
        keeps = self._timer.last is not None and not is_skipped
        self._some = some_logits(self._step.results.logits) if keeps else None
        found, partly = self._of_step(referred), ""
        if backward and not is_skipped:  # else they overflowed
            found.append(difference("gradients", "unseen", moves.given if moves and moves.given else gradients()))
        unmoved, unequal = tuple[str, ...](), tuple[str, ...]()
        if moves is not None:
            moved = moves.compared()
            unmoved, partly = moved.unmoved, moved.left_out
            found += [difference("moves", "unseen", moved.moves), difference("moments", "unseen", moved.moments)]
            unequal = unequal_parameters(self._workload) if self._shares else ()
        self._step.clear()
        differences = tuple(each for each in found if each)
        words = reference.words
        results = Results(reference=words, differences=differences, unmoved=unmoved, unequal=unequal, partly=partly)
        return results, draws, step_s

    def _again(self) -> float:
        """Run a step as the measured ones, on the same tokens; seconds, on a CPU without those in which it waited for
        a core."""
        began = process_time()
        step_s = self._timer.time(keep=True).total_s
        return min(step_s, process_time() - began) if self._device.type == "cpu" else step_s

    def _shortest(self, step_s: float) -> float | None:
        """The shortest time of steps like the one that was compared: one, or if it took clearly longer than the
        measured ones, some. None where steps are not timed as these."""
        if self._place.ranks > 1 or self._spec.sync != "each-step" or self._spec.timer != "step":
            return None
        until = perf_counter() + _AGAIN_S
        for number in itertools.count():
            if step_s < SLOWER * self._step_s or (number >= _AGAIN and perf_counter() > until):
                break
            step_s = min(step_s, self._again())
            self._step.clear()
        return step_s

    def _referred(self, reference: Reference, *, backward: bool) -> Referred:
        return self._agreed(lambda: reference.run(self._workload.batch, backward=backward, within_s=self._within_s))

    def _agreed(self, make: Callable[[], T]) -> T:
        """The result of `make`. Of several ranks, whose steps wait for one another, all have it, or none goes on."""
        if self._place.ranks == 1:
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
        return self._place.ranks > 1 and self._spec.parallel != "none"

    def _of_step(self, referred: Referred) -> list[Difference | None]:
        found = [difference("logits", "unseen", logits_parts(self._logits(), referred))]
        loss = self._step.results.loss
        whole = self._spec.accumulate == 1 and not self._spec.is_alone  # whose loss is a sum that may be next to 0
        if loss is not None and referred.loss is not None and whole:
            apart, norm = float((loss.detach().float() - referred.loss).abs()), float(referred.loss.abs())
            found.append(difference("loss", "unseen", [Part("loss", apart, norm, 1)]))
        return found

    def _forward(self, step: Step) -> None:
        """Run a forward as the cell does."""
        step.prepare()
        if not step.prepares:
            if "zero_grad" in step.phases:
                step.run("zero_grad")
            step.run("forward")

    def _from_last(self, change: Callable[[], object]) -> Difference | None:
        """The difference of the last measured step's logits from those of the compared one, of a sequence that both
        had, if it is more than an optimizer step may make, a forward of a model that changes itself, or a `change` of
        the other sequences."""
        last, now = self._timer.last, self._some
        if last is None or now is None or not isinstance(self._step, Step):
            return None
        apart = _apart(last, now)
        if apart < (_MOVED if self._step.training else _SMALL):
            return None
        change()
        self._forward(self._step)
        later = some_logits(self._step.results.logits)
        self._step.end_trial()
        if later is None or apart < _APART * _apart(now, later):
            return None
        return Difference(of="logits", batch="timed", whole=0.0, worst=_LAST, worst_error=apart)

    def _logits(self) -> Tensor:
        logits = self._step.results.logits
        if logits is None and self._spec.loss == IN_MODEL:
            return torch.empty(0)  # of no sequence: loss and gradients are compared
        if logits is None:
            raise Unchecked("the step keeps no logits")
        return logits.detach()


def _apart(one: Tensor, other: Tensor) -> float:
    return ratio(float((one - other).norm()), float(other.norm()))


def _generators(device: torch.device) -> list[object]:
    """The states of the generators that a model may draw from: torch's, Python's and NumPy's."""
    numpy = sys.modules.get("numpy")
    return [generator_state(device).tolist(), random.getstate(), numpy and str(numpy.random.get_state())]


def _drew(before: list[object], device: torch.device) -> bool:
    """True if a generator is in another state than before, if it was there."""
    return any(each not in (None, now) for each, now in zip(before, _generators(device), strict=True))


class _Still:
    """Dropout off meanwhile. A compiled step is left as it is: another mode would compile it anew."""

    def __init__(self, workload: Workload, spec: CellSpec) -> None:
        self._model = workload.runs
        self._off = bool(spec.dropout or spec.attention_dropout) and workload.model.training
        self._compiled = spec.compile != "off" or spec.cuda_graph != "off"
        self.words = ""
        if self._off and self._compiled:
            raise Unchecked(_DRAWS)
        if self._off:
            self.words = "dropout"

    def __enter__(self) -> _Still:
        if self._off:
            self._model.eval()
        return self

    @property
    def is_training(self) -> bool:
        return self._model.training

    def evaluate(self) -> None:
        """Turn dropout of a user's own off, too. Raises `Unchecked` where the mode cannot be changed."""
        if self._compiled:
            raise Unchecked(_DRAWS)
        self._off = True
        self._model.eval()

    def __exit__(self, *_: object) -> None:
        if self._off:
            self._model.train()


def why_fixed(spec: CellSpec, workload: Workload) -> str:
    """The reason for which tokens stay the same between measured steps; empty if they change."""
    if spec.inputs == "fixed":
        return "--inputs fixed"
    if spec.is_alone or spec.is_collective:
        return "an operation alone has no tokens"
    if spec.sync != "each-step" or spec.timer != "step":
        return "steps are enqueued back to back"
    if is_imported(spec.model) and workload.brings_batch:
        return "the model makes its own batch"
    return ""
