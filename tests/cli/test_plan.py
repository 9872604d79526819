"""`cs336-tui plan` as people and scripts call it."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from cs336_tui.config.flops import step_flops
from cs336_tui.config.problems import PROBLEMS
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import bytes_per_s_of, flops_per_s_of, rank_counts_of
from cs336_tui.session.log import SessionLog
from tests.analysis.test_scaling import events_of, message
from tests.commands import call
from tests.samples import a_spec

LAYER = "plan --d-model 1000 --d-ff 4000 --num-layers 2 --num-heads 10 --context 500 --batch 16 --part ffn".split()
SLOW = ["--flops", "1e15", "--link", "1000GB/s"]


def test_json_has_limits_and_a_row_for_each_number_of_ranks() -> None:
    """By hand: computation 12 B D D_FF / (4 C), communication 2 x 3/4 x 6 D D_FF / W."""
    (found,) = json.loads(call(*LAYER, *SLOW, "--ranks", "2,4", "--format", "json").stdout)["plans"]

    assert [limit["most"] for limit in found["limits"]] == [9, 9, 7, 63]
    assert [row["ranks"] for row in found["rows"]] == [2, 4]
    backward = found["rows"][1]["strategies"]["dp"]
    assert backward["backward_compute_s"] == pytest.approx(12 * 8000 * 4e6 / 4e15)
    assert backward["backward_communication_s"] == pytest.approx(1.5 * 24e6 / 1e12)
    assert backward["backward_bound"] == "compute"


def test_a_gpu_has_the_speed_of_its_data_sheet_and_numbers_of_the_precisions_width() -> None:
    words = ["plan", "--size", "xl", "--gpu", "H100", "--link", "450GB/s", "--format", "json", "--precision"]
    (half,) = json.loads(call(*words, "bf16").stdout)["plans"]
    (single,) = json.loads(call(*words, "fp32").stdout)["plans"]

    assert (half["flops_per_s"], half["link_bytes_per_s"]) == (989.4e12, 450e9)
    assert single["flops_per_s"] == 67e12
    assert single["weight_bytes"] == 2 * half["weight_bytes"]
    assert [row["ranks"] for row in half["rows"]] == [2**power for power in range(11)]
    (without,) = json.loads(call(*"plan --size xl --gpu A100 --format json".split()).stdout)["plans"]
    assert without["link_bytes_per_s"] == 300e9
    assert "300 GB/s, NVLink of A100 SXM 80GB by its data sheet" in without["sources"]


def test_figures_are_written(tmp_path: Path) -> None:
    call(*LAYER, *SLOW, "--figures", str(tmp_path / "figures"))

    (svg,) = (tmp_path / "figures").glob("*.svg")
    assert all(name in svg.read_text() for name in ("computation", "FSDP+TP communication", "forward", "backward"))


def kept(folder: Path, name: str, cells: Iterable[tuple[CellSpec, float]]) -> None:
    SessionLog(folder / f"{name}.jsonl").write(events_of(cells))


def test_a_measured_session_takes_the_place_of_link_and_gpu(tmp_path: Path) -> None:
    kept(tmp_path, "links", [(message("all-reduce", "100MB", 4, devices=("cuda:0",)), 0.2)])  # 0.5 GB/s x 2 x 3/4
    kept(tmp_path, "cells", [(a_spec(), 0.1)])
    words = ["plan", "--size", "small", "--precision", "fp32", "--session-dir", str(tmp_path)]
    (found,) = json.loads(call(*words, *"--measured links --measured cells --format json".split()).stdout)["plans"]

    assert found["link_bytes_per_s"] == found["all_gather_bytes_per_s"] == pytest.approx(0.75e9)
    assert found["flops_per_s"] == pytest.approx(step_flops(a_spec()) / 0.1)
    assert any("all-gather: not measured, as all-reduce: nccl, 4 ranks, 100MB" in each for each in found["sources"])
    mixed = call(*words, *"--measured links --gpu H100".split()).stdout
    assert "0.75 GB/s busbw of all-reduce" in mixed
    assert "67 TFLOP/s: dense fp32 of H100" in mixed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--measured cells", "run cs336-tui comm"),
        ("--measured links", "run cs336-tui peak --precision fp32"),
        ("--measured links --precision bf16", "run cs336-tui peak --precision bf16"),
        ("--measured links --link 1GB/s --gpu H100", "leave one"),
        ("--measured nothing", "cs336-tui sessions"),
    ],
)
def test_a_session_that_lacks_what_is_asked_says_what_to_run(tmp_path: Path, words: str, said: str) -> None:
    kept(tmp_path, "links", [(message("all-reduce", "1MB", 2), 0.2)])
    kept(tmp_path, "cells", [(a_spec(), 0.1)])
    done = call(*"plan --size small --precision fp32 --session-dir".split(), str(tmp_path), *words.split())

    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_rates_and_numbers_of_ranks() -> None:
    assert bytes_per_s_of("450GB/s") == 450e9
    assert bytes_per_s_of("400 Gb/s") == bytes_per_s_of("400Gbit/s") == 50e9
    assert flops_per_s_of("700TFLOP/s") == flops_per_s_of("700T") == flops_per_s_of("7e14") == 7e14
    assert rank_counts_of("1..1024") == tuple(2**power for power in range(11))
    assert rank_counts_of("6,1..5") == (1, 2, 4, 5, 6)


def test_an_estimate_of_several_ranks_says_what_they_communicate() -> None:
    """By hand: a step's gradients are all-reduced once, 2 x 7/8 of their bytes over the link."""
    dims = "--d-model 32 --d-ff 64 --num-layers 1 --num-heads 2 --vocab-size 64 --context 8 --batch 1".split()
    words = ["estimate", *dims, *"--gpu H100 --pass train-step --ranks 8 --parallel ddp --link 1GB/s".split()]
    (found,) = json.loads(call(*words, "--format", "json").stdout)["estimates"]
    reduced = next(each for each in found["communication"] if each["op"] == "all-reduce")

    assert reduced["calls"] == 1
    assert reduced["bytes"] == 4 * found["num_params"]
    assert reduced["least_s"] == pytest.approx(2 * 7 / 8 * reduced["bytes"] / 1e9)
    said = call(*words).stdout
    assert "What a rank communicates in a step" in said
    assert "all-reduce" in said


