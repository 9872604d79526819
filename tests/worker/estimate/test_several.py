"""Predictions for several ranks, held against two real ranks on gloo, whose collectives and memory were watched."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.distributed as dist

from cs336_tui.events.prediction import Prediction
from cs336_tui.worker.estimate.predict import predict
from tests.watching import PATIENCE_S
from tests.worker.estimate.ranks_in_turn import spec_of
from tests.worker.workload.own_code import Folder

SHARED = ("ddp", "ddp:1MB", "zero1", "fsdp2", "fsdp2*2")
AS_GLOO = {"all-gather": "gloo:all_gather", "reduce-scatter": "gloo:all_reduce", "all-reduce": "gloo:all_reduce",
           "broadcast": "gloo:broadcast"}  # fmt: skip
"""gloo scatters a reduction by an all-reduce."""
Seen = dict[str, Any]


@cache
def prediction_of(way: str, pass_: str = "train-step") -> Prediction:
    """The prediction for a cell of `spec_of`, made once."""
    return predict(spec_of(way, pass_))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, ...]:
    """The collectives that each of two real ranks saw."""
    folder = tmp_path_factory.mktemp("ranks")
    words = [sys.executable, "-m", "tests.worker.estimate.ranks_in_turn", str(folder), *SHARED, "none"]
    subprocess.run(words, check=True, capture_output=True, timeout=3 * PATIENCE_S)
    return tuple(json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1))


@pytest.mark.parametrize("parallel", SHARED)
def test_calls_and_bytes_are_those_of_real_ranks(parallel: str, ranks: tuple[Seen, ...]) -> None:
    found = {AS_GLOO[each.op]: each for each in prediction_of(parallel).communication}
    for seen in ranks:
        assert {name: each.calls for name, each in found.items()} == seen[parallel]["calls"]
        # gloo is given a rank's share of what it gathers, and else the whole array.
        given = {name: each.bytes // (2 if each.op == "all-gather" else 1) for name, each in found.items()}
        assert given == seen[parallel]["bytes"]


@pytest.mark.parametrize("parallel", ["none", "ddp", "ddp:1MB", "zero1"])
def test_the_peak_is_that_of_the_real_rank_with_most(parallel: str, ranks: tuple[Seen, ...]) -> None:
    most = max(min(seen[parallel]["peaks"]) for seen in ranks)  # others hold more of gloo's and of Python's
    assert prediction_of(parallel).peak_bytes == pytest.approx(most, rel=0.02)


@pytest.mark.parametrize("parallel", ["fsdp2", "fsdp2*2"])
def test_the_sharded_peak_is_that_of_steps_in_which_gloo_frees_a_copy_late(
    parallel: str, ranks: tuple[Seen, ...]
) -> None:
    predicted = prediction_of(parallel).peak_bytes
    shares = [peak / predicted for seen in ranks for peak in seen[parallel]["peaks"]]
    assert min(abs(share - 1) for share in shares) <= 0.02
    assert max(shares) <= 1.05


def test_sharding_divides_what_is_kept_by_the_number_of_ranks_and_categories_add_up() -> None:
    alone = prediction_of("none")
    found = prediction_of("fsdp2")
    assert found.by_category["optimizer_state"] == pytest.approx(alone.by_category["optimizer_state"] / 2, rel=0.001)
    assert found.flops == alone.flops
    assert not dist.is_initialized()
    assert sum(found.by_category.values()) == found.peak_bytes
    assert sum(found.forward_end_by_category.values()) == found.forward_end_bytes


def test_weights_that_are_tied_stay_tied_when_they_are_sharded() -> None:
    alone, found = (
        predict(msgspec.structs.replace(spec_of(parallel), weight_tying="on")) for parallel in ("none", "fsdp2")
    )
    assert found.by_category["optimizer_state"] == pytest.approx(alone.by_category["optimizer_state"] / 2, rel=0.001)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed"])
def test_a_sharded_step_keeps_the_activations_of_cudas_kernels(precision: str) -> None:
    """Its autocast, attention, norm and dropout."""
    dims = {"context_length": 256, "dropout": 0.1, "norm": "torch-rmsnorm", "attention": "sdpa", "device": "cuda:0"}
    alone, found = (
        predict(msgspec.structs.replace(spec_of(parallel), precision=precision, **dims))
        for parallel in ("none", "fsdp2")
    )
    kept = alone.forward_end_by_category["activations"]
    assert found.forward_end_by_category["activations"] == pytest.approx(kept, rel=0.01)


@pytest.mark.parametrize("parallel", ["fsdp2", "fsdp2*2"])
def test_scaled_gradients_are_predicted_as_if_none_overflowed(parallel: str) -> None:
    """The gradient scaler asks for the value of a tensor. It keeps a scale, a count and a mark of overflow."""
    mixed = {name: msgspec.structs.replace(spec_of(parallel), precision=name) for name in ("fp16-mixed", "bf16-mixed")}
    scaled, unscaled = predict(mixed["fp16-mixed"]), predict(mixed["bf16-mixed"])
    assert scaled.peak_phase == unscaled.peak_phase
    assert 0 < scaled.peak_bytes - unscaled.peak_bytes <= 16
    assert scaled.phases["optimizer"].by_category["optimizer_state"] == pytest.approx(
        unscaled.phases["optimizer"].by_category["optimizer_state"]
    )


CLIPPING = """
import torch

