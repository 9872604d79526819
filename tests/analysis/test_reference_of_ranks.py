"""Published times of collectives and of steps of several ranks: how they are read, kept, and set beside a cell's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cs336_tui.analysis.published import COLUMNS, ReferenceFileError, own, parse, published
from cs336_tui.analysis.reference import add_from, matching, sentence
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from tests.samples import a_spec, sized
from tests.session.made import Cell, results_of

FULL = ",".join(COLUMNS)


def of_message(**choices: object) -> CellSpec:
    (spec,) = sweep_from(**{"workload": "collective", "devices": ("cpu",), "warmups": (5,)} | choices).cells()
    return spec


@pytest.mark.parametrize(
    ("size", "ranks", "found"), [("1GB", 6, [1037.66]), ("1000MiB", 6, [1037.66]), ("1GB", 3, []), ("2GB", 6, [])]
)
def test_a_collective_stands_beside_published_ones_of_its_backend_size_and_ranks(
    size: str, ranks: int, found: list[float]
) -> None:
    matches = matching(of_message(sizes=(size,), ranks=(ranks,)), rows=published())
    assert [match.row.mean_ms for match in matches] == found
    said = "; ".join(caveat for match in matches for caveat in match.caveats)
    assert ("size 1000MiB there, 1GB here" in said) == bool(found and size == "1GB")
    assert ("mean over ranks, not the slowest" in said) == bool(found)


def test_a_collective_is_kept_and_found_again(tmp_path: Path) -> None:
    spec, path = of_message(sizes=("10MB",), collectives=("broadcast",)), tmp_path / "reference.csv"
    assert add_from(results_of(Cell(spec, [0.002, 0.004])), "mine", path).left_out == ()
    (match,) = matching(spec, rows=own(path))
    kept = match.row
    assert (kept.op, kept.backend, kept.ranks, kept.size, kept.mean_ms) == ("broadcast", "gloo", 2, "10MB", 3.0)
    assert (kept.pass_, kept.context, kept.batch) == ("", None, None)
    assert matching(a_spec(), rows=own(path)) == ()
    line = sentence(spec, 0.003, [match])
    assert line.startswith("broadcast · 10MB · fp32 · cpu · 2 ranks: 3.00 ms here; 3.00 noted as mine")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("10MB,,,,fp32,5,10,4.2,,,,,,,,,reduce,gloo,2,,", "op reduce: expected one of all-reduce"),
        ("10MB,,,,fp32,5,10,4.2,,,,,,,,,all-reduce,mpi,2,,", "backend mpi: expected one of gloo, nccl"),
        ("small,,,,fp32,5,10,4.2,,,,,,,,,all-reduce,gloo,2,,", "size small: expected a size such as 512KB"),
        ("10MB,,,forward,fp32,5,10,4.2,,,,,,,,,all-reduce,gloo,2,,", "op all-reduce: expected 2 or more ranks"),
        ("10MB,,,,fp32,5,10,4.2,,,,,,,,,all-reduce,gloo,,,", "op all-reduce: expected 2 or more ranks"),
    ],
)
def test_a_damaged_row_of_a_collective_says_what_is_allowed(fields: str, said: str) -> None:
    with pytest.raises(ReferenceFileError, match=f"f.csv, line 2: {said}"):
        parse(f"{FULL}\nme,CPU,2026,{fields}\n", "f.csv")


def two_gpus(parallel: str, **changes: Any) -> CellSpec:
    """The published setting of 2025's xl: 16 sequences on two ranks."""
    fields = {**sized("xl", "2025"), "pass_": "train-step", "context_length": 128, "warmup_steps": 5, "ranks": 2}
    return a_spec(**(fields | {"parallel": parallel, "batch_size": 16, "batch_is": "global"} | changes))


def test_a_step_of_two_ranks_stands_beside_published_ones_of_its_kind() -> None:
    found = matching(two_gpus("my.adapters:get_naive"), rows=published())
    by_way = {match.row.parallel: match for match in found}
    times = {way: match.row.mean_ms for way, match in by_way.items()}
    assert times == {
        "naive": 531.74, "flat": 523.03, "overlap": 509.3, "bucketed:1MB": 510.98, "bucketed:10MB": 509.02,
        "bucketed:100MB": 516.44, "bucketed:1000MB": 512.88,
    }  # fmt: skip
    assert all(match.differences == 0 for match in found)
    said = by_way["naive"].caveats
    assert "naive there, get_naive here" in said
    assert "of it 42.76 ms communication after backward there (8.0 %)" in said
    assert "mean over ranks, not the slowest" in said


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (two_gpus("ddp", batch_size=15, batch_is="per-rank"), "batch of a rank 8 there, 15 here"),
        (two_gpus("ddp", batch_size=2, batch_is="per-rank"), ""),
        (two_gpus("ddp", device="cpu"), "nccl there, gloo here"),
        (two_gpus("ddp", bias="on"), "biases here"),
    ],
)
def test_a_rank_s_batch_its_backend_and_variants_of_the_model_differ(spec: CellSpec, said: str) -> None:
    caveats = [caveat for match in matching(spec, rows=published()) for caveat in match.caveats]
    assert caveats
    assert not said or said in caveats
    assert not [caveat for caveat in caveats if caveat in ("2 ranks here", "ddp here", "global batch here")]


@pytest.mark.parametrize("spec", [two_gpus("none"), two_gpus("ddp", ranks=4), two_gpus("fsdp2")])
def test_other_kinds_and_numbers_of_ranks_have_no_published_step(spec: CellSpec) -> None:
    assert matching(spec, rows=published()) == ()
    assert "number of ranks and way to share a step" in sentence(spec, 0.5, ())


def test_fsdp_and_sharded_optimizers_stand_beside_their_own_kind() -> None:
    xl = {**sized("xl", "2026"), "context_length": 512, "batch_size": 4}
    fsdp = matching(two_gpus("my.adapters:get_fsdp", **xl), rows=published())
    assert [match.row.mean_ms for match in fsdp] == [1353]
    (peak,) = matching(two_gpus("fsdp2", **xl), rows=published(), figure="peak")
    assert peak.row.peak == "39.3 GiB"
    sharded = matching(two_gpus("ddp", optimizer="my.adapters:get_sharded_optimizer", **xl), rows=published())
    assert [(match.row.mean_ms, match.differences) for match in sharded] == [(1313, 0)]


def test_a_step_of_ranks_is_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "reference.csv"
    specs = [two_gpus(way) for way in ("ddp:10MB", "my:get_ddp")]
    left_out = add_from(results_of(*(Cell(spec, [0.2, 0.4]) for spec in specs)), "mine", path).left_out
    assert [line.partition(": reference")[2] for line in left_out] == [
        " points are of torch's own ways to share a step, not get_ddp"
    ]
    (match,) = matching(specs[0], rows=own(path))
    assert (match.row.ranks, match.row.parallel, match.row.batch, match.row.mean_ms) == (2, "ddp:10MB", 8, 300.0)


@pytest.mark.parametrize("ranks_and_way", ["2,", ",ddp", "2,fast"])
def test_a_row_of_ranks_says_how_they_share_a_step(ranks_and_way: str) -> None:
    fields = f"small,128,4,train-step,fp32,5,10,4.2,,,,,,,,,,nccl,{ranks_and_way},"
    with pytest.raises(ReferenceFileError, match=r"f.csv, line 2: parallel .*: expected one of none, naive"):
        parse(f"{FULL}\nme,H100,2026,{fields}\n", "f.csv")
