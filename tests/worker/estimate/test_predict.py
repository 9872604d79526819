"""Predictions against torch's profiler, closed formulas and published runs."""

import pytest
import torch
from hypothesis import given, settings

from benchmarks.predicted_peak import cpu_peak
from cs336_tui.analysis.estimates import for_target
from cs336_tui.analysis.targets import named_target
from cs336_tui.config.flops import step_flops
from cs336_tui.config.spec import ARCHES, PASSES, CellSpec
from cs336_tui.config.values import PHASES
from cs336_tui.config.variants import RANGES
from cs336_tui.events.gpus import find_gpu
from cs336_tui.events.prediction import CATEGORIES, Prediction
from cs336_tui.worker.estimate import meta_device
from cs336_tui.worker.estimate.predict import predict
from tests.worker.estimate.cells import named_spec, small_cells
from tests.worker.measure.cells import small_spec

GB = 1e9


# Memory


@pytest.mark.parametrize(
    ("pass_", "precision", "arch"),
    [
        (pass_, precision, ARCHES[(row + column) % len(ARCHES)])
        for row, precision in enumerate(["fp32", "bf16-mixed", "fp16-mixed", "bf16"])
        for column, pass_ in enumerate(PASSES)
    ],
)
def test_the_peak_is_what_the_cpu_s_allocator_counts(pass_: str, precision: str, arch: str) -> None:
    spec = small_spec(
        pass_=pass_, precision=precision, arch=arch, d_model=64, d_ff=160, vocab_size=2000, context_length=32
    )
    measured, predicted = cpu_peak(spec), predict(spec).peak_bytes
    # A CPU's kernels take scratch space for low-precision products and for operands of two dtypes; in fp32 none.
    assert predicted == pytest.approx(measured, abs=64 if precision == "fp32" else 0.03 * measured)


def test_a_published_run_of_an_xl_model() -> None:
    """2560 wide, 32 layers, context 128, batch 4, fp32, one tensor after another in AdamW, on an H100: 46 and 55 GB."""
    prediction = predict(named_spec("xl", pass_="train-step"))
    assert prediction.forward_end_bytes / GB == pytest.approx(46, rel=0.02)
    assert prediction.peak_bytes / GB == pytest.approx(55, rel=0.02)
    for_loop = predict(
        named_spec("xl", pass_="train-step", optimizer="adamw-for-loop", device="cuda:0", threads=None),
        capability=(9, 0),
    )
    # These two are in docs/benchmarks.md, under "Predicted peak of memory".
    assert (round(for_loop.forward_end_bytes / GB, 2), round(for_loop.peak_bytes / GB, 2)) == (46.02, 55.45)


@given(small_cells())
@settings(max_examples=25, deadline=None)
def test_categories_add_up_and_the_peak_is_the_most_of_all(spec: CellSpec) -> None:
    found = predict(spec)
    assert sum(found.by_category.values()) == found.peak_bytes
    assert sum(found.forward_end_by_category.values()) == found.forward_end_bytes
    assert tuple(found.by_category) == tuple(found.forward_end_by_category) == CATEGORIES
    assert found.forward_end_bytes <= found.forward_peak_bytes <= found.peak_bytes
    assert found.peak_phase in {"forward", "loss", *PHASES[spec.pass_]}
    assert found.num_params * (2 if spec.precision == "bf16" else 4) <= found.by_category["parameters"]
    assert [block.bytes for block in found.largest] == sorted((b.bytes for b in found.largest), reverse=True)
    assert sum(block.bytes for block in found.largest) <= found.peak_bytes
    assert found.flops_by_range.keys() <= set(RANGES)


@pytest.mark.parametrize("pass_", PASSES)
def test_each_pass_holds_what_it_needs_and_says_what_it_lacks(pass_: str) -> None:
    found = predict(named_spec("tiny", pass_=pass_, context_length=8, batch_size=1))  # weights outweigh activations
    has_backward = "backward" in PHASES[found.spec.pass_]
    assert (found.by_category["gradients"] > 0) == has_backward
    assert (found.by_category["optimizer_state"] > 0) == (pass_ == "train-step")
    assert ("no gradients" in found.note) == (not has_backward)
    assert (found.note == "") == (pass_ == "train-step")


def test_inference_holds_the_logits_alone_at_its_end_and_a_train_step_two_moments() -> None:
    spec = small_spec(pass_="inference")
    found = predict(spec)
    assert found.forward_end_by_category["activations"] == 4 * spec.tokens_per_step * spec.vocab_size
    assert found.forward_end_by_category["temporary"] == 0
    found = predict(named_spec("tiny", pass_="train-step"))
    assert found.by_category["parameters"] == 4 * found.num_params
    assert 0 <= found.by_category["optimizer_state"] - 8 * found.num_params < 1024  # and the counts of steps


# What a GPU does otherwise


def test_lists_of_tensors_in_adamw_cost_a_copy_of_the_parameters_on_cuda() -> None:
    there = predict(named_spec("medium", pass_="train-step", device="cuda:0"))
    here = predict(named_spec("medium", pass_="train-step", precision="tf32", device="mps"))
    assert there.peak_phase == "optimizer"
    more = there.by_category["temporary"] - here.by_category["temporary"]
    assert more / (4 * here.num_params) == pytest.approx(1, rel=0.03)


