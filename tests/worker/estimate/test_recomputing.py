"""A user's model that checkpoints its own blocks: recomputed operations run as in the forward."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils import checkpoint as torchs
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.predicted_peak import cpu_peak
from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.estimate.meta_device import _GENERATOR
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build, configure_torch
from tests.worker.measure.cells import small_spec

MODEL = """
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

class LM(nn.Module):
    def __init__(self, vocab_size, d_model, num_layers, num_heads, reentrant: bool):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)
        self.blocks = nn.ModuleList(Block(d_model, num_heads) for _ in range(num_layers))
        self.reentrant = reentrant

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)
"""


@pytest.fixture
def folder(folder: Path) -> str:
    (folder / "checkpoints_itself.py").write_text(MODEL)
    return str(folder)


def counted(spec: CellSpec) -> dict[str, int]:
    """FLOPs that torch's own counter counts in each phase of a real step."""
    step = build(spec, configure_torch(spec)).step(spec)
    found = {}
    for phase in step.phases:
        with FlopCounterMode(display=False) as counter:
            step.run(phase)
        found[phase] = counter.get_total_flops()
    return found


@pytest.mark.parametrize("reentrant", ["yes", "no"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_model_that_checkpoints_itself_is_predicted_as_it_runs(folder: str, precision: str, reentrant: str) -> None:
    torchs_own = getattr(torchs, _GENERATOR), torchs.CheckpointFunction
    spec = small_spec(
        model="checkpoints_itself:LM", model_args=(("reentrant", reentrant),), model_path=(folder,),
        precision=precision, d_model=64, num_heads=4, num_layers=3, vocab_size=100, context_length=128,
    )  # fmt: skip
    found = predict(spec)
    assert found.flops == counted(spec)
    assert found.recomputed_flops > found.flops["forward"] / 2
    # What the kernels take for themselves is not seen; the scores of one layer would be half as much again.
    assert found.peak_bytes == pytest.approx(cpu_peak(spec), rel=0.1)
    assert (getattr(torchs, _GENERATOR), torchs.CheckpointFunction) == torchs_own
    assert torch.is_grad_enabled()
