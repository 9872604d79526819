"""One step of each pass, cut into its named phases. Nothing here looks at a clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from cs336_tui.spec import Pass
from cs336_tui.workload.batch import Batch

PHASES: dict[Pass, tuple[str, ...]] = {
    "inference": ("forward",),
    "forward": ("forward",),
    "backward": ("backward",),
    "forward+backward": ("forward", "loss", "backward"),
    "train-step": ("zero_grad", "forward", "loss", "backward", "optimizer"),
}
"""The timed phases of each pass, in the order they run."""


Loss = Callable[[Tensor, Tensor], Tensor]
"""Output and targets to a number."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens: (B, T, V), (B, T) -> ()."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Training:
    """The optimizer and the gradient scaler (disabled unless asked for) of the `train-step` pass.

    `name` says in words what the optimizer is.
    """

    def __init__(self, optimizer: Optimizer, name: str, device_type: str, *, scale_gradients: bool) -> None:
        self.optimizer, self.name = optimizer, name
        self.scaler = torch.amp.GradScaler(device_type, enabled=scale_gradients)
        self._taken = _Counter()
        optimizer.register_step_post_hook(self._taken)

    @property
    def scales_gradients(self) -> bool:
        return bool(self.scaler.is_enabled())

    @property
    def steps_taken(self) -> int:
        """Optimizer steps really taken: a gradient scaler skips one whose gradients overflowed."""
        return self._taken.calls


class _Counter:
    """Counts its calls. An object of its own, so that the optimizer, which keeps it, does not keep what counts."""

    calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1


def logits_of(output: object) -> Tensor:
    """The logits of what a model returned: a tensor, something that has them as `logits`, or the first of several.

    Raises TypeError for anything else.
    """
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if isinstance(found, Tensor):
        return found
    raise TypeError(f"the model returned {type(output).__name__}, expected a tensor of logits")


class Step:
    """A step of one pass over one batch: call `prepare`, `run` for each of `phases` in order, then `clear`.

    Only `run` is to be timed. `autocast` gives the context that forward and loss (never backward) run in.
    """

    def __init__(
        self,
        pass_: Pass,
        model: nn.Module,
        batch: Batch,
        autocast: Callable[[], AbstractContextManager[object]],
        training: Training | None = None,
        *,
        loss: Loss = cross_entropy,
    ) -> None:
        if (pass_ == "train-step") != (training is not None):
            raise ValueError(f"pass {pass_}: training belongs to train-step, and only to it")
        self.phases = PHASES[pass_]
        self.logits_dtype: torch.dtype | None = None
        """dtype of the last step's logits, None before the first."""
        self.failed_in: str | None = None
        """The phase that raised, None while none has."""
        self._pass = pass_
        self._model = model
        self._batch = batch
        self._autocast = autocast
        self._training = training
        self._loss_of = loss
        self._logits: Tensor | None = None
        self._loss: Tensor | None = None

    @property
    def training(self) -> Training | None:
        return self._training

    @property
    def back_to_back(self) -> bool:
        """Whether nothing untimed lies between two steps: a train-step cleans up inside itself, as a training loop."""
        return self._training is not None

    def prepare(self) -> None:
        """What must have run before the timed phases: forward and loss, for `backward`."""
        if self._pass == "backward":
            self.run("forward")
            self.run("loss")

    def run(self, phase: str) -> None:
        try:
            self._RUN[phase](self)
        except BaseException:
            self.failed_in = phase
            raise

    def clear(self) -> None:
        """Drop what the step left (outputs, graph, gradients), so that no later step holds it in memory."""
        if not self.back_to_back:
            self._drop_outputs()
            self._model.zero_grad(set_to_none=True)

    def _zero_grad(self) -> None:
        assert self._training is not None
        self._drop_outputs()
        self._training.optimizer.zero_grad(set_to_none=True)

    def _forward(self) -> None:
        with torch.inference_mode(self._pass == "inference"), self._autocast():
            output = self._model(self._batch.inputs)
            self._logits = output if isinstance(output, Tensor) else logits_of(output)
        self.logits_dtype = self._logits.dtype

    def _compute_loss(self) -> None:
        assert self._logits is not None
        with self._autocast():
            self._loss = self._loss_of(self._logits, self._batch.targets)

    def _backward(self) -> None:
        assert self._loss is not None
        loss = self._training.scaler.scale(self._loss) if self._training else self._loss
        loss.backward()

    def _optimizer(self) -> None:
        # With gradient scaling on, the scaler itself waits for the device here: it must know whether to skip the step.
        assert self._training is not None
        self._training.scaler.step(self._training.optimizer)
        self._training.scaler.update()

    def _drop_outputs(self) -> None:
        self._logits = self._loss = None

    _RUN: ClassVar[dict[str, Callable[[Step], None]]] = {
        "zero_grad": _zero_grad,
        "forward": _forward,
        "loss": _compute_loss,
        "backward": _backward,
        "optimizer": _optimizer,
    }
