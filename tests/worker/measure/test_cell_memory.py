"""Memory of a cell: tensors that a Transformer block saves for its backward, against a list made by hand; bytes held
before the backward; peaks of resident memory on this machine."""

import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cs336_tui.config.flops import accounting_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import SavedBlock
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.measure import cell as cell_module
from cs336_tui.worker.measure.cell_memory import PeakMeter, Peaks, before_backward_bytes, saved_for_backward, spilled
from cs336_tui.worker.measure.preparing import fresh_compiler
from cs336_tui.worker.workload.building import Workload, build, configure_torch
from cs336_tui.worker.workload.compile_and_capture import run_whole
from cs336_tui.worker.workload.passes import Step
from tests.attention_cells import attention_spec
from tests.worker.measure.cells import compiles, run, small_spec

CPU = torch.device("cpu")
D, F, B, T, H = 16, 24, 2, 8, 2
N = B * T
"""Tokens."""
FP32 = 4


def saved(spec: CellSpec) -> tuple[SavedBlock, ...]:
    return saved_for_backward(build(spec, CPU))


def elements(block: SavedBlock, range_: str) -> int:
    return sum(tensor.bytes // FP32 for tensor in block.contributors if tensor.range == range_)


def test_a_block_of_the_reference_model_saves_what_its_formulas_need_largest_first() -> None:
    first, second = saved(small_spec(d_model=D, d_ff=F, batch_size=B, context_length=T, num_heads=H))
    assert (first.module, second.module) == ("layers.0", "layers.1")
    assert first.contributors == second.contributors
    # Both norms: their input, the normed input before the weight, and the scale of each token.
    assert elements(first, "norms") == 2 * (N * D + N * D + N)
    # The input of query, key and value, which they share. Rotary needs only its tables, which are buffers.
    assert elements(first, "QKV projections") == N * D
    assert elements(first, "rotary") == 0
    assert elements(first, "attention scores") == 2 * N * D  # scaled queries, and keys
    assert elements(first, "softmax") == B * H * T * T  # its result, which the final matmul shares
    assert elements(first, "final matmul") == N * D  # values, a head after the other
    assert elements(first, "output projection") == N * D
    # The input of gate and up, gate's output, silu's and up's, and their product.
    assert elements(first, "feed-forward") == N * D + 4 * N * F
    assert first.bytes == FP32 * (10 * N * D + 2 * N + B * H * T * T + 4 * N * F)
    assert first.bytes == sum(tensor.bytes for tensor in first.contributors)
    softmax = next(tensor for tensor in first.contributors if tensor.range == "softmax")
    found = (softmax.node, softmax.shape, softmax.dtype, softmax.count)
    assert found == ("SoftmaxBackward0", (B, H, T, T), "float32", 1)
    products = next(tensor for tensor in first.contributors if tensor.node == "SiluBackward0")
    assert (products.range, products.shape) == ("feed-forward", (B, T, F))
    sizes = [tensor.bytes for tensor in first.contributors]
    assert sizes == sorted(sizes, reverse=True)


def test_a_gelu_network_saves_its_input_and_two_hidden_tensors() -> None:
    for block in saved(small_spec(arch="gelu-learned", d_model=D, d_ff=F, batch_size=B, context_length=T)):
        assert elements(block, "feed-forward") == N * D + 2 * N * F


def test_autocast_saves_low_precision_copies_of_the_weights_too() -> None:
    (block, _) = saved(small_spec(d_model=D, d_ff=F, batch_size=5, precision="bf16-mixed"))
    copies = [tensor for tensor in block.contributors if tensor.shape in ((D, D), (D, F), (F, D))]
    assert {tensor.dtype for tensor in copies} == {"bfloat16"}
    assert sum(tensor.bytes for tensor in copies) == 2 * (4 * D * D + 3 * D * F)


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16-mixed"}, {"checkpoint": 1}])
def test_no_tensor_of_the_forward_outlives_it(changes: dict[str, object]) -> None:
    """Softmax saves its own result: node and result must not keep each other."""

    def live() -> int:
        gc.collect()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    workload = build(small_spec(**changes), CPU)
    before = live()
    for _ in range(3):
        assert saved_for_backward(workload)
        assert live() == before


SCALARS = 16
"""Bytes at most of the loss and of the number that scores are scaled by, which accounting leaves out."""


def a_step(spec: CellSpec) -> tuple[Step, Workload]:
    configure_torch(spec)
    workload = build(spec, CPU)
    return workload.step(spec), workload


def held(spec: CellSpec) -> int:
    return before_backward_bytes(*a_step(spec), CPU)


@pytest.mark.parametrize("attention", ["naive", "sdpa", "math"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_what_is_held_is_what_is_accounted_for(attention: str, causal: bool, precision: str) -> None:
    spec = attention_spec(attention=attention, causal=causal, precision=precision, context_length=96, d_model=16)
    assert 0 < held(spec) - accounting_of(spec).bytes <= SCALARS


def test_the_mask_that_a_users_function_is_given_counts_and_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "masked_of_ones_own.py").write_text("def by_mask(q, k, v, mask): return q * 2 + k + v")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = attention_spec(attention="masked_of_ones_own:by_mask", context_length=96)
    found = held(spec)
    tensors, output, mask = 4 * 2 * 96 * 8 * 4, 2 * 96 * 8 * 4, 96 * 96
    assert 0 <= found - (tensors + output + mask) <= SCALARS
    assert 0 <= found - predict(spec).forward_end_bytes <= SCALARS


@compiles
def test_compiled_code_is_seen_too() -> None:
    with fresh_compiler("default"):
        step, workload = a_step(attention_spec(compile="default", causal=False, context_length=96))
        run_whole(step)
        step.clear()
        found = before_backward_bytes(step, workload, CPU)
    inputs_and_output = 5 * 2 * 96 * 8 * 4
    assert found >= inputs_and_output + 2 * 96 * 96 * 4, "the weights are kept for backward"


@pytest.mark.parametrize("pass_", ["backward", "forward+backward"])
def test_nothing_is_left_and_the_step_can_go_on(pass_: str) -> None:
    step, workload = a_step(attention_spec(pass_=pass_))
    assert before_backward_bytes(step, workload, CPU) == before_backward_bytes(step, workload, CPU)
    assert all(parameter.grad is None for parameter in workload.model.parameters())
    step.prepare()
    run_whole(step)
    assert all(parameter.grad is not None for parameter in workload.model.parameters())


def test_running_out_of_memory_there_costs_only_the_number() -> None:
    step, workload = a_step(attention_spec())

    def too_much(*_: object) -> None:
        torch.empty(2**60, device=CPU)

    hook = workload.model.register_forward_pre_hook(too_much)
    assert before_backward_bytes(step, workload, CPU) is None
    assert step.failed_in is None
    hook.remove()
    assert before_backward_bytes(step, workload, CPU) is not None


@pytest.mark.parametrize("pass_", ["forward", "backward", "forward+backward"])
def test_a_cell_tells_it_with_its_end_and_not_as_a_step(pass_: str) -> None:
    spec = attention_spec(pass_=pass_)
    report = run(spec)
    assert report.finished.status == "ok", report.finished.error
    assert report.outline.count("finishing") == 1
    found = report.finished.before_backward_bytes
    if pass_ == "forward":
        assert found is None
    else:
        assert 0 < found - accounting_of(spec).bytes <= SCALARS


MEGABYTE = 1024**2


def touch(megabytes: int) -> None:
    torch.ones(megabytes * MEGABYTE, dtype=torch.uint8)


def test_a_peak_is_seen_after_it_has_passed() -> None:
    meter = PeakMeter(CPU)
    before = meter.read()
    assert before == (None, None, before.rss, None), "a CPU's allocator has none"
    touch(300)
    assert meter.read().rss - before.rss > 250 * MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset the peak")
def test_a_reset_forgets_the_peak() -> None:
    meter = PeakMeter(CPU)
    touch(300)
    peak = meter.read().rss
    meter.reset()
    assert meter.read().rss < peak - 250 * MEGABYTE
    touch(100)
    assert meter.read().rss < peak - 150 * MEGABYTE


def test_more_memory_than_the_device_has_is_remarked_beside_a_cells_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """WSL2's driver lets torch take memory of the host."""
    cuda = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(total_memory=24 * 10**9))
    assert spilled(Peaks(23 * 10**9, 24 * 10**9, 1, 0), cuda) is None
    text = spilled(Peaks(23 * 10**9, 26 * 10**9, 1, 0), cuda)
    assert text.startswith("torch took 26.0 GB of a device that has 24.0 GB: the driver moved the rest to the host's")
    assert spilled(PeakMeter(CPU).read(), CPU) is None
    monkeypatch.setattr(cell_module, "spilled", lambda _peaks, device: f"too much of {device}")
    assert run(small_spec()).finished.remarks == ("too much of cpu",)


class OnCuda:
    """Counts as the allocator of a CUDA device does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peak = 0
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: self.peak)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _device: 2 * self.peak)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: {})
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: vars(self).update(peak=0))

    def take(self, count: int) -> None:
        """Allocate so many bytes and give them back."""
        self.peak = max(self.peak, count)


def test_what_runs_aside_is_in_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the comparison of a compiled step, whose graphs took their memory before."""
    device = OnCuda(monkeypatch)
    meter = PeakMeter(torch.device("cuda:0"))
    device.take(100)
    with meter.aside():
        device.take(1000)
    meter.reset(allocated=False)
    device.take(10)
    assert meter.read()[:2] == (100, 200)
    device.take(300)
    assert meter.read()[:2] == (300, 600)
    meter.reset()
    assert meter.read()[:2] == (0, 0)
