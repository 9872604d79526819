"""Presets: the bundled ones match the handouts, a person's own are read in the same way; recent models are kept."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given

from cs336_tui.config.choices import command_of, sweep_from
from cs336_tui.config.presets import (
    FORMER,
    MOST_RECENT,
    QUICK,
    Preset,
    PresetError,
    RecentModel,
    all_presets,
    bundled,
    from_toml,
    models_in,
    preset,
    recent_models,
    remember,
    save,
    to_toml,
)
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import LaneCount, Sweep
from tests.strategies import automatic_sweeps, sweeps

EXPECTED = {
    "quick": 3,
    "2026/benchmarking_script": 15,
    "2026/torch_compile": 5 * 3 * 2,
    "2026/attention": 4 * 5 * 2 * 2 * 2,
    "2026/pytorch_attention": 4 * 5 * 2,
    "2026/compiled_attention": 4 * 5 * 2 * 2,
    "2026/flash_benchmarking": 4 * 10 * 3 * 2 * 2,
    **{
        f"{edition}/{name}_benchmarking": 2 * (5 if edition == "2024" else 1)
        for edition in ("2024", "2025", "2026")
        for name in ("naive_ddp", "minimal_ddp_flat", "ddp_overlap_individual_parameters")
    },
    **{f"{edition}/optimizer_state_sharding_accounting": 2 for edition in ("2024", "2025", "2026")},
    "2024/sharded_sizes": 5 * 2,
    "2024/ddp_bucketed_benchmarking": 3 * 5 * 2,
    "2025/ddp_bucketed_benchmarking": 4,
    "2026/fsdp_accounting": 2,
    "2026/leaderboard": 1,
    "2026/gradient_checkpointing": 7 * 2,
    "2026/nested_checkpointing": 3 * 2,
    "2026/optimizers": 2 * 3,
    "2026/warmup": 60,
    "2026/end_to_end": 5 * 4 * 3,
    "2026/nsys_profile": 2 * 3 * 3,
    "2026/mixed_precision_accumulation": 1,
    "2026/benchmarking_mixed_precision": 30,
    "2026/memory_profiling": 8,
    "2025/benchmarking_script": 10,
    "2025/warmup": 30,
    "2025/end_to_end": 30,
    "2025/contexts": 40,
    "2025/nsys_profile": 5 * 4 * 3,
    "2025/mixed_precision_accumulation": 1,
    "2025/benchmarking_mixed_precision": 20,
    "2025/memory_profiling": 12,
    "2025/pytorch_attention": 4 * 5 * 2,
    "2025/torch_compile": 5 * 3 * 2,
    "2025/flash_benchmarking": 4 * 10 * 3 * 2 * 2,
    "2025/leaderboard": 2 * 2,
    "2024/timeit": 24,
    "2024/benchmarking_script": 10,
    "2024/warmup": 20,
    "2024/function_call_table": 3,
    "2024/flame_graph": 1,
    "2024/benchmarking_mixed_precision": 20,
    "2024/torch_compile": 5 * 3 * 2,
    "2024/memory_profiling": 5 * 2 * 2,
    "2024/pytorch_layernorm": 4 * 2,
    "2024/rmsnorm_forward_benchmarking": 4 * 3,
    "2024/rmsnorm_benchmarking": 4 * 3,
    "2024/compiled_norm": 4 * 2 * 2 * 2,
    "2024/norms": 5 * 2 * 3,
    "2024/all_reduce": 7 * 3,
    "2025/all_reduce": 4 * 3,
    "2026/all_reduce": 4 * 3,
    "8gb": 20,
    "devices": 10,
}
"""Number of cells by preset, `every` device counted as one."""


def test_every_edition_has_its_presets() -> None:
    counts = {preset.name: len(preset.sweep) for preset in bundled()}
    assert counts == EXPECTED
    assert next(iter(bundled())) == QUICK


@pytest.mark.parametrize(
    ("name", "passes", "precisions", "warmups", "steps"),
    [
        ("2025/end_to_end", ("forward", "forward+backward"), ("fp32",), (0, 2, 5), 10),
        ("8gb", ("forward", "backward"), ("fp32",), (0, 1), 10),
        ("2024/timeit", ("forward+loss", "backward", "forward+backward"), ("fp32", "fp16-mixed"), (0, 1), 5),
        ("devices", ("forward", "forward+backward"), ("fp32",), (1,), 5),
    ],
)
def test_published_write_ups_can_be_repeated(
    name: str, passes: tuple[str, ...], precisions: tuple[str, ...], warmups: tuple[int, ...], steps: int
) -> None:
    sweep = preset(name).sweep
    assert (sweep.passes, sweep.precisions, sweep.warmups, sweep.steps) == (passes, precisions, warmups, steps)
    every = ("small", "medium") if name == "2024/timeit" else ("small", "medium", "large", "xl", "2.7B")
    assert (sweep.edition, sweep.sizes) == (name[:4] if name[:2] == "20" else "2025", every)


@pytest.mark.parametrize("each", bundled(), ids=lambda each: each.name)
def test_every_cell_of_a_bundled_preset_can_be(each: Preset) -> None:
    assert each.about
    assert len(each.sweep.with_devices(("cuda:0",)).cells()) == len(each.sweep)
    assert from_toml(each.name, to_toml(each)) == each
    assert preset(each.name) is each


@given(sweep=sweeps() | automatic_sweeps())
def test_a_saved_preset_is_read_back(sweep: Sweep) -> None:
    # The vocabulary of named sizes is not said where raw dimensions say it.
    found = from_toml("mine", to_toml(Preset("mine", "about it", sweep))).sweep
    canonical = found.with_devices(("cpu",)).cells()
    assert canonical == sweep.with_devices(("cpu",)).cells()
    assert found.devices == sweep.devices


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sizes = ['small']", "unknown key sizes: did you mean size"),
        ("size = 3", "size 3: expected a text"),
        ("steps = 'ten'", "steps ten: expected a whole number"),
        ("steps = true", "steps True: expected a whole number"),
        ("size = 'huge'", "size huge: edition 2026 has tiny, small"),
        ("edition = '1999'", "edition 1999: expected one of 2024"),
        ("context = [128, 128]", "names the same value twice"),
        ("warmup = 'soon'", 'warmup soon: expected a whole number or "auto"'),
        ("warmup = ['auto', 5]", "warmup auto,5: auto stands alone"),
        ("warmup = 'auto:9'", "warmup steps auto:9: expected auto, or auto:MAX with the most steps, at least 10"),
        ("steps = 'auto:x'", "measure steps auto:x: expected auto, or auto:MAX with the most steps, at least 20"),
        ("interval = 0.01", 'interval 0.01: is for steps = "auto"'),
        ("steps = 'auto'\ninterval = 5", "interval 5: expected a share of the mean such as 1% or 0.01"),
        ("steps = 'auto'\nsync = 'pipelined'", "sync pipelined: a number of steps that is not fixed needs each-step"),
        ("steps = 0", "measure steps 0: expected a whole number, at least 1"),
        ("d_model = 64", "raw dimensions incomplete: d_ff, num_layers, num_heads missing"),
        ("size = ", "not TOML"),
        ('attention = "fast"', "attention fast: expected one of naive, sdpa"),
        ("causal = 1", "causal 1: expected true or false"),
        ('model_arg = ["rope"]', "model arg rope: expected a list of texts as name=value"),
        ("checkpoint = true", "checkpoint True: expected a whole number"),
        ('workload = "attention"\npass = "train-step"', "pass train-step: attention alone has nothing to train"),
        ("oom_skip = 1", "oom skip 1: expected true or false"),
        ('reports = "pictures"', "reports pictures: expected one of kernels, memory, precision"),
        ('lanes = "two"', "lanes two: expected a whole number"),
        ("lanes = 0", "lanes 0: expected a whole number"),
        ("lanes = true", "lanes True: expected a whole number"),
    ],
)
def test_what_is_wrong_with_a_preset_is_said_in_one_line(text: str, says: str) -> None:
    with pytest.raises(PresetError, match=says) as caught:
        from_toml("mine", text)
    assert str(caught.value).startswith("preset mine: ")
    assert "\n" not in str(caught.value).replace("not TOML", "")


def test_former_names_still_find_their_presets() -> None:
    for former, name in FORMER.items():
        assert all_presets().find(former) == preset(name)
        assert former not in EXPECTED


def test_a_preset_names_reports_and_presets_that_belong_to_it() -> None:
    found = from_toml("mine", 'reports = ["kernels", "memory"]\nalso = "2026/warmup"')
    assert (found.sweep.reports, found.also) == (("kernels", "memory"), ("2026/warmup",))
    assert "--reports kernels,memory" in command_of(found.sweep)
    assert from_toml("mine", to_toml(found)) == found
    for each in bundled():
        assert {all_presets().find(name).name for name in each.also} == set(each.also)


def test_a_preset_may_try_every_cell_after_one_ran_out_of_memory() -> None:
    assert not preset("8gb").sweep.oom_skip
    assert preset("devices").sweep.oom_skip
    assert sweep_from(preset_name="8gb", oom_skip=True).oom_skip
    assert not sweep_from(preset_name="8gb", oom_skip=None).oom_skip


def test_automatic_counts_are_said_as_flags_say_them() -> None:
    text = 'warmup = "auto"\nsteps = "auto:200"\ninterval = "2%"'
    sweep = from_toml("mine", text).sweep
    assert (sweep.warmup_auto, sweep.warmups) == (True, (100,))
    assert (sweep.steps_auto, sweep.steps) == (0.02, 200)
    saved = to_toml(Preset("mine", "", sweep))
    assert {'warmup = "auto"', 'steps = "auto:200"', "interval = 0.02"} <= set(saved.splitlines())


def test_own_presets_join_and_replace_the_bundled_ones(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "night.toml").write_text('size = "small"\nabout = "while nobody looks"')
    (tmp_path / "8gb.toml").write_text('size = "medium"')
    (tmp_path / "wrong.toml").write_text("colour = 1")
    found = all_presets(tmp_path)
    assert found.find("lab/night").about == "while nobody looks"
    assert found.find("8gb").sweep.sizes == ("medium",)
    assert [preset.name for preset in found.presets].count("8gb") == 1
    (problem,) = found.problems
    assert problem.startswith("preset wrong: unknown key colour")
    with pytest.raises(SpecError, match="preset wrong: unknown key colour"):
        found.find("wrong")
    with pytest.raises(SpecError, match="expected one of quick, 2026/"):
        found.find("nothing")


def test_saving_never_replaces_unasked(tmp_path: Path) -> None:
    first, second = (Preset("lab/mine", "", Sweep(seed=seed)) for seed in (1, 2))
    save(first, tmp_path)
    with pytest.raises(PresetError, match="exists already"):
        save(second, tmp_path)
    assert all_presets(tmp_path).find("lab/mine") == first
    save(second, tmp_path, overwrite=True)
    assert all_presets(tmp_path).find("lab/mine") == second
    with pytest.raises(PresetError, match=r"preset name '\.\./out'"):
        save(Preset("../out", "", Sweep()), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "model_arg = 5", "annotate = 5", "model_arg = { a = 1 }", "about = [1]", "context = [[1]]", "size = { a = 1 }",
        "batch = 1979-05-27", "warmup = nan", "steps = 1e400", "causal = 'yes'", "seed = " + "9" * 5000,
        "interval = []",
        "about = " + "[" * 5000, "about = " + "[" * 5000 + "]" * 5000, "about = " + "{a=" * 5000,
        ".".join("a" * 60_000),
        "\n".join(f"{key} = [{', '.join(map(str, range(1, 210)))}]" for key in ("context", "batch", "warmup")),
        "about = '''" + "x" * 2**21 + "'''", 'model = "\\u0000"', "size = [" + '"x", ' * 5000 + "]",
    ],
)  # fmt: skip
def test_a_bad_preset_is_one_line_in_no_time_and_spoils_only_itself(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    (tmp_path / "good.toml").write_text('size = "tiny"')
    began = time.perf_counter()
    found = all_presets(tmp_path)
    assert time.perf_counter() - began < 1
    assert found.find("good").sweep == Sweep()
    (problem,) = found.problems
    assert problem.startswith("preset bad: ")
    assert "\n" not in problem


@pytest.mark.timeout(20)
def test_presets_are_read_from_regular_files_and_a_loop_of_links_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "more").symlink_to(tmp_path)
    (tmp_path / "good.toml").write_text('size = "tiny"')
    found = all_presets(tmp_path)
    assert found.find("good").sweep == Sweep()
    assert {problem for problem in found.problems if "/" not in problem.partition(":")[0]} == {
        "preset pipe: cannot be read: not a regular file", "preset zero: cannot be read: not a regular file",
    }  # fmt: skip


def test_groups_of_blocks_of_a_preset_are_those_that_a_smaller_model_has() -> None:
    for name, groups in (("2026/gradient_checkpointing", (0, 1, 2, 4)), ("2026/nested_checkpointing", (1, 2, 4))):
        assert sweep_from(preset_name=name, sizes=("tiny",), contexts=(64,)).checkpoints == groups
    with pytest.raises(SpecError, match="checkpoint 32"):
        sweep_from(preset_name="2026/gradient_checkpointing", sizes=("tiny",), checkpoints=(32,))


@pytest.mark.parametrize("lanes", [8, "auto"])
def test_lanes_are_kept_in_presets_and_commands_and_share_the_devices(lanes: LaneCount) -> None:
    sweep = sweep_from(lanes=lanes, devices=("cuda:0", "cuda:1"), sizes=("tiny",), passes=("forward",))
    assert from_toml("mine", to_toml(Preset("mine", "", sweep))).sweep == sweep
    command = command_of(sweep)
    assert "--device cuda:0,cuda:1" in command
    assert command.endswith(f"--lanes {lanes}")
    assert [spec.device for spec in sweep.cells()] == ["cuda:0"]
    assert len(sweep) == 1
    on_each = sweep_from(lanes=1, devices=sweep.devices, sizes=("tiny",), passes=("forward",))
    assert [spec.device for spec in on_each.cells()] == ["cuda:0", "cuda:1"]


def named(name: str, *path: str, **args: str) -> RecentModel:
    return RecentModel(model=name, args=tuple(args.items()), path=path)


def test_a_sweep_brings_its_own_models_with_what_they_are_run_with() -> None:
    args, path, annotations = (("dropout", "0"),), ("/repo",), (("softmax", "my.model:softmax"),)
    models = ("reference", "my.model:LM", "x:y")
    sweep = Sweep(models=models, model_args=args, model_path=path, annotations=annotations)
    own = (RecentModel(model=name, args=args, path=path, annotations=annotations) for name in models[1:])
    assert models_in(sweep) == tuple(own)
    assert models_in(Sweep()) == ()


def test_the_newest_comes_first_once_and_no_more_than_so_many_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "state" / "recent.json"
    assert recent_models(file) == ()
    for number in range(MOST_RECENT + 3):
        remember([named(f"m:M{number}", "/repo")], file)
    assert [model.model for model in recent_models(file)] == [f"m:M{n}" for n in range(MOST_RECENT + 2, 2, -1)]
    kept = remember([named("m:M5", "/repo", dropout="0.1")], file)
    assert kept == recent_models(file)
    assert kept[0] == named("m:M5", "/repo", dropout="0.1")
    assert [model.model for model in kept].count("m:M5") == 1, "the latest arguments take the place of the earlier"
    assert remember([named("m:M5", "/elsewhere")], file)[1] == kept[0], "another folder is another model"
    assert [path.name for path in file.parent.iterdir()] == ["recent.json"], "no draft is left"


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"model": 1}', b"\xff\xfe", b'[{"args": []}]'])
def test_a_corrupt_file_is_no_more_than_an_empty_one(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "recent.json"
    file.write_bytes(text)
    assert recent_models(file) == ()
    assert remember([named("m:M")], file) == (named("m:M"),)
    assert recent_models(file) == (named("m:M"),)


def test_a_file_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    assert remember([named("m:M")], tmp_path / "taken" / "recent.json") == (named("m:M"),)
    (tmp_path / "folder.json").mkdir()
    assert remember([named("m:M")], tmp_path / "folder.json") == (named("m:M"),)
    assert recent_models(tmp_path / "folder.json") == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.json", "taken"]
