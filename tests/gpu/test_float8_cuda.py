"""Float8 on a real GPU: the hardware's products, a cell in it, and the refusal where there is none."""

import pytest
import torch
import torch.nn.functional as F

from cs336_tui.config.spec import PASSES, Pass
from cs336_tui.worker.measure.peak import measure_peak
from cs336_tui.worker.measure.probe import probe
from cs336_tui.worker.workload.precision import linear
from tests.gpu.cells import assert_ok, gpu_spec
from tests.worker.measure.cells import run

CAPABILITY = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
has_float8 = pytest.mark.skipif(CAPABILITY < (8, 9), reason="needs compute capability 8.9")


@has_float8
@pytest.mark.parametrize("rows", [(4, 256), (3, 5), (1,)])
def test_products_and_gradients_come_near_the_exact_ones(rows: tuple[int, ...]) -> None:
    random = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(*rows, 512, generator=random, device="cuda", requires_grad=True)
    weight = torch.randn(256, 512, generator=random, device="cuda", requires_grad=True)
    given = torch.randn(*rows, 256, generator=random, device="cuda")
    exact_out = F.linear(x, weight)
    exact = (exact_out, *torch.autograd.grad(exact_out, (x, weight), given))
    out = linear(x, weight)
    found = (out, *torch.autograd.grad(out, (x, weight), given.to(out.dtype)))
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours.double() - theirs.double()).norm() / theirs.double().norm()) < 0.1


@has_float8
def test_transposed_operands_and_gradients_are_taken_too() -> None:
    """A product takes rows alone; a user's model may hand on what lies by columns."""
    x = torch.randn(512, 64, device="cuda").t().requires_grad_()
    weight = torch.randn(512, 256, device="cuda").t().requires_grad_()
    given = torch.randn(256, 64, device="cuda").t()
    exact = F.linear(x, weight)
    out = linear(x, weight)
    assert float((out - exact).norm() / exact.norm()) < 0.1
    found = torch.autograd.grad(out, (x, weight), given.to(out.dtype))
    for ours, theirs in zip(found, torch.autograd.grad(exact, (x, weight), given), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.1


@has_float8
@pytest.mark.parametrize("pass_", PASSES)
def test_every_pass_runs_in_it_and_says_so(pass_: Pass) -> None:
    report = assert_ok(run(gpu_spec(pass_=pass_, precision="fp8-mixed", num_layers=2)))
    assert report.built.in_force.float8 == "float8_e4m3fn and float8_e5m2 in 14 of 15 linear layers"
    assert report.built.in_force.autocast_dtype == report.finished.logits_dtype == "bfloat16"


@has_float8
def test_a_step_in_it_can_be_captured() -> None:
    assert_ok(run(gpu_spec(pass_="train-step", precision="fp8-mixed", num_layers=2, cuda_graph="step")))


@pytest.mark.timed
@has_float8
def test_its_peak_is_measured_in_it() -> None:
    found = {precision: measure_peak("cuda:0", precision, budget_s=1.0) for precision in ("bf16", "fp8-mixed")}
    assert found["fp8-mixed"].dtype == "float8_e4m3fn"
    print({name: f"{peak.best.flops_per_s / 1e12:.0f} TFLOP/s" for name, peak in found.items()})
    assert found["fp8-mixed"].best.flops_per_s > 1.2 * found["bf16"].best.flops_per_s


def test_the_probe_offers_it_where_the_hardware_has_it() -> None:
    (device,) = (device for device in probe().devices if device.name == "cuda:0")
    assert ("fp8-mixed" in device.precisions) == (CAPABILITY >= (8, 9))


@pytest.mark.skipif(CAPABILITY >= (8, 9), reason="needs a GPU without float8")
def test_a_gpu_without_it_is_refused_by_name() -> None:
    finished = run(gpu_spec(precision="fp8-mixed", num_layers=1)).finished
    assert finished.status == "failed"
    assert f"{torch.cuda.get_device_name(0)} has {CAPABILITY[0]}.{CAPABILITY[1]}" in finished.error
