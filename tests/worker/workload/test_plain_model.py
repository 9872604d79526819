"""The benchmark's plain PyTorch model computes the same as the reference, so that their times are comparable."""

from __future__ import annotations

import torch

from benchmarks.plain_model import PlainTransformer
from cs336_tui.config.spec import ModelDims
from cs336_tui.worker.workload.passes import cross_entropy
from cs336_tui.worker.workload.transformer import Transformer

DIMS = ModelDims(d_model=32, d_ff=48, num_layers=2, num_heads=4, vocab_size=50)
CONTEXT = 12
_PARTS = {
    "token_embedding": "embedding", "layers": "blocks", "attention_norm": "norm_1", "ffn_norm": "norm_2",
    "attention.query": "q", "attention.key": "k", "attention.value": "v", "attention.output": "o", "ffn.gate": "gate",
    "ffn.up": "up", "ffn.down": "down", "final_norm": "norm",
}  # fmt: skip


def plain_name(name: str) -> str:
    for ours, plain in _PARTS.items():
        name = name.replace(ours, plain)
    return name


def test_logits_and_gradients_are_the_references() -> None:
    reference = Transformer(DIMS, arch="swiglu-rope", context_length=CONTEXT, device="cpu")
    reference.initialise(0)
    plain = PlainTransformer(DIMS.vocab_size, CONTEXT, DIMS.d_model, DIMS.num_layers, DIMS.num_heads, DIMS.d_ff)
    plain.load_state_dict({plain_name(name): value for name, value in reference.state_dict().items()})
    tokens, targets = torch.randint(DIMS.vocab_size, (2, 3, CONTEXT), generator=torch.Generator().manual_seed(1))
    logits = [model(tokens) for model in (reference, plain)]
    torch.testing.assert_close(*logits)
    for made in logits:
        cross_entropy(made, targets).backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(parameter.grad, theirs[plain_name(name)].grad, msg=name)