def test_the_accounting_of_a_mesh_is_that_of_the_handout() -> None:
    """By hand, of 2025's communication_accounting: P = 2 x 126 x 16384 x 53248, alpha = C / W = 2555.6."""
    words = next(row for row in PROBLEMS if row.name == "communication_accounting").parts[0].command.split()[1:]
    found = json.loads(call(*words, "--format", "json").stdout)["accounting"]
    values = {(each["part"], each["quantity"]): each["value"] for each in found}
    numbers, alpha = 219_848_638_464, 4.6e14 / 1.8e11
    saved = 2 * 126 * (16384 + 53248)
    assert values["a", "all three"] == 16 * numbers
    assert values["a", "saved for backward"] == saved
    assert values["a", "devices of 80 GB"] == 44
    assert values["b", "N_FSDP for less than 95 GB"] == 38
    assert values["c", "whole batch, axes overlap"] == pytest.approx(16 * alpha / 2)
    assert values["c", "batch a device, axes overlap"] == pytest.approx(alpha / 8)
    assert values["c", "whole batch, axes add up"] == pytest.approx(8 * alpha / (1 - 4 * alpha / 53248))
    assert "B >= X C / (W M_X)" in call(*words).stdout
    assert call(*"plan --size xl --gpu H100 --mesh 16:2".split()).returncode == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mesh 16x4:2x1 --ranks 4", "--mesh takes no --ranks"),
        ("--mesh 16x4:2x1 --part ffn", "--mesh takes no --part"),
        ("--mesh 16x4:2x1 --shared-link", "--mesh takes no --shared-link"),
        ("--mesh 16x4:2x1 --figures charts", "--mesh takes no --figures"),
        ("--memory 80GB", "--memory is of --mesh"),
        ("--mesh 16x4:2x1 --memory 0GB", "expected a size such as 80GB"),
    ],
)
def test_options_that_a_mesh_or_a_plan_ignores_are_refused(words: str, said: str) -> None:
    done = call(*"plan --size xl --gpu H100".split(), *words.split())
    assert (done.returncode, said in done.stderr) == (2, True)
