"""Reference points: published figures are read unchanged, matched by settings, and always marked."""

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cs336_tui.analysis.published import COLUMNS, Figure, Published, ReferenceFileError, own, parse, published
from cs336_tui.analysis.reference import add_from, matching, sentence
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec, dims_of
from cs336_tui.events.events import EffectiveSettings
from tests.samples import a_spec, sized
from tests.session.made import Cell, cell, results_of

OURS = {
    "naive": "ddp", "flat": "ddp", "overlap": "ddp", "bucketed": "ddp", "sharded-optimizer": "zero1", "fsdp": "fsdp2",
}  # fmt: skip
"""torch's way to share a step of each published one's kind."""
FIGURES: tuple[Figure, ...] = get_args(Figure)
DIMS_27B = {name: getattr(dims_of("2.7B", "2025"), name) for name in ("d_model", "d_ff", "num_layers", "num_heads")}


def a_row(**changes: object) -> Published:
    row = Published(
        source="someone", device="A100", edition="2026", size="small", context=512, batch=4, pass_="forward",
        precision="fp32", warmup=5, steps=10, mean_ms=44.4, std_ms=None,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def here(**changes: object) -> CellSpec:
    """The cell that `a_row` is of, with changes."""
    fields = {"pass_": "forward", "context_length": 512, "warmup_steps": 5, "measure_steps": 10}
    return a_spec(**(fields | changes))


def test_the_published_points_are_all_there_with_their_sources() -> None:
    timed = [row for row in published() if row.holds("time")]
    rows = [row for row in timed if not row.op]
    assert len(rows) == 166 + 19
    assert all(row.source and row.device and row.mean_ms and not row.own for row in timed)
    assert len({row.source for row in rows}) == 9 + 1
    collectives = [(row.backend, row.ranks, row.size, row.mean_ms) for row in timed if row.op == "all-reduce"]
    assert len(collectives) == len(set(collectives)) == len(timed) - len(rows) == 32
    assert {("nccl", 6, "1000MiB", 4.15), ("gloo", 4, "10MiB", 15.07), ("nccl", 4, "1GB", 45.3239)} <= {*collectives}
    assert len([row for row in published() if row.holds("peak")]) == 58 + 6
    assert len([row for row in published() if row.holds("kernels")]) == 76
    assert all(row.source and row.device and sum(map(row.holds, FIGURES)) == 1 for row in published())


def test_the_peaks_and_kernels_of_the_write_up_that_states_them() -> None:
    """B. and C. of its memory profiling, B. of its kernels: 46, 53 and 70 GB in the forward, always 55 by the optimizer
    step, 67 with mixed precision; 145 launches with 46.8 % of the forward of large at context 1024."""
    rows = [row for row in published() if row.source == "write-up A (2025)" and not row.holds("time")]
    peaks = {(row.context, row.precision, row.part): row.peak for row in rows if row.peak}
    assert peaks == {
        (128, "fp32", "forward"): "46 GB", (256, "fp32", "forward"): "53 GB", (512, "fp32", "forward"): "70 GB",
        (128, "fp32", "optimizer"): "55 GB", (256, "fp32", "optimizer"): "55 GB", (512, "fp32", "optimizer"): "55 GB",
        (512, "bf16-mixed", "forward"): "67 GB", (512, "bf16-mixed", "optimizer"): "55 GB",
    }  # fmt: skip
    assert {(row.size, row.pass_) for row in rows if row.peak} == {("2.7B", "train-step")}
    top = [(row.size, row.context, row.part, row.top_launches, row.top_percent) for row in rows if row.top_kernel]
    assert top == [("large", 1024, "forward", 145, 46.8), ("large", 1024, "", None, 17.0)]


def test_published_peaks_of_one_nominal_cell_differ_as_is_known() -> None:
    """Forward peaks of 2.7B at context 512 in fp32 run from 13.4 to 70 GB there."""
    dims = dims_of("2.7B", "2025")
    found = [
        row
        for row in published()
        if row.peak and dims_of(row.size, row.edition) == dims and (row.context, row.precision) == (512, "fp32")
        and (row.pass_ in ("inference", "forward") or row.part == "forward")
    ]  # fmt: skip
    figures = sorted(float(row.peak.split()[0]) for row in found)
    assert (figures[0], figures[-1]) == (13.42, 70)


def test_no_published_peak_is_below_what_its_parameters_take() -> None:
    for row in published():
        if row.peak_bytes:
            dims = dims_of(row.size, row.edition)
            assert row.peak_bytes > dims.num_layers * 4 * (4 * dims.d_model**2 + 3 * dims.d_model * dims.d_ff), row


def test_points_of_one_figure_are_not_those_of_another() -> None:
    for text, size in (("46 GB", 46 * 10**9), ("18.053 GiB", round(18.053 * 2**30)), ("0.5 GB", 5 * 10**8)):
        assert a_row(peak=text).peak_bytes == size
    rows = (a_row(), a_row(mean_ms=None, peak="13.6 GB"), a_row(mean_ms=None, top_kernel="gemm", top_launches=3))
    assert [len(matching(here(), rows=rows, figure=figure)) for figure in FIGURES] == [1, 1, 1]
    (match,) = matching(here(warmup_steps=0, sync="pipelined"), rows=rows, figure="peak")
    assert match.differences == 0, "neither the warm-up nor the synchronisation changes a peak"
    inside = a_row(mean_ms=None, top_kernel="gemm", pass_="train-step", part="forward")
    assert matching(here(), rows=[inside], figure="kernels") == ()
    (match,) = matching(here(), rows=[inside], figure="kernels", any_pass=True)
    assert (match.caveats, match.differences) == (("pass train-step there",), 0)


def test_every_published_point_is_found_by_a_cell_of_its_own() -> None:
    for row in (row for row in published() if row.holds("time") and not row.op):
        spec = here(
            size=row.size, edition=row.edition, arch=row.arch, pass_=row.pass_, batch_size=row.batch or 4,
            ranks=row.ranks or 1, parallel=OURS.get(row.parallel.partition(":")[0], "none"),
            context_length=row.context or 256, warmup_steps=row.warmup or 0, measure_steps=row.steps or 10,
            precision="bf16-mixed" if row.precision == "mixed" else row.precision,
            **{name: getattr(dims_of(row.size, row.edition), name) for name in DIMS_27B},
        )  # fmt: skip
        (match,) = matching(spec, rows=[row])
        unstated = sum(value is None for value in (row.context, row.batch, row.warmup)) + (row.precision == "mixed")
        assert match.differences == unstated


def test_a_published_forward_stands_beside_a_forward_with_its_loss_too() -> None:
    (match,) = matching(here(pass_="forward+loss"), rows=[a_row()])
    assert match.caveats == ("pass forward there",)
    assert matching(here(), rows=[a_row(pass_="forward+loss")]) == ()
    assert matching(here(pass_="inference"), rows=[a_row()]) == (), "another pass is never a match"
    (match,) = matching(here(), EffectiveSettings(matmul_precision="high", allow_tf32=True), rows=[a_row()])
    assert match.caveats == ("TF32 was in force here",)


def test_an_exact_match_comes_alone_and_others_only_where_there_is_none() -> None:
    rows = (a_row(context=256), a_row(mean_ms=16.3, device="B200"), a_row())
    assert [match.row.device for match in matching(here(), rows=rows)] == ["B200", "A100"]
    assert all(match.differences == 0 and match.caveats == () for match in matching(here(), rows=rows))
    (match,) = matching(here(), rows=rows[:1])
    assert match.caveats == ("context 256 there, 512 here",)
    assert match.differences


@pytest.mark.parametrize(
    ("row", "spec", "said"),
    [
        ({"context": 256}, {}, "context 256 there, 512 here"),
        ({"context": None}, {}, "context unstated there"),
        ({"batch": 16}, {}, "batch 16 there, 4 here"),
        ({"warmup": 0}, {}, "warm-up 0 there, 5 here"),
        ({"precision": "bf16-mixed"}, {}, "bf16-mixed there, fp32 here"),
        ({"precision": "mixed"}, {"precision": "bf16-mixed"}, "mixed with what is unstated there, bf16-mixed here"),
        ({}, {"vocab_size": 32_000}, "vocabulary 10.0k there, 32.0k here"),
        ({}, {"sync": "pipelined"}, "synchronised each step there, pipelined here"),
        ({"edition": "2024"}, {}, "gelu-learned there, swiglu-rope here"),
    ],
)
def test_what_changes_a_time_is_a_caveat(row: dict[str, object], spec: dict[str, object], said: str) -> None:
    (match,) = matching(here(**spec), rows=[a_row(**row)])
    assert said in match.caveats
    assert match.differences == 1


def test_what_changes_no_time_is_said_too() -> None:
    (match,) = matching(here(measure_steps=20), rows=[a_row(edition="2025", note="batch assumed")])
    assert match.differences == 0
    assert match.caveats == ("edition 2025 there", "10 steps there", "batch assumed")


def test_dimensions_decide_and_not_names() -> None:
    row = a_row(edition="2025", size="2.7B")
    xl_2026 = here(size="xl", **DIMS_27B)
    (match,) = matching(xl_2026, rows=[row])
    assert match.caveats == ("edition 2025 there, where it is called 2.7B",)
    assert matching(xl_2026, rows=[a_row(edition="2025", size="xl")]) == ()
    assert len(matching(here(size="custom"), rows=[a_row()])) == 1


def test_a_sentence_says_here_then_there() -> None:
    rows = [a_row(device="a Hopper-like GPU", mean_ms=15.797), a_row(edition="2025")]
    assert sentence(here(), 0.0161, matching(here(), rows=rows)) == (
        "small forward fp32: 16.1 ms here; 15.8 published on a Hopper-like GPU; 44.4 on A100 (edition 2025 there)"
    )
    assert sentence(here(), 1.25, ()).endswith("1250 ms here; nothing published for this size and pass")


def test_own_points_are_kept_and_matched(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "reference.csv"
    assert own(path) == ()
    results = results_of(
        Cell(here(), [0.1, 0.2]), Cell(here(), [0.3, 0.4], repeat=2), cell(status="oom", pass_="backward"),
        cell([0.1], size="custom"), cell([0.1], vocab_size=64), cell([0.1], arch="gelu-learned"),
        cell([0.1], sync="pipelined"),
    )  # fmt: skip
    added = add_from(results, "my, box", path)
    assert [line.rpartition(": ")[2] for line in added.left_out] == [
        "OOM", "a custom size has no name to find it by", "reference points have vocabulary 10,000, not 64",
        "reference points of edition 2026 are swiglu-rope, not gelu-learned",
        "reference points are synchronised each step, not pipelined",
    ]  # fmt: skip
    (row,) = own(path)
    assert row == added.rows[0]
    assert (row.source, row.device, row.mean_ms, row.note) == ("my, box", "NVIDIA H100 80GB HBM3", 250.0, "2 runs")
    assert row.peak_bytes == 1_000_000_000
    assert [match.row for match in matching(here(), rows=own(path), figure="peak")] == [row]
    (match,) = matching(here(), rows=own(path))
    assert match.differences == 0
    assert "250 noted as my, box on NVIDIA H100" in sentence(here(), 0.2, [match])
    add_from(results, "again", path)
    assert [row.source for row in own(path)] == ["my, box", "again"]


def test_what_cannot_be_kept_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "reference.csv"
    good = results_of(cell([0.1]))
    add_from(good, "mine", path)
    before = path.read_bytes()
    for results, title, said in (
        (good, "mine", "exist already"),
        (good, " ", "need a title"),
        (results_of(cell(status="oom")), "other", "nothing to keep: .* OOM"),
        ((), "other", "nothing to keep: no cells"),
    ):
        with pytest.raises(ReferenceFileError, match=said):
            add_from(results, title, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


HEADER = ",".join(COLUMNS[:13])
"""The columns of step times, which older files have alone."""
FULL = ",".join(COLUMNS)
PROFILES = ",".join(COLUMNS[:19])
"""The columns without those of collectives, which older files lack too."""
PROFILED = "me,A100,2026,small,512,4,forward,fp32,,,,,,forward"
GOOD = "me,A100,2026,small,512,4,forward,fp32,5,10,44.4,,"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source,device\nme,A100\n", "f.csv, line 1: no column edition: expected source, device"),
        (f"{HEADER},colour\n", "f.csv, line 1: unknown column colour"),
        (f"{HEADER}\n{GOOD}\n{GOOD.replace('44.4', 'fast')}\n", "f.csv, line 3: mean_ms fast: expected milliseconds"),
        (f"{HEADER}\n{GOOD.replace('44.4', '')}\n", "f.csv, line 2: mean_ms is empty"),
        (f"{HEADER}\n{GOOD.replace('44.4', 'nan')}\n", "f.csv, line 2: mean_ms nan: expected milliseconds"),
        (f"{HEADER}\n{GOOD.replace('512', 'many')}\n", "f.csv, line 2: context many: expected a whole number"),
        (f"{HEADER}\n{GOOD.replace('forward', 'sideways')}\n", "f.csv, line 2: pass sideways: expected one of inf"),
        (f"{HEADER}\n{GOOD.replace('small', '2.7B')}\n", "f.csv, line 2: size 2.7B: edition 2026 has"),
        (f"{HEADER}\n{GOOD},\n", "f.csv, line 2: expected 13 fields"),
        (f"{HEADER}\nme,A100\n", "f.csv, line 2: expected 13 fields"),
        ("", "f.csv, line 1: no column source"),
        (f"{PROFILES}\n{PROFILED},46,,,,\n", "f.csv, line 2: peak 46: expected a number of GB or GiB"),
        (f"{PROFILES}\n{PROFILED},46 TB,,,,\n", "f.csv, line 2: peak 46 TB: expected"),
        (f"{PROFILES}\n{PROFILED},,,many,,\n", "f.csv, line 2: top_launches many: expected a whole number"),
        (f"{PROFILES}\n{PROFILED},,gemm,3,146,\n", "f.csv, line 2: top_percent 146: expected 0 to 100"),
        (f"{PROFILES}\n{PROFILED},,,3,,\n", "f.csv, line 2: mean_ms is empty, and so are peak"),
        (
            f"{PROFILES}\n{PROFILED.replace('forward,fp32', 'train-step,fp32')}x,46 GB,,,,\n",
            "f.csv, line 2: part forwardx",
        ),
        *(
            (f"{FULL}\nme,CPU,2026,{fields},5,10,4.2,,,,,,,,,{of_ranks},,\n", f"f.csv, line 2: {said}")
            for fields, of_ranks, said in (
                ("10MB,,,,fp32", "reduce,gloo,2,", "op reduce: expected one of all-reduce"),
                ("10MB,,,,fp32", "all-reduce,mpi,2,", "backend mpi: expected one of gloo, nccl"),
                ("small,,,,fp32", "all-reduce,gloo,2,", "size small: expected a size such as 512KB"),
                ("10MB,,,forward,fp32", "all-reduce,gloo,2,", "op all-reduce: expected 2 or more ranks"),
                ("10MB,,,,fp32", "all-reduce,gloo,,", "op all-reduce: expected 2 or more ranks"),
                ("small,128,4,train-step,fp32", ",nccl,2,", "parallel : expected one of none, naive"),
                ("small,128,4,train-step,fp32", ",nccl,,ddp", "parallel ddp: expected one of none, naive"),
                ("small,128,4,train-step,fp32", ",nccl,2,fast", "parallel fast: expected one of none, naive"),
            )
        ),
    ],
)
def test_a_damaged_file_names_the_line(text: str, said: str) -> None:
    with pytest.raises(ReferenceFileError) as error:
        parse(text, "f.csv")
    assert str(error.value).startswith(said)


def test_a_sentence_names_the_model_and_how_it_is_run_and_of_one_s_own_no_architecture() -> None:
    (match,) = matching(here(model="mine:GPT"), rows=[a_row(edition="2024")])
    assert match.caveats[:1] == ("GPT here",)
    assert not any("swiglu-rope" in caveat for caveat in match.caveats)
    own_model = here(model="my.model:GPT", model_args=(("bias", "false"),), compile="default")
    assert sentence(own_model, 0.0161, ()).startswith("small forward fp32, GPT, bias=false, compiled: 16.1 ms here; ")


def test_a_file_of_step_times_alone_is_still_read_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "reference.csv"
    path.write_text(f"{HEADER}\n{GOOD}\n")
    (before,) = own(path)
    assert (before.mean_ms, before.peak, before.top_kernel) == (44.4, "", "")
    add_from(results_of(cell([0.1])), "mine", path)
    assert own(path)[0] == before
    assert path.read_text().splitlines()[0] == FULL


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
