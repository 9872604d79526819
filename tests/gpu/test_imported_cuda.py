"""A user's own model on a real CUDA GPU: every pass and precision, creation on the device, skipped steps."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.config.spec import PASSES
from cs336_tui.worker.workload.imported_components import import_model
from cs336_tui.worker.workload.imported_modules import look_in
from tests.gpu.cells import assert_ok, needs
from tests.worker.measure.cells import UsersFolder, run
from tests.worker.workload.test_imported_callables import steps_taken

pytestmark = pytest.mark.numbers

DEVICE = torch.device("cuda:0")
LM = """
import torch
from torch import nn

class LM(nn.Module):
    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta):
        super().__init__()
        self.asked = dict(vocab_size=vocab_size, context_length=context_length, d_model=d_model,
                          num_layers=num_layers, num_heads=num_heads, d_ff=d_ff, rope_theta=rope_theta)
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d_model, num_heads, d_ff, dropout=0.0, batch_first=True)
            for _ in range(num_layers)
        )
        self.head = nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
"""
"""A Transformer-like model of torch's own layers, named as the course names its own."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[UsersFolder]:
    path = list(sys.path)
    yield UsersFolder(tmp_path)
    look_in(())
    sys.path[:] = path
    importlib.invalidate_caches()


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16-mixed", "fp16-mixed", "bf16"])
def test_every_pass_and_precision_runs(folder: UsersFolder, pass_: Any, precision: Any) -> None:
    needs(precision)
    report = assert_ok(run(folder.spec(LM, device="cuda:0", pass_=pass_, precision=precision)))
    assert len(report.steps("measured")) == 3


@pytest.mark.parametrize("pass_", ["inference", "forward+backward"])
def test_its_step_is_captured_and_checkpointing_where_torch_can_restore_generators(
    folder: UsersFolder, pass_: Any
) -> None:
    fields = {"device": "cuda:0", "cuda_graph": "step", "pass_": pass_}
    assert_ok(run(folder.spec(LM, **fields)))
    if pass_ == "inference":
        return
    recomputing = run(folder.spec(LM, **fields, checkpoint=1)).finished
    if torch.__version__ >= (2, 11):  # which restores them in a capture; of older releases some do not
        assert recomputing.status == "ok", recomputing.error
    elif recomputing.status != "ok":
        assert (recomputing.status, recomputing.stage) == ("failed", "capturing")
        assert "(--checkpoint 0)" in recomputing.error


@pytest.mark.parametrize("device", ["cpu", "meta", "cuda:0"])
def test_a_model_that_puts_itself_on_cuda_is_brought_where_it_runs(folder: UsersFolder, device: str) -> None:
    spec = folder.spec("from torch import nn\ndef LM(): return nn.Linear(2, 2).cuda()\n")
    model = import_model(spec, torch.device(device), torch.float32).model
    assert {parameter.device for parameter in model.parameters()} == {torch.device(device)}


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_scaler_skips_are_not_taken(fused: bool) -> None:
    assert steps_taken("cuda", fused=fused) == [0, 1, 1, 2]
