"""The course's toy model, and the dtypes that autocast gives its parts on a device."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.events.reports import ToyDtypes
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.measure.module_dtypes import DtypeWatch, dtypes_of, gradient_dtypes
from cs336_tui.worker.workload.precision import autocast_in_force, dtype_name

AUTOCASTS = (torch.float16, torch.bfloat16)
WIDTH_IN, HIDDEN, WIDTH_OUT, BATCH = 16, 10, 5, 4


class ToyModel(nn.Module):
    """Linear, ReLU, layer norm, linear: (B, `width_in`) -> logits (B, `width_out`). No linear layer has a bias."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width_in, HIDDEN, bias=False)
        self.relu = nn.ReLU()
        self.ln = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, width_out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc2(self.ln(self.relu(self.fc1(x))))
        return logits


def toy_dtypes(device: torch.device) -> tuple[tuple[ToyDtypes, ...], tuple[str, ...]]:
    """The toy model's dtypes under each autocast that the device can do, and of the others why it cannot."""
    found: list[ToyDtypes] = []
    missing: list[str] = []
    for dtype in AUTOCASTS:
        try:
            if (reached := _under(dtype, device)) is not None:
                found.append(reached)
            else:
                missing.append(f"{dtype_name(dtype)} autocast: torch leaves it off on {device.type}.")
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0]
            missing.append(f"{dtype_name(dtype)} autocast: {device.type} cannot do it: {why}")
    return tuple(found), tuple(missing)


def _under(dtype: torch.dtype, device: torch.device) -> ToyDtypes | None:
    """What hooks see in one forward and backward; None where torch leaves autocast off. The loss is cross-entropy."""
    autocast = partial(torch.autocast, device.type, dtype=dtype)
    if autocast_in_force(autocast, device.type) is not dtype:
        return None
    model = ToyModel(WIDTH_IN, WIDTH_OUT).to(device)
    x = torch.randn(BATCH, WIDTH_IN, device=device)
    targets = torch.arange(BATCH, device=device) % WIDTH_OUT
    with DtypeWatch(model) as watch, autocast():
        parameters = dtypes_of(model.parameters())
        logits = model(x)
        loss = F.cross_entropy(logits, targets)
    loss.backward()
    outputs = {row.path: row.output for row in watch.rows()}
    return ToyDtypes(
        autocast=dtype_name(dtype),
        parameters=parameters,
        first_layer_output=outputs["fc1"],
        layer_norm_output=outputs["ln"],
        logits=dtypes_of([logits]),
        loss=dtypes_of([loss]),
        gradients=gradient_dtypes(model.parameters()),
    )
