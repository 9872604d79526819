"""A step of each pass over a batch, divided into named phases, without timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature, unwrap
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from cs336_tui.config.spec import Pass
from cs336_tui.config.values import ACCUMULATION, phases_of
from cs336_tui.events.events import GRADIENT_SYNC
from cs336_tui.worker.workload.import_problems import ImportProblem, place_of, raise_interrupt, told
from cs336_tui.worker.workload.precision import Context
from cs336_tui.worker.workload.transformer import Batch, Loss


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens: (B, T, V), (B, T) -> ()."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


Hook = Callable[[nn.Module, Optimizer | None], object]


class Shared(NamedTuple):
    """A model as the ranks of a cell run it, by itself where there is one rank. `optimizer` makes AdamW over its
    parameters; `before` and `after` are a user's work before a step and after its backward, None without; `whole` are
    the whole parameters by name, of a container that shards them itself. `unsynced` makes the context in which a
    backward does not communicate; None if it always does, or never. `remarks` are on the cell's numbers."""

    runs: nn.Module
    optimizer: Callable[..., Optimizer] = torch.optim.AdamW
    before: Hook | None = None
    after: Hook | None = None
    whole: Callable[[], Mapping[str, Tensor]] | None = None
    unsynced: Callable[[], AbstractContextManager[object]] | None = None
    remarks: tuple[str, ...] = ()


class Training:
    """The optimizer, its name in words, and the gradient scaler (off unless asked for) of a `train-step`."""

    def __init__(self, optimizer: Optimizer, name: str, device_type: str, *, scale_gradients: bool) -> None:
        self.optimizer, self.name = optimizer, name
        scales = scale_gradients and (device_type != "cuda" or torch.cuda.is_available())  # predicted without a GPU
        self.scaler = torch.amp.GradScaler(device_type, enabled=scales)
        self._taken = _Counter()
        self.asked = 0
        """Optimizer steps that were asked for by `Step`."""
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):  # a user's, which does not call super().__init__()
            optimizer.__setstate__({"defaults": vars(optimizer).get("defaults", {})})
        optimizer.register_step_post_hook(self._taken)

    @property
    def scales_gradients(self) -> bool:
        return bool(self.scaler.is_enabled())

    @property
    def steps_taken(self) -> int:
        """Optimizer steps taken, without those that the gradient scaler skipped because of overflow. Waits for the
        device if the optimizer decides there, as a fused one does."""
        if getattr(self.optimizer, "_step_supports_amp_scaling", False):
            counts = (state["step"] for state in self.optimizer.state.values() if "step" in state)
            return int(next(counts, 0))
        return self._taken.calls


class _Counter:
    """Counts its calls. A separate object, so that the optimizer, which keeps it, keeps nothing else alive."""

    calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


def logits_of(output: object, model: nn.Module | None = None) -> Tensor:
    """The tensor in an output: itself, its `logits` or the first of several. Raises `ImportProblem` without one."""
    found = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    elif found is None and isinstance(output, dict):
        found = output.get("logits")
    if isinstance(found, Tensor):
        return found
    place = place_of(type(_as_written(model)).forward) if model is not None else ""
    raise ImportProblem(f"the model returned {type(output).__name__}, expected a tensor of logits{place}")


def _as_written(model: nn.Module) -> nn.Module:
    """The model that torch.compile wraps; any other model itself."""
    return getattr(model, "_orig_mod", model)


def _targets_hint(forward: Callable[..., object]) -> str:
    """The remedy for a forward that returns the last token's logits only unless it is given targets."""
    takes = next((name for name in ("targets", "labels", "target", "y") if name in signature(forward).parameters), None)
    if takes is None:
        return ""
    return (
        f"; forward takes {takes} and is called without: name a class or factory whose forward(tokens) passes some, "
        f"such as a subclass with: def forward(self, tokens): return super().forward(tokens, {takes}=tokens)"
    )


class Results(NamedTuple):
    """The results of a step; None of what it does not compute or keep."""

    logits: Tensor | None
    loss: Tensor | None


class _Result(NamedTuple):
    """Results of a step of a user's code, to be checked."""

    logits: torch.Size
    is_floating: bool
    loss: Tensor | None


