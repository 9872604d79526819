"""Predictions of cells with checkpointing, a model's own too, or other optimizers, against the allocator of a CPU."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils import checkpoint as torchs

from benchmarks.predicted_peak import cpu_peak
from cs336_tui.analysis.memory import activation_peak
from cs336_tui.config.flops import step_flops
from cs336_tui.config.spec import ARCHES, CellSpec
from cs336_tui.config.values import OPTIMIZERS
from cs336_tui.worker.estimate.meta_device import _GENERATOR
from cs336_tui.worker.estimate.predict import predict
from tests.worker.measure.cells import counted_flops, memory_of, small_spec
from tests.worker.workload.own_code import GPT


def checkpointed(every: int, **changes: object) -> CellSpec:
    wide = {"d_model": 64, "d_ff": 160, "vocab_size": 100, "context_length": 64, "num_layers": 4}
    return small_spec(checkpoint=every, **(wide | changes))


NESTED = {"every": 1, "num_layers": 6, "nesting": "halves"}
MODES = [("forward+backward", "fp32"), ("train-step", "fp32"), ("train-step", "bf16-mixed")]


@pytest.mark.parametrize(
    ("changes", "pass_", "precision", "arch"),
    [
        (changes, *mode, ARCHES[(row + column) % len(ARCHES)])
        for row, changes in enumerate([{"every": 1}, {"every": 3}, {"every": 4}, NESTED])
        for column, mode in enumerate(MODES)
    ],
)
def test_the_peak_of_recomputed_blocks_is_what_the_allocator_counts(
    changes: dict[str, Any], pass_: str, precision: str, arch: str
) -> None:
    spec = checkpointed(**changes, pass_=pass_, precision=precision, arch=arch)
    measured, predicted = cpu_peak(spec), predict(spec).peak_bytes
    assert predicted == pytest.approx(measured, abs=64 if precision == "fp32" else 0.03 * measured)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_memory_report_of_recomputed_blocks_agrees_with_both(arch: str) -> None:
    spec = checkpointed(2, arch=arch)
    report = memory_of(spec)
    assert report.peak_bytes == report.allocator_peak_bytes == pytest.approx(report.prediction.peak_bytes, abs=64)
    assert report.activation_peak_bytes == pytest.approx(report.prediction.activation_peak_bytes, abs=64)
    assert activation_peak(msgspec.structs.replace(report, activation_peak_bytes=None)) == report.activation_peak_bytes
    entering = 4 * spec.tokens_per_step * spec.d_model
    assert [block.bytes for block in report.saved] == [entering, entering]  # of two groups, what enters each


def test_the_activation_peak_of_a_forward_is_what_the_allocator_counts_above_what_was_there() -> None:
    """The host's allocator, over a forward that keeps its activations, less parameters and buffers."""
    for every in (0, 2):
        spec = checkpointed(every, pass_="forward")
        found = predict(spec)
        held = found.by_category["parameters"] + found.by_category["buffers"]
        assert found.activation_peak_bytes == pytest.approx(cpu_peak(spec) - held, abs=64)
        assert found.activation_peak_phase == "forward"


def test_groups_differ_in_their_activation_peak_where_the_optimizer_hides_it() -> None:
    """The xl model of 2026 at context 2048: groups of 1 and of 2 blocks have the optimizer's peak, 69.1 GB."""
    dims = {"d_model": 2560, "d_ff": 10240, "num_layers": 32, "num_heads": 32, "vocab_size": 10_000}
    found = [
        predict(
            small_spec(**dims, context_length=2048, batch_size=4, pass_="train-step", device="cuda:0", checkpoint=every)
        )
        for every in (1, 2)
    ]
    assert [each.peak_phase for each in found] == ["optimizer", "optimizer"]
    assert found[0].peak_bytes == pytest.approx(found[1].peak_bytes, rel=0.001)
    one, two = (each.activation_peak_bytes or 0 for each in found)
    # Of a group of two, a second block's activations; one tensor of the stream less for each of sixteen groups.
    stream = found[0].residual_stream_bytes
    assert two > one
    tokens = 4 * 2048  # of a block norms, projections, attention and feed-forward in fp32, as in `test_cell_memory`
    saved = 4 * (10 * tokens * 2560 + 2 * tokens + 4 * 32 * 2048**2 + 4 * tokens * 10240)
    assert two - one == pytest.approx(saved - 16 * stream, rel=0.05)
    assert [each.activation_peak_phase for each in found] == ["backward", "backward"]


