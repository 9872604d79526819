"""torch.compile on a real CUDA GPU: every mode, and the CUDA graphs that two of them capture."""

from typing import Any

import pytest
import torch

from cs336_tui.config.spec import PASSES
from cs336_tui.events.events import ModelPrepared
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.gpu.cells import COMPILED, assert_ok
from tests.worker.measure.cells import Report, run, small_spec

WHY = "needs a CUDA GPU" if not torch.cuda.is_available() else why_cannot_compile("cuda")
pytestmark = pytest.mark.skipif(WHY is not None, reason=WHY or "")


def compiled_cell(mode: str, **changes: Any) -> Report:
    fields: dict[str, Any] = {
        "d_model": 256, "d_ff": 512, "num_layers": 1, "num_heads": 4, "vocab_size": 1000, "context_length": 64,
        "device": "cuda:0", "threads": None, "compile": mode, "warmup_steps": 3, "measure_steps": 10,
    }  # fmt: skip
    return run(small_spec(**(fields | changes)))


def counted(name: str) -> int:
    from torch._dynamo.utils import counters

    return int(counters["inductor"][name])


@pytest.mark.timed
@pytest.mark.parametrize("mode", COMPILED)
def test_compiling_is_over_before_the_first_step(mode: str) -> None:
    report = assert_ok(compiled_cell(mode))
    (prepared,) = (event for event in report.events if isinstance(event, ModelPrepared))
    assert prepared.graphs == 1
    # Neither compiling nor recording a graph is in the first step, which may still be a little slower than later ones.
    assert report.times_s("warm-up")[0] < prepared.compile_s / 20
    assert report.times_s("warm-up")[0] < 0.1
    assert report.finished.recompilations == 0


@pytest.mark.parametrize(("pass_", "sync"), [*((each, "each-step") for each in PASSES), ("train-step", "pipelined")])
def test_every_pass_replays_the_graphs_that_were_captured(pass_: str, sync: str) -> None:
    # Without the opening of each step, a forward whose backward never comes would be run without its graph.
    skips = counted("cudagraph_skips")
    report = assert_ok(compiled_cell("reduce-overhead", pass_=pass_, sync=sync))
    assert counted("cudagraph_skips") == skips
    written = compiled_cell("off", pass_=pass_, sync=sync)
    assert min(report.times_s()) < min(written.times_s()), "a model this small is bound by launches"


@pytest.mark.parametrize("mode", COMPILED)
def test_the_peak_has_what_captured_graphs_write_to(mode: str) -> None:
    dims = {"batch_size": 16, "context_length": 256}
    report = assert_ok(compiled_cell(mode, pass_="train-step", **dims))
    peak = report.finished.peak_allocated_bytes
    # Parameters, gradients and AdamW's two moments, and of activations at the least the logits and their gradient, and
    # of the layer what its attention and its feed-forward network take and what the latter has in its middle.
    tokens = dims["batch_size"] * dims["context_length"]
    held = 4 * 4 * report.built.num_params
    activations = 4 * tokens * (2 * 1000 + (2 * 256 + 512))
    assert peak >= held + activations
    # As it is written more is kept for backward, so that this is no bound, but the same order.
    assert peak < 3 * compiled_cell("off", pass_="train-step", **dims).finished.peak_allocated_bytes
