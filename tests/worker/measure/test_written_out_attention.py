"""A model whose attention writes its products and its softmax out, without a function that could be annotated."""

from __future__ import annotations

from pathlib import Path

from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.events.reports import ReportRequest
from cs336_tui.worker.measure.kernels import profile_kernels
from tests.worker.measure.cells import small_spec
from tests.worker.workload.own_code import Folder
from tests.worker.workload.own_models import GPT

FUSED = "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
WRITTEN_OUT = """\
scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
"""


def test_its_products_are_held_against_its_softmax(tmp_path: Path) -> None:
    model = Folder(tmp_path).write(GPT.replace(FUSED, WRITTEN_OUT))
    spec = small_spec(model=f"{model}:GPT", model_path=(str(tmp_path),), pass_="train-step")
    report = profile_kernels(ReportRequest(kind="kernels", spec=spec), lambda _stage: None)
    forward, backward = attention_split(report)
    for split in (forward, backward):
        assert split.by_kind
        assert split.matmul_ns
        assert split.softmax_ns
    pairs = spec.num_layers * spec.batch_size * spec.context_length**2
    assert forward.matmul_flops == 2 * 2 * pairs * spec.d_model  # scores and weighted values, over all heads
    assert backward.matmul_flops == 2 * forward.matmul_flops
    assert forward.softmax_flops == 5 * pairs * spec.num_heads
