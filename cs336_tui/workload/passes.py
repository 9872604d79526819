"""One step of each pass, cut into its named phases. Nothing here looks at a clock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cs336_tui.spec import Pass
from cs336_tui.workload.batch import Batch
from cs336_tui.workload.transformer import Transformer

PHASES: dict[Pass, tuple[str, ...]] = {
    "inference": ("forward",),
    "forward": ("forward",),
    "backward": ("backward",),
    "forward+backward": ("forward", "loss", "backward"),
    "train-step": ("zero_grad", "forward", "loss", "backward", "optimizer"),
}
"""The timed phases of each pass, in the order they run."""


class Training:
    """The optimizer and the gradient scaler (disabled unless asked for) of the `train-step` pass."""

    def __init__(self, model: Transformer, *, scale_gradients: bool, foreach: bool | None = None) -> None:
        device_type = model.head.weight.device.type
        # foreach is torch's own choice here; said aloud so that it can be reported.
        self.foreach = device_type == "cuda" if foreach is None else foreach
        self.optimizer = torch.optim.AdamW(model.parameters(), foreach=self.foreach)
        self.scaler = torch.amp.GradScaler(device_type, enabled=scale_gradients)

    @property
    def name(self) -> str:
        return f"AdamW ({'foreach' if self.foreach else 'for-loop'})"

    @property
    def scales_gradients(self) -> bool:
        return bool(self.scaler.is_enabled())

    @property
    def steps_taken(self) -> int:
        """Optimizer steps really taken: the scaler skips one whose gradients overflowed. Waits for the device."""
        counts = (state["step"] for state in self.optimizer.state.values() if "step" in state)
        return int(next(counts, 0))


class Step:
    """A step of one pass over one batch: call `prepare`, `run` for each of `phases` in order, then `clear`.

    Only `run` is to be timed. `autocast` gives the context that forward and loss (never backward) run in.
    """

    def __init__(
        self,
        pass_: Pass,
        model: Transformer,
        batch: Batch,
        autocast: Callable[[], AbstractContextManager[object]],
        training: Training | None = None,
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
            self._logits = self._model(self._batch.inputs)
        self.logits_dtype = self._logits.dtype

    def _compute_loss(self) -> None:
        assert self._logits is not None
        with self._autocast():
            self._loss = F.cross_entropy(self._logits.flatten(0, 1), self._batch.targets.flatten())

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
