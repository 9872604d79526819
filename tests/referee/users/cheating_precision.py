"""Language models that multiply in fewer bits than they are asked to. They have the parameters of `lm.LM` under the
same names, so that the two can be compared weight by weight."""

import copy

import torch
import torch.nn.functional as F
from lm import LM
from shared import WARM_UP
from torch import nn


class _LinearIn(torch.nn.Linear):
    """A linear layer that multiplies in another dtype."""

    dtype = torch.bfloat16

    def forward(self, x):
        return F.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(x.dtype)


class _LinearInHalf(_LinearIn):
    dtype = torch.float16


class _LinearInInt8(_LinearIn):
    """Multiplies integers of eight bits, by one scale for each side."""

    def forward(self, x):
        rows, weight = x.flatten(0, -2), self.weight.detach()
        of_rows, of_weight = rows.abs().max() / 127, weight.abs().max() / 127
        product = torch._int_mm((rows / of_rows).round().to(torch.int8), (weight.mT / of_weight).round().to(torch.int8))
        return (product * (of_rows * of_weight)).unflatten(0, x.shape[:-1])


class InBfloat16(LM):
    """Multiplies in bfloat16."""

    kind = _LinearIn

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for module in self.modules():
            if type(module) is nn.Linear:
                module.__class__ = self.kind


class InFloat16(InBfloat16):
    """Multiplies in float16."""

    kind = _LinearInHalf


class InInt8(InBfloat16):
    """Multiplies in integers of eight bits."""

    kind = _LinearInInt8


class UnderAutocast(LM):
    """Runs under autocast."""

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens).float()


class FeedForwardInBfloat16(LM):
    """Multiplies in bfloat16 in the feed-forward networks alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            for module in layer.ffn.children():
                module.__class__ = _LinearIn


class InBfloat16Later(InBfloat16):
    """Multiplies in bfloat16 after its first calls."""

    kind = nn.Linear
    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls == WARM_UP + 1:
            for module in self.modules():
                if type(module) is nn.Linear:
                    module.__class__ = _LinearIn
        return super().forward(tokens)


class ParametersInBfloat16(LM):
    """Converts its parameters to bfloat16, whatever precision is asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.bfloat16()


class CopyInBfloat16(LM):
    """Computes with a copy of itself in bfloat16."""

    def forward(self, tokens):
        if not hasattr(self, "copied"):
            object.__setattr__(self, "copied", [copy.deepcopy(self).bfloat16()])
        return LM.forward(self.copied[0], tokens).float()


class LeavesAutocastOn(LM):
    """Switches autocast on for all that follows in its process."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_enabled("cpu", True)


class SwitchesOneDnnToBfloat16(LM):
    """Lets the library of CPU kernels multiply float32 in bfloat16."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


class SwitchesToTf32(LM):
    """Lets torch multiply in TF32 or bfloat16 where float32 is asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.matmul.allow_tf32 = True