class Clipping(torch.optim.AdamW):
    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if torch.nn.utils.get_total_norm(gradients).item() > 1:
            for gradient in gradients:
                gradient.mul_(0.5)
        return super().step(closure)
"""


@pytest.mark.parametrize("parallel", ["none", "ddp", "fsdp2"])
def test_an_optimizer_of_ones_own_may_ask_for_a_value(parallel: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    own = {"optimizer": f"{folder.write(CLIPPING)}:Clipping", "model_path": folder.paths}
    found = predict(msgspec.structs.replace(spec_of(parallel), **own))
    assert found.phases["optimizer"].by_category["optimizer_state"] > 0


def test_many_ranks_are_predicted_as_two_and_micro_batches_are_reduced_once() -> None:
    found = predict(msgspec.structs.replace(spec_of("fsdp2"), ranks=64))
    assert [(each.op, each.calls) for each in found.communication] == [("all-gather", 5), ("reduce-scatter", 3)]
    assert found.peak_bytes < prediction_of("fsdp2").peak_bytes
    found = predict(msgspec.structs.replace(spec_of("ddp"), accumulate=2))
    assert found.communication == prediction_of("ddp").communication


@pytest.mark.parametrize("pass_", ["forward", "backward", "forward+backward"])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2"])
def test_passes_without_optimizer_communicate_what_they_have(parallel: str, pass_: str) -> None:
    used = {each.op: each.calls for each in prediction_of(parallel, pass_).communication}
    # Without a backward what is outside of blocks stays gathered from the first step on.
    gathers = {"forward": {"all-gather": 2}, "backward": {"all-gather": 5, "reduce-scatter": 3}}
    of_pass = "forward" if pass_ == "forward" else "backward"
    copies = {"forward": {"broadcast": 1}, "backward": {"broadcast": 1, "all-reduce": 2}}
    assert used == (gathers if parallel == "fsdp2" else copies)[of_pass]


def test_a_wrapper_of_ones_own_is_said_not_to_be_predicted() -> None:
    folder = str(Path(__file__).parents[2] / "runner" / "ranks")
    spec = msgspec.structs.replace(spec_of("none"), parallel="adapters:get_ddp", model_path=(folder,))
    found: Prediction = predict(spec)
    assert found.communication == ()
    assert "get_ddp" in found.note
    assert torch.is_grad_enabled()


def test_the_copy_of_gloos_reduce_scatter_counts_from_the_first_one_on() -> None:
    blocks_last = msgspec.structs.replace(spec_of("fsdp2"), device="cuda:0")  # where either backend can be
    loss_first = msgspec.structs.replace(blocks_last, num_layers=1, vocab_size=4096, context_length=256)
    with_copy, without = (
        [predict(msgspec.structs.replace(spec, backend=backend)).peak_bytes for spec in (blocks_last, loss_first)]
        for backend in ("gloo", "nccl")
    )
    assert with_copy[0] > without[0]
    assert with_copy[1] == without[1]
