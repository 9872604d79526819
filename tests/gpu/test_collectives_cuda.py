"""Collectives between two CUDA GPUs: NCCL, and gloo on tensors of the GPUs, which it copies through the host."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from cs336_tui.config.rules import AXES
from tests.commands import call

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")

OPERATIONS = ",".join(AXES["collective"].values)


def comm(folder: Path, *words: str) -> list[dict[str, Any]]:
    usual = "--ranks 2 --device cuda --warmup 3 --steps 10 --format json".split()
    done = call("comm", *usual, *words, "--session-dir", str(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    runs: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    assert [run["status"] for run in runs] == ["ok"] * len(runs), [run["error"] for run in runs]
    return runs


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_operation_brings_the_right_numbers_and_is_timed(backend: str, precision: str, tmp_path: Path) -> None:
    """Each is checked before it is timed: a cell whose numbers are wrong fails."""
    runs = comm(tmp_path, "--op", OPERATIONS, "--size", "4MB", "--backend", backend, "--dtype", precision)
    assert len(runs) == len(AXES["collective"].values)
    for run in runs:
        assert [len(times) for times in run["rank_times_s"]] == [10, 10]
        assert run["step_times_s"] == [max(step) for step in zip(*run["rank_times_s"], strict=True)]
        assert run["busbw_bytes_per_s"] > 0


@pytest.mark.real_numbers
def test_a_step_holds_the_transfer_and_not_its_launch_alone(tmp_path: Path) -> None:
    """Without a synchronisation a gigabyte would take no longer than a kilobyte."""
    small, large = comm(tmp_path, "--size", "1KB,1GB", "--backend", "nccl")
    assert median(large["step_times_s"]) > 10 * median(small["step_times_s"])
    assert large["busbw_bytes_per_s"] < 2e12  # more than any link of today's


def test_the_message_is_on_each_gpu_and_counted_once(tmp_path: Path) -> None:
    (run,) = comm(tmp_path, "--size", "512MiB", "--backend", "nccl")
    assert [pytest.approx(peak, rel=0.1) for peak in run["rank_peak_bytes"]] == [512 * 2**20] * 2


def test_a_message_without_room_is_out_of_memory_and_names_its_rank(tmp_path: Path) -> None:
    words = "--ranks 2 --device cuda --backend nccl --size 1TB,1MB --warmup 1 --steps 2 --format json".split()
    done = call("comm", *words, "--session-dir", str(tmp_path), cwd=tmp_path)
    small, large = json.loads(done.stdout)["runs"]
    assert (small["status"], large["status"]) == ("ok", "oom")
    assert large["error"].startswith("rank ")