def test_a_gpu_s_allocator_rounds_up_and_holds_workspaces_of_cublas() -> None:
    spec = small_spec(pass_="forward+backward", device="cuda:0")
    hopper, ampere, here = predict(spec), predict(spec, capability=(8, 0)), predict(small_spec())
    assert hopper.peak_bytes - ampere.peak_bytes == 2 * (32 * 2**20 - (8 * 2**20 + 128 * 1024))
    assert hopper.by_category["temporary"] >= 64 * 2**20
    assert hopper.by_category["parameters"] % 512 == 0
    assert hopper.by_category["parameters"] > here.by_category["parameters"]
    inference = predict(small_spec(pass_="inference", device="cuda:0"))
    assert 32 * 2**20 <= inference.by_category["temporary"] < 33 * 2**20


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16-mixed", 4), ("fp16-mixed", 4), ("bf16", 2)])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_residual_stream_is_as_wide_as_the_blocks_pass_it_on(precision: str, width: int, device: str) -> None:
    """Under autocast the embedding gives fp32, and additions to it keep that."""
    spec = small_spec(precision=precision, device=device)
    assert predict(spec).residual_stream_bytes == width * spec.tokens_per_step * spec.d_model


# Arithmetic


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("pass_", PASSES)
def test_flops_are_those_of_the_closed_formula(pass_: str, arch: str) -> None:
    spec = small_spec(pass_=pass_, arch=arch)
    found, forward = predict(spec), step_flops(small_spec(pass_="forward", arch=arch))
    expected = {"forward": forward, "backward": 2 * forward}
    assert found.flops == {phase: expected.get(phase, 0) for phase in PHASES[spec.pass_]}
    there, back = (sum(counts) for counts in zip(*found.flops_by_range.values(), strict=True))
    assert there == forward
    assert back == (2 * forward if "backward" in PHASES[spec.pass_] else 0)


def test_flops_of_each_range() -> None:
    spec = small_spec()
    tokens, d, layers = spec.tokens_per_step, spec.d_model, spec.num_layers
    pairs = tokens * spec.context_length * d * layers
    expected = {
        "QKV projections": 6 * tokens * d * d * layers,
        "attention scores": 2 * pairs,
        "final matmul": 2 * pairs,
        "output projection": 2 * tokens * d * d * layers,
        "feed-forward": 6 * tokens * d * spec.d_ff * layers,
        "head": 2 * tokens * d * spec.vocab_size,
    }
    assert predict(spec).flops_by_range == {name: (flops, 2 * flops) for name, flops in expected.items()}
    elements = spec.batch_size * spec.num_heads * spec.context_length**2 * layers
    assert predict(spec).softmax_flops == (5 * elements, 4 * elements)
    assert predict(small_spec(pass_="forward")).softmax_flops == (5 * elements, 0)


@pytest.mark.parametrize(
    ("pass_", "times"), [("inference", 1), ("forward", 1), ("backward", 2), ("forward+backward", 2), ("train-step", 8)]
)
def test_the_least_that_a_step_moves(pass_: str, times: int) -> None:
    """Bytes in units of the parameters, less unread embedding rows; AdamW's state is twice as large, moved twice."""
    spec = small_spec(pass_=pass_, device="cuda:0")
    found = predict(spec)
    unread = max(spec.vocab_size - spec.tokens_per_step, 0) * spec.d_model
    assert unread
    assert found.min_bytes_moved == times * 4 * found.num_params - 4 * unread


# Any cell, anywhere


def test_nothing_of_the_caller_s_shows() -> None:
    spec = small_spec(pass_="train-step", precision="fp16-mixed")
    expected = predict(spec)
    generator = torch.random.get_rng_state()
    with torch.inference_mode():
        assert predict(spec) == expected
    with torch.no_grad():
        assert predict(spec) == expected
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_the_largest_blocks_tell_where_they_come_from_and_what_nothing_can_hold_is_predicted() -> None:
    found: Prediction = predict(small_spec(context_length=64, pass_="forward+backward"))
    largest = found.largest[0]
    assert largest.shape == (2, 2, 64, 64)
    assert largest.category == "activations"
    assert largest.site.frame.startswith("transformer.py:")
    assert len(found.largest) == 20
    found = predict(named_spec("tiny", pass_="train-step", device="cuda:3", context_length=1024, batch_size=10_000))
    assert found.peak_bytes > 250 * GB


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_remembering_results_changes_no_prediction(precision: str, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(pass_="train-step", precision=precision, arch=arch, device="cuda:0", context_length=64)
    expected = predict(spec)
    monkeypatch.setattr(meta_device, "_makes_one_tensor", lambda _func: False)
    assert predict(spec) == expected


@pytest.mark.parametrize("pass_", ["inference", "train-step"])
def test_a_prediction_for_one_gpu_serves_for_another(pass_: str) -> None:
    spec = named_spec("tiny", device="cuda:0", pass_=pass_)
    hopper, ampere = predict(spec, capability=(9, 0)), predict(spec, capability=(8, 0))
    served = for_target(hopper, named_target(find_gpu("A100 40GB")))
    assert abs(served.peak_bytes - ampere.peak_bytes) <= 2**21
    assert sum(served.by_category.values()) == served.peak_bytes
    assert sum(served.forward_end_by_category.values()) == served.forward_end_bytes
    assert for_target(hopper, named_target(find_gpu("H100"))) == hopper