class Step:
    """A step of one pass over one batch: call `prepare`, `run` for each of `phases` in order, then `clear`. Only `run`
    is to be timed. `autocast` makes the context of forward and loss. A user's model or loss is checked against the
    vocabulary size `check_against`. `opening` is called first in each step, and after each micro-batch but the last.
    `shared` is the model as ranks run it. `accumulate` divides the batch of a `train-step` into micro-batches, whose
    losses' mean is that of the step. With `loss_in_model` the model takes the targets, too, and returns the loss."""

    def __init__(
        self,
        pass_: Pass,
        model: nn.Module,
        batch: Batch,
        autocast: Context,
        training: Training | None = None,
        *,
        loss: Loss = cross_entropy,
        check_against: int | None = None,
        opening: Callable[[], object] | None = None,
        shared: Shared | None = None,
        accumulate: int = 1,
        loss_in_model: bool = False,
    ) -> None:
        if (pass_ == "train-step") != (training is not None):
            raise ValueError(f"pass {pass_}: only train-step trains")
        self._shared = shared or Shared(model)
        self.phases = phases_of(pass_, accumulate)
        if "backward" in self.phases and self._shared.after is not None:
            last = self.phases.index("backward") + 1
            self.phases = (*self.phases[:last], GRADIENT_SYNC, *self.phases[last:])
        self.logits_dtype: torch.dtype | None = None  # dtype of the last step's logits, None before the first
        self.failed_in: str | None = None  # The phase that raised, None while none has
        self._pass = pass_
        self._model = model
        parts = zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True) if accumulate > 1 else [batch]
        *self._earlier, self._batch = (Batch(*part) for part in parts)
        self._autocast = autocast
        self.training = training
        self._loss_of = loss
        self._loss_in_model = loss_in_model
        self._logits: Tensor | None = None
        self._loss: Tensor | None = None
        self._check_against = check_against
        self.opening = opening
        self._result: _Result | None = None

    @property
    def results(self) -> Results:
        """Logits and loss of the step that ran last, until it is cleared; of several micro-batches those of the
        last."""
        return Results(self._logits, self._loss)

    @property
    def back_to_back(self) -> bool:
        """True if nothing untimed lies between two steps: a train-step cleans up inside itself."""
        return self.training is not None

    @property
    def prepares(self) -> bool:
        """True if forward and loss precede the timed phases."""
        return self._pass == "backward"

    def prepare(self) -> None:
        """Run what precedes the timed phases: forward and loss, for `backward`."""
        if self.opening is not None:
            self.opening()
        self._call(self._shared.before)
        if self.prepares:
            self.run("forward")
            self.run("loss")

    def run(self, phase: str) -> None:
        try:
            self._RUN[phase](self)
        except Exception as error:
            self.failed_in = phase
            if phase == "loss" and (problem := self._logits_problem()):
                raise ImportProblem(problem) from error
            raise
        except BaseException as error:  # a user's model may not end the program
            self.failed_in = phase
            raise_interrupt(error)
            raise ImportProblem(told(error)) from error

    def check(self) -> None:
        """Raise `ImportProblem` if the first cleared step gave no logits (B, T, V) or no finite loss. Waits for the
        device, except for the reference model: not to be timed."""
        problem = self._logits_problem() or self._loss_problem()
        self._check_against = self._result = None
        if problem:
            raise ImportProblem(problem)

    def clear(self) -> None:
        """Drop outputs, graph and gradients of the step, so that no later step holds them."""
        if self._check_against is not None and self._result is None:
            self._result = self._seen()
        if not self.back_to_back:
            self._logits = self._loss = None
            self._model.zero_grad(set_to_none=True)

    def run_trial(self) -> None:
        """Run what comes before the timed phases, and them, without the optimizer."""
        self.prepare()
        for phase in self.phases:
            if phase != "optimizer":
                self.run(phase)

    def end_trial(self) -> None:
        """Drop outputs, graph and gradients of a step that ran without its optimizer."""
        self.clear()
        if self.back_to_back:
            self.run("zero_grad")

    def _zero_grad(self) -> None:
        assert self.training is not None
        self._logits = self._loss = None
        self.training.optimizer.zero_grad()  # to None; a user's own may take no argument that says so

    def _accumulation(self) -> None:
        """Run all micro-batches but the last, without communication where the wrapper can do without."""
        last, alone = self._batch, self._shared.unsynced
        with alone() if alone else nullcontext():
            for batch in self._earlier:
                self._batch = batch
                self._forward()
                self._compute_loss()
                self._backward()
                self._logits = self._loss = None
                if alone is None:
                    self._call(self._shared.after)
                    self._call(self._shared.before)
                if self.opening is not None:
                    self.opening()
        self._batch = last

    def _forward(self) -> None:
        with torch.inference_mode(self._pass == "inference"), self._autocast():
            if self._loss_in_model:
                self._loss = self._model(*self._batch)
                if not isinstance(self._loss, Tensor):
                    place = place_of(type(_as_written(self._model)).forward)
                    raise ImportProblem(f"the model returned {type(self._loss).__name__}, expected its loss{place}")
                self.logits_dtype = self._loss.dtype
                return
            output = self._model(self._batch.inputs)
            self._logits = output if isinstance(output, Tensor) else logits_of(output, self._model)
        self.logits_dtype = self._logits.dtype

    def _compute_loss(self) -> None:
        if self._loss_in_model:
            return
        assert self._logits is not None
        with self._autocast():
            self._loss = self._loss_of(self._logits, self._batch.targets)

    def _backward(self) -> None:
        assert self._loss is not None
        loss = self._loss / (len(self._earlier) + 1) if self._earlier else self._loss
        (self.training.scaler.scale(loss) if self.training else loss).backward()

    def _call(self, hook: Hook | None) -> None:
        if hook is not None:
            hook(self._shared.runs, self.training.optimizer if self.training else None)

    def _optimizer(self) -> None:
        # The gradient scaler waits for the device here, to decide about skipping the step.
        assert self.training is not None
        self.training.asked += 1
        self.training.scaler.step(self.training.optimizer)
        self.training.scaler.update()

    def _seen(self) -> _Result | None:
        if self._loss_in_model and self._loss is not None:
            expected = torch.Size((*self._batch.inputs.shape, self._check_against or 0))
            return _Result(expected, self._loss.is_floating_point(), self._loss.detach())
        if self._logits is None:
            return None
        loss = None if self._loss is None else self._loss.detach()
        return _Result(self._logits.shape, self._logits.is_floating_point(), loss)

    def _logits_problem(self) -> str | None:
        """The fault of the logits, in one line."""
        found = self._result or self._seen()
        if self._check_against is None or found is None:
            return None
        shape, expected = tuple(found.logits), (*self._batch.inputs.shape, self._check_against)
        kind = type(_as_written(self._model))
        name, place = kind.__name__, place_of(kind.forward)
        if shape != expected:
            hint = _targets_hint(kind.forward) if shape == (expected[0], 1, expected[2]) else ""
            return (
                f"model {name} returned logits of shape {shape}, expected {expected}: batch, context length, "
                f"vocabulary{place}{hint}"
            )
        return None if found.is_floating else f"model {name} returned logits that are not floating-point numbers{place}"

    def _loss_problem(self) -> str | None:
        """The fault of the loss, in one line."""
        loss = self._result.loss if self._result else None
        if loss is None:
            return None
        place = place_of(self._loss_of)
        if loss.numel() != 1:
            return f"the loss has shape {tuple(loss.shape)}, expected one number{place}"
        if not torch.isfinite(loss).all():
            function = unwrap(self._loss_of)
            name = getattr(function, "__name__", type(function).__name__)
            who = f"model {type(_as_written(self._model)).__name__}, loss {name}"
            return f"{who}: loss is {loss.item()} after the first step, expected a finite number{place}"
        return None

    _RUN: ClassVar[dict[str, Callable[[Step], None]]] = {
        "zero_grad": _zero_grad,
        ACCUMULATION: _accumulation,
        "forward": _forward,
        "loss": _compute_loss,
        "backward": _backward,
        GRADIENT_SYNC: lambda step: step._call(step._shared.after),
        "optimizer": _optimizer,
    }