def test_nested_groups_need_one_input_more_for_twice_the_blocks_and_groups_twice_as_many() -> None:
    """O(log N) and O(N), counted in tensors of the residual stream, of which a group keeps one."""
    wide = {"context_length": 64, "d_model": 64, "d_ff": 160, "vocab_size": 16, "checkpoint": 1}
    peaks: dict[str, list[float]] = {"off": [], "halves": []}
    for nesting, found in peaks.items():
        for layers in (4, 8, 16):
            prediction = predict(small_spec(**wide, num_layers=layers, nesting=nesting))
            assert prediction.activation_peak_bytes
            found.append(prediction.activation_peak_bytes / prediction.residual_stream_bytes)
    assert [after - before for before, after in pairwise(peaks["halves"])] == [1, 1]
    assert [after - before for before, after in pairwise(peaks["off"])] == [4, 8]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_nested_groups_compute_more_again(device: str) -> None:
    """Of 8 blocks: in each half of 4 the first 2 for the input of the others, in each of these pairs the first 1, and
    then each for its own backward, without its last product."""
    spec = checkpointed(1, num_layers=8, nesting="halves", device=device)
    plain, nested = predict(checkpointed(0, num_layers=8, device=device)), predict(spec)
    blocks = sum(forward for name, (forward, _) in plain.flops_by_range.items() if name != "head")
    last = 8 * (2 * spec.tokens_per_step * spec.d_ff * spec.d_model)
    assert nested.recomputed_flops == blocks * (2 * 2 + 4 * 1 + 8) // 8 - last
    assert nested.flops["backward"] == plain.flops["backward"] + nested.recomputed_flops
    assert step_flops(spec) == sum(plain.flops.values())
    assert plain.softmax_flops
    assert nested.softmax_flops
    assert nested.softmax_flops[1] == plain.softmax_flops[1] + 2 * plain.softmax_flops[0]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_is_computed_again_is_counted_and_told_apart(device: str) -> None:
    plain, again = predict(checkpointed(0, device=device)), predict(checkpointed(2, device=device))
    assert plain.recomputed_flops == 0
    assert again.flops["backward"] == plain.flops["backward"] + again.recomputed_flops
    assert step_flops(again.spec) == sum(plain.flops.values())  # those of the model
    # All products of both groups but the last of each, whose result nothing needs again.
    spec = again.spec
    blocks = sum(forward for name, (forward, _) in plain.flops_by_range.items() if name != "head")
    assert again.recomputed_flops == blocks - 2 * (2 * spec.tokens_per_step * spec.d_ff * spec.d_model)
    forward = {name: there for name, (there, _) in plain.flops_by_range.items()}
    assert {name: there for name, (there, _) in again.flops_by_range.items()} == forward


def test_a_pass_without_backward_is_the_same_but_for_what_is_kept() -> None:
    plain, grouped = (predict(checkpointed(every, pass_="inference")) for every in (0, 2))
    assert plain.peak_bytes == grouped.peak_bytes
    plain, grouped = (predict(checkpointed(every, pass_="forward")) for every in (0, 2))
    assert plain.flops == grouped.flops
    assert grouped.peak_bytes < plain.peak_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16-mixed"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_peak_of_each_optimizer_is_what_the_allocator_counts(optimizer: str, precision: str) -> None:
    spec = small_spec(
        pass_="train-step", optimizer=optimizer, precision=precision, d_model=64, d_ff=160, vocab_size=2000,
        context_length=4, batch_size=1,
    )  # fmt: skip
    measured, found = cpu_peak(spec), predict(spec)
    assert found.peak_bytes == pytest.approx(measured, abs=64 if precision == "fp32" else 0.01 * measured)
    assert (found.peak_phase == "optimizer") == (optimizer != "adamw-fused")


ITSELF = f"""{GPT}
from torch.utils.checkpoint import checkpoint

class Itself(GPT):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd, reentrant: bool):
        super().__init__(vocab_size, block_size, n_layer, n_head, n_embd)
        for block in self.transformer.h:
            block.forward = lambda x, run=block.forward: checkpoint(run, x, use_reentrant=reentrant)
"""


@pytest.mark.parametrize("reentrant", ["yes", "no"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_model_that_checkpoints_itself_is_predicted_as_it_runs(folder: Path, precision: str, reentrant: str) -> None:
    (folder / "checkpoints_itself.py").write_text(ITSELF)
    torchs_own = getattr(torchs, _GENERATOR), torchs.CheckpointFunction
    spec = small_spec(
        model="checkpoints_itself:Itself", model_args=(("reentrant", reentrant),), model_path=(str(folder),),
        precision=precision, d_model=64, num_heads=4, num_layers=3, vocab_size=100, context_length=128,
    )  # fmt: skip
    found = predict(spec)
    assert found.flops == counted_flops(spec)
    assert found.recomputed_flops > found.flops["forward"] / 2
    # What the kernels take for themselves is not seen; the scores of one layer would be half as much again.
    assert found.peak_bytes == pytest.approx(cpu_peak(spec), rel=0.1)
    assert (getattr(torchs, _GENERATOR), torchs.CheckpointFunction) == torchs_own
    assert torch.is_grad_enabled()
