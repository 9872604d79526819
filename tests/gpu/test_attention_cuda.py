"""Torch's fused attention on a real CUDA GPU: results, reported kernel, reasons of refusals, predictions."""

import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cs336_tui.config.spec import dims_of
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.attention import attentions_on, core_of
from cs336_tui.worker.workload.building import build, configure_torch
from cs336_tui.worker.workload.transformer import Transformer
from tests.gpu.cells import low_precision, needs, the_gpu
from tests.worker.measure.cells import small_spec

GPU = torch.device("cuda:0")
WIDE = {"device": "cuda:0", "threads": None, "d_model": 128, "num_heads": 2, "context_length": 256}
FUSED = ("flash", "memory-efficient", "cudnn")


def there() -> tuple[str, ...]:
    return attentions_on(GPU) if torch.cuda.is_available() else ()


@pytest.mark.numbers
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed", "bf16-mixed", "bf16"])
@pytest.mark.parametrize(
    "attention", ["sdpa", *FUSED[:2], pytest.param("cudnn", marks=pytest.mark.real_numbers), "math"]
)
def test_a_kernel_agrees_with_the_naive_one_or_is_refused(attention: str, precision: str) -> None:
    needs(precision)
    spec = small_spec(**WIDE, attention=attention, precision=precision)
    configure_torch(spec)
    if attention not in there() or (precision == "fp32" and attention in ("flash", "cudnn")):
        with pytest.raises(ValueError, match=rf"\Aattention {attention}[^\n]*\Z"):
            build(spec, GPU)
        return
    workload = build(spec, GPU)
    naive = build(small_spec(**WIDE, precision=precision), GPU)
    outs = []
    for each in (workload, naive):
        with each.autocast():
            logits = each.model(each.batch.inputs)
            loss = each.loss(logits, each.batch.targets)
        grads = torch.autograd.grad(loss, list(each.model.parameters()))
        outs.append([logits, *grads])
    slack = 1e-4 if precision == "fp32" else 0.05
    for fused, plain in zip(*outs, strict=True):
        assert (fused - plain).float().norm() <= slack * plain.float().norm() + 1e-6


def test_flash_in_fp32_is_refused_with_what_can_be_had() -> None:
    with pytest.raises(ValueError, match=r"attention flash in fp32: cuda's flash kernel needs fp16 or bf16; choose"):
        core_of(small_spec(**WIDE, attention="flash"), GPU)


def test_torchs_own_reason_is_told_for_a_width_that_it_cannot() -> None:
    if "flash" not in there():
        pytest.skip("needs a GPU with flash attention")
    wide = {**WIDE, "d_model": 1024, "num_heads": 2, "precision": "bf16"}
    with pytest.raises(ValueError, match=r"attention flash: .*512.*; choose one of naive, sdpa"):
        core_of(small_spec(**wide, attention="flash"), GPU)


@pytest.mark.parametrize("attention", ["sdpa", *FUSED])
def test_the_kernel_that_is_said_to_run_runs(attention: str) -> None:
    if attention not in there():
        pytest.skip(f"this GPU has no {attention}")
    workload = build(small_spec(**WIDE, attention=attention, precision=low_precision()), GPU)
    with profile(activities=[ProfilerActivity.CPU]) as profiler, workload.autocast():
        workload.model(workload.batch.inputs)
    ran = {event.name for event in profiler.events() if event.name.startswith("aten::_scaled_dot_product")}
    said = workload.facts.attention.removeprefix("sdpa: ").split()[0]
    word = {"flash": "flash", "memory-efficient": "efficient", "cudnn": "cudnn", "math": "math"}[said]
    assert any(word in name for name in ran), (said, ran)


def test_the_probe_lists_what_can_be_built() -> None:
    assert {"naive", "sdpa", "math"} <= set(the_gpu().attentions)
    for attention in the_gpu().attentions:
        assert attention == "naive" or core_of(small_spec(**WIDE, attention=attention, precision=low_precision()), GPU)


def test_a_kernel_that_lacks_only_the_dtype_is_refused_with_a_precision_that_it_has() -> None:
    """A T4 and a V100 have memory-efficient attention, but not in bf16."""
    if "bf16" in the_gpu().precisions or "memory-efficient" not in there():
        pytest.skip("needs a GPU without bf16, with memory-efficient attention")
    with pytest.raises(
        ValueError, match=r"attention memory-efficient in bf16-mixed: .* needs .*fp16.*; choose fp16-mixed"
    ):
        core_of(small_spec(**WIDE, attention="memory-efficient", precision="bf16-mixed"), GPU)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("attention", ["sdpa", *FUSED, "math"])
def test_what_is_kept_for_backward_is_predicted(attention: str, precision: str) -> None:
    """Memory after a forward less memory before it; cuBLAS's workspace is in both."""
    needs(precision)
    spec = small_spec(**{**WIDE, "context_length": 1024, "num_layers": 4}, attention=attention, precision=precision)
    configure_torch(spec)
    try:
        workload = build(spec, GPU)
    except ValueError:
        pytest.skip(f"this GPU has no {attention} in {precision}")
    step = workload.step(spec)
    step.run("forward")
    step.clear()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    step.run("forward")
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    major, minor = torch.cuda.get_device_capability()
    predicted = predict(spec, capability=(major, minor)).forward_end_by_category["activations"]
    assert predicted == pytest.approx(kept, rel=0.03)


@pytest.mark.timed
def test_a_large_model_is_created_within_two_seconds() -> None:
    if torch.cuda.mem_get_info()[0] < 20e9:
        pytest.skip("needs 20 GB of free memory")
    torch.empty(1, device=GPU)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model = Transformer(dims_of("xl", "2026"), arch="swiglu-rope", context_length=512, device=GPU)
    model.initialise(0)
    torch.cuda.synchronize()
    assert time.perf_counter() - begin < 4  # the mark is 2 s, held in benchmarks.creation; others may be on the GPU
    assert model.num_params > 3e9
