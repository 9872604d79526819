"""Predictions of cells, made up but plausible, for tests of their views."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cs336_tui.config.order import relative_work
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import WITHOUT_BACKWARD
from cs336_tui.events.prediction import MemoryBlock, Prediction, Site
from cs336_tui.runner.predictor import PredictionError

MIB = 2**20
_PARAMETERS = 500 * MIB
"""Bytes of parameters in every made prediction; gradients have as many, the optimizer's state twice as many."""
PER_TOKEN = MIB
"""Bytes of activations for each token of the batch."""


def made_prediction(spec: CellSpec, **changes: Any) -> Prediction:
    """A prediction whose FLOPs are proportional to `order.relative_work` and whose activations to its tokens."""
    has_backward = spec.pass_ not in WITHOUT_BACKWARD
    trains = spec.pass_ == "train-step"
    activations = spec.tokens_per_step * PER_TOKEN
    forward = round(2 * relative_work(spec) / (3 if has_backward else 1))
    phases = {"forward": forward, "loss": 0, "backward": 2 * forward}
    timed = {"inference": ("forward",), "forward": ("forward",), "backward": ("backward",)}
    at_peak = {
        "parameters": _PARAMETERS,
        "gradients": _PARAMETERS * has_backward,
        "optimizer_state": 2 * _PARAMETERS * trains,
        "activations": activations,
        "temporary": 10 * MIB,
        "buffers": MIB,
    }
    at_end = at_peak | {"gradients": 0, "temporary": 0}
    parameter = MemoryBlock(30 * MIB, "parameters", Site("aten::empty"), (10_000, 768), "float32")
    site = Site("aten::bmm", "transformer.py:124 score", "attention scores", "forward")
    scores = MemoryBlock(3 * MIB, "activations", site, (4, 12, 128, 128), "float32")
    phase = "backward" if has_backward else "forward"
    size = {"num_params": 128_634_624, "num_params_without_head": 120_954_624}
    work = {"flops": {name: phases[name] for name in timed.get(spec.pass_, tuple(phases))}}
    work |= {"flops_by_range": {"feed-forward": (forward, 2 * forward if has_backward else 0)}}
    work |= {"softmax_flops": (5000, 4000 if has_backward else 0), "min_bytes_moved": _PARAMETERS * (1 + has_backward)}
    peak = {"peak_bytes": sum(at_peak.values()), "peak_phase": phase, "by_category": at_peak}
    peak |= {"activation_peak_bytes": activations + 10 * MIB, "activation_peak_phase": phase}
    end = {"forward_end_bytes": sum(at_end.values()), "forward_end_by_category": at_end}
    end |= {"forward_peak_bytes": sum(at_end.values()) + 5 * MIB}
    rest = {"residual_stream_bytes": spec.tokens_per_step * spec.d_model * 4, "largest": (parameter, parameter, scores)}
    rest |= {"note": "" if has_backward else f"{spec.pass_} has no gradients"}
    return Prediction(**{"spec": spec} | size | work | peak | end | rest | changes)


class MadePredictor:
    """Predicts by `made_prediction`, which may raise `PredictionError`; remembers what it was asked for."""

    def __init__(self, made: Callable[[CellSpec], Prediction] = made_prediction) -> None:
        self._made = made
        self.asked: list[CellSpec] = []

        self.within_s: float | None = None

    def predict(
        self,
        specs: Sequence[CellSpec],
        on_each: Callable[[Prediction], object] = lambda _: None,
        *,
        within_s: float | None = None,
        give_up: Callable[[CellSpec, PredictionError], object] | None = None,
    ) -> tuple[Prediction, ...]:
        self.asked += specs
        self.within_s = within_s
        found = []
        for spec in specs:
            try:
                found.append(self._made(spec))
            except PredictionError as error:
                if give_up is None:
                    raise
                give_up(spec, error)
            else:
                on_each(found[-1])
        return tuple(found)


def on(spec: CellSpec, **changes: Any) -> CellSpec:
    """The spec with changes."""
    return msgspec.structs.replace(spec, **changes)
