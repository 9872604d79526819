"""Variants of a cell: choices by flag and by file, contradictions, cell names; names of a user's own code, which is
looked for in the source of its module and not imported."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from cs336_tui.cli.flags import choice_options, oom_option, reports_option
from cs336_tui.config.choices import command_of, sweep_from
from cs336_tui.config.presets import Preset, to_toml
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuned_sweep import search_of
from cs336_tui.config.variants import (
    did_you_mean,
    expected,
    is_imported,
    is_well_formed,
    nearest,
    short,
    why_no_module,
    why_not_there,
)
from tests.samples import a_spec

OWN = "mine.model:Net"


@choice_options
@reports_option
@oom_option
@click.command()
def cli_choices(**options: Any) -> None:
    """A command with the flags of all commands that take choices."""


def chosen(line: str) -> Sweep:
    """The sweep of a command line, or of its options alone, parsed by the command's own flags."""
    words = shlex.split(line)
    with cli_choices.make_context("x", words[2:] if words[:1] == ["cs336-tui"] else words) as context:
        return sweep_from(**context.params)


def test_names_of_ones_own() -> None:
    for name in ("a:B", "pack.age.module:Class", "m:Outer.inner", "_a1.b:_c"):
        assert is_imported(name)
        assert is_well_formed(name)
    for name in ("a", "a:", ":B", "a/b:C", "a:B:C", "a b:C", "1a:B", "a.:B", "a:B."):
        assert not is_well_formed(name)
    assert (short("pack.age:Class"), short("adamw")) == ("Class", "adamw")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "Net"}, "model Net: expected one of reference, or package.module:name"),
        ({"attention": "fast"}, "attention fast: expected one of naive, sdpa, flash"),
        ({"model": OWN, "attention": "sdpa"}, "Net brings its own attention"),
        ({"compile": "on"}, "compile on: expected one of off, default"),
        ({"optimizer": "sgd"}, "optimizer sgd: expected one of adamw, adamw-fused"),
        ({"loss": "mse"}, "loss mse: expected one of cross-entropy"),
        ({"checkpoint": -1}, "checkpoint -1"),
        ({"checkpoint": 13, "num_layers": 12}, "at most the number of layers, 12"),
        ({"cuda_graph": "on"}, "cuda graph on"),
        ({"cuda_graph": "step", "pass_": "backward"}, "choose forward+backward"),
        ({"cuda_graph": "step", "pass_": "train-step", "precision": "fp16-mixed"}, "gradient scaler"),
        ({"cuda_graph": "step", "compile": "reduce-overhead"}, "captures CUDA graphs itself"),
        ({"workload": "vision"}, "workload vision"),
        ({"workload": "attention", "pass_": "train-step"}, "nothing to train"),
        ({"workload": "attention", "pass_": "forward", "model": OWN}, "workload attention has none"),
        ({"workload": "attention", "pass_": "forward", "checkpoint": 1}, "workload attention has none"),
        (
            {"timer": "do_bench", "warmup_auto": True, "warmup_steps": 100},
            "warmup steps auto: timer do_bench looks at no step",
        ),
        (
            {"timer": "do_bench", "steps_auto": 0.01, "measure_steps": 100},
            "measure steps auto: timer do_bench looks at no step",
        ),
        ({"timer": "do_bench", "sync": "pipelined"}, "sync pipelined: timer do_bench synchronises once"),
        *(({"dropout": share}, f"dropout {share}: expected a share of at least 0") for share in (1, -0.1, math.nan)),
        ({"attention_dropout": 0.1, "attention": "sdpa"}, "attention dropout 0.1: attention sdpa has no weights"),
        ({"gelu": "tanh"}, "gelu tanh: arch swiglu-rope has none; choose --arch gelu-learned"),
        ({"bias": "on", "model": OWN}, "bias on: Net has its own; leave it out, or use --model-arg"),
        ({"weight_tying": "on", "workload": "attention", "pass_": "forward"}, "weight tying on: workload attention"),
        ({"dropout": 0.1, "checkpoint": 1, "cuda_graph": "step"}, "checkpoint 1: draws again what it dropped"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        a_spec(**changes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cell_says_what_is_not_as_usual() -> None:
    assert a_spec().variants == a_spec(pass_="forward", optimizer="adamw-fused").variants == ()
    spec = a_spec(pass_="train-step", attention="sdpa", compile="default", checkpoint=2, optimizer="adamw-fused")
    assert spec.variants == ("sdpa", "compiled", "checkpoint every 2", "adamw-fused")
    assert spec.title == f"{a_spec(pass_='train-step').title} · sdpa · compiled · checkpoint every 2 · adamw-fused"
    assert a_spec(model=OWN).variants == ("Net",)
    assert a_spec(model=OWN).brings_own_code
    assert a_spec(attention="a.b:f").brings_own_code
    assert not spec.brings_own_code


def test_attention_alone_is_called_so() -> None:
    (cell, *_) = chosen("--workload attention --head-dim 32 --context 512 --device cpu --no-causal").cells()
    assert cell.title.startswith("attention · d32 · ctx 512 · forward · fp32 · cpu · naive")
    assert cell.title.endswith("not causal")
    assert (cell.d_model, cell.num_heads, cell.num_layers, cell.batch_size) == (32, 1, 1, 8)


def test_own_code_is_looked_for_in_the_current_folder_unless_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    assert chosen(f"--model {OWN}").model_path == (str(tmp_path),)
    assert chosen(f"--model {OWN} --model-path sub --model-path /").model_path == (str(tmp_path / "sub"), "/")
    assert chosen("--size tiny").model_path == ()


def test_a_folder_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (file := tmp_path / "model.py").touch()
    for path, said in ((file, "that is a file; give its folder"), (tmp_path / "no", "no such folder")):
        with pytest.raises(SpecError, match=f"^model path {path}: {said}$"):
            chosen(f"--model {OWN} --model-path {path}")


def advice_on(path: str) -> str:
    with pytest.raises(SpecError) as refused:
        a_spec(model=path)
    return str(refused.value).removeprefix(f"model {path}: that is a path; ")


def test_the_module_of_a_file_is_named_with_the_folder_above_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nanoGPT, no package, says ``from model import GPT``, so that nanoGPT.model:GPT would be another module."""
    for name in ("nanoGPT/model", "minGPT/mingpt/__init__", "minGPT/mingpt/model"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text("")
    nano, mini = tmp_path / "nanoGPT", tmp_path / "minGPT"
    for path in (f"{nano}/model.py:GPT", f"{nano}/model:GPT"):
        assert advice_on(path) == f"write model:GPT and give the folder: --model-path {nano}"
    assert (
        advice_on(f"{mini}/mingpt/model.py:GPT") == f"write mingpt.model:GPT and give the folder: --model-path {mini}"
    )
    monkeypatch.chdir(mini)
    assert advice_on("mingpt/model.py:GPT") == "write mingpt.model:GPT"
    monkeypatch.chdir(nano)
    assert advice_on("./model.py:GPT") == "write model:GPT"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model my_gpt/model.py:GPT", "that is a path; write my_gpt.model:GPT"),
        ("--model ./my_gpt/model.py", "that is a path; write my_gpt.model:Class"),
        ("--model ~nobody-here/model.py", "that is a path; write package.module:name"),
        ("--model /", "that is a path; write package.module:name"),
        (f"--model /{'x' * 5000}", "that is a path; write "),
        ("--model a\0/b", "that is a path; write package.module:name"),
        ("--model ../repo/my_gpt/model.py:GPT", "that is a path; write my_gpt.model:GPT, and give the folder"),
        ("--model my-gpt/model.py:GPT", "that is a path; write package.module:name"),
        ("--model my_gpt.model.GPT", "model my_gpt.model.GPT: write my_gpt.model:GPT"),
        ("--model model.py", "model model.py: write model:Class"),
        ("--model my-scripts.net-v2:AdamW", "Python imports no module with a dash in its name"),
        ("--model GPT", "model GPT: expected one of reference, or package.module:name"),
        *(
            (f"--model {OWN} --model-arg {name}=3", f"{name} comes from {option}; leave --model-arg {name} out")
            for name, option in (
                ("n_layer", "--num-layers"),
                ("d_model", "--d-model"),
                ("block_size", "--context"),
                ("batch_size", "--batch"),
                ("dtype", "--precision"),
                ("device", "--device"),
                ("seed", "--seed"),
            )
        ),
        (f"--model {OWN} --model-arg rope_theta", "NAME=VALUE"),
        ("--model-arg x=1", "only a model of your own has arguments"),
        ("--loss a.b:loss --model-arg x=1", "only a model of your own has arguments"),
        ("--model-path /", "nothing of your own to look for there"),
        ("--annotate softmax=a.b:fn", "nothing of your own that could call it"),
        ("--head-dim 16", "only with --workload attention"),
        ("--no-causal", "only with --workload attention"),
    ],
)
def test_what_was_likely_meant_or_has_no_effect_is_said(line: str, said: str) -> None:
    with pytest.raises((SpecError, click.BadParameter)) as refused:
        chosen(line)
    assert said in str(refused.value)


def test_what_has_no_effect_in_a_file_is_harmless() -> None:
    held = msgspec.structs.replace(Sweep(devices=("cpu",)), model_path=("/no/such",), model_args=(("x", "1"),))
    (*_, cell) = held.cells()
    assert (cell.model_path, cell.model_args) == ((), ())
    assert chosen(command_of(held)).cells() == held.cells()


def test_arguments_of_one_of_several_models() -> None:
    sweep = chosen(
        "--model a.b:GPT,a.b:LM,reference --model-arg GPT.tie=1 --model-arg drop=0 --pass forward --device cpu"
    )
    given = {cell.model: cell.model_args for cell in sweep.cells()}
    assert given == {"a.b:GPT": (("tie", "1"), ("drop", "0")), "a.b:LM": (("drop", "0"),), "reference": ()}
    with pytest.raises(SpecError, match=r"model args GTP\.tie=1: before the dot goes one of GPT, for that model alone"):
        chosen("--model a.b:GPT --model-arg GTP.tie=1")
    with pytest.raises(SpecError, match="n_layer comes from --num-layers"):
        chosen("--model a.b:GPT --model-arg GPT.n_layer=1")


def test_a_model_of_ones_own_needs_no_d_ff() -> None:
    dims = "--d-model 64 --num-layers 2 --num-heads 2"
    assert chosen(f"--model {OWN} {dims}").dims.d_ff == 256
    assert chosen(f"--model {OWN} {dims} --d-ff 100").dims.d_ff == 100
    for line in (dims, f"--model {OWN},reference {dims}"):
        with pytest.raises(SpecError, match="--d-ff missing"):
            chosen(line)
    with pytest.raises(SpecError, match="expected a multiple of num_heads"):
        chosen(f"--model {OWN} --d-model 63 --num-layers 2 --num-heads 2")


def test_a_file_of_plain_choices_names_no_variant() -> None:
    assert not {"model", "attention", "compile", "workload", "causal"} & {
        line.partition(" =")[0] for line in to_toml(Preset("x", "", Sweep())).splitlines()
    }


def test_logs_of_before_have_no_variants() -> None:
    old = msgspec.to_builtins(a_spec())
    for field in ("workload", "model", "attention", "compile", "checkpoint", "optimizer", "loss", "cuda_graph"):
        del old[field]
    assert msgspec.convert(old, CellSpec) == a_spec()


SOURCE = """
from torch import nn
import os.path, json as text
class LM(nn.Module): ...
def make(): ...
async def wait(): ...
a, (b, *c) = 1, (2, 3)
small: int = 4
with open("x") as handle: ...
try:
    from fast import attend
except ImportError as problem:
    def attend(): ...
match a:
    case {"k": [first, *others]} as whole: ...
raise SystemExit("imported")
"""
BOUND = "nn os text LM make wait a b c small handle attend problem first others whole LM.of make.x.y".split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    for name in ("mine", "pkg/__init__", "pkg/model"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / "pkg" / "deep.py").write_text("class Deep: ...")
    return tmp_path


@pytest.mark.parametrize("name", BOUND)
def test_what_a_module_binds_may_be_there(name: str, folder: Path) -> None:
    assert why_not_there(f"mine:{name}", [str(folder)]) == ""
    assert why_not_there(f"pkg.model:{name}", [str(folder)]) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:nope", "mine has no nope ({}/mine.py)"),
        ("mine:lm.of", "mine has no lm ({}/mine.py); did you mean LM?"),
        ("mine:path", "mine has no path ({}/mine.py)"),
        ("pkg:Deep", "pkg has no Deep ({}/pkg/__init__.py); it is in pkg.deep: write pkg.deep:Deep"),
    ],
)
def test_what_it_does_not_bind_is_not(name: str, said: str, folder: Path) -> None:
    assert why_not_there(name, ["/nowhere", str(folder)]) == said.format(folder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:nope", ""),
        ("msgspec.json:encode", ""),
        ("random:Net", ""),
        ("pkg.deep:Deep", ""),
        ("absent:Net", "no module absent, looked in {} and among what is installed; add its folder with --model-path"),
        ("pkg.deeq:Deep", "no module pkg.deeq in {}/pkg; did you mean pkg.deep?"),
        ("mine.deep:Deep", "no module mine.deep in mine, which is no package"),
        ("deep:Deep", "no module deep in {0}; it is in package pkg: write pkg.deep:Deep"),
        ("deep.py:Deep", "no module deep in {0}; it is in package pkg: write pkg.deep:Deep"),
        ("pkg.deep.py:Deep", "no module pkg.deep.py: write pkg.deep:Deep, without .py"),
    ],
)
def test_a_module_that_there_is_not_is_told(name: str, said: str, folder: Path) -> None:
    assert why_no_module(name, [str(folder)]) == said.format(folder)


def test_a_module_of_a_package_that_makes_them_may_be_there(folder: Path) -> None:
    (folder / "pkg" / "__init__.py").write_text("import sys; sys.modules['pkg.made'] = sys")
    assert why_no_module("pkg.made:Net", [str(folder)]) == ""


def test_the_nearest_names_are_said_and_no_more_than_five() -> None:
    assert nearest("Warmup", ("warm-up", "back", "warm up")) == ["warm-up", "warm up"]
    assert nearest("nsys", ("2026/nsys_profile", "2025/nsys_profile", "quick")) == [
        "2026/nsys_profile",
        "2025/nsys_profile",
    ]
    assert len(nearest("cell", [f"cell{number}" for number in range(9)])) == 5
    assert nearest("", ("a", "b")) == nearest("x" * 10**6, ("a", "b")) == []
    assert did_you_mean("ac", ("ab", "cd", "acd"), "; ") == "; did you mean acd?"
    assert did_you_mean("zzz", ("ab",)) == ""


def test_what_may_be_is_all_of_a_few_names_and_the_nearest_of_many() -> None:
    assert expected("fp23", ("fp32", "bf16")) == "expected one of fp32, bf16; did you mean fp32?"
    assert expected("x", ("fp32", "bf16"), own=", or yours", see="there") == "expected one of fp32, bf16, or yours"
    many = [f"{letter * 4}" for letter in "abcdefghijklm"]
    assert expected("aaba", many) == "did you mean aaaa?"
    assert (
        expected("zzzz", many, see="see there") == "expected one of aaaa, bbbb, cccc, dddd, eeee and 8 more; see there"
    )
    assert expected("2027", ("2024", "2025")) == "expected one of 2024, 2025"


@pytest.mark.parametrize(
    "source",
    [
        "from other import *",
        "def __getattr__(name): ...",
        "globals()['nope'] = 1",
        "import sys; setattr(sys.modules[__name__], 'no' + 'pe', 1)",
        "exec(open('x').read())",
        "def broken(:",
        "\0",
    ],
)
def test_names_that_a_module_makes_as_it_runs_may_be_there(source: str, folder: Path) -> None:
    (folder / "mine.py").write_text(source)
    assert why_not_there("mine:nope", [str(folder)]) == ""


@pytest.mark.parametrize("name", ["absent:nope", "pkg.absent:nope", "pkg:deep", "json:nope", "numpy:nope"])
def test_modules_that_are_not_in_the_folders_and_modules_of_a_package_may_be_there(name: str, folder: Path) -> None:
    assert why_not_there(name, [str(folder)]) == ""


@pytest.mark.parametrize(
    "choices",
    [
        {"models": ("mine:nope",)},
        {"attentions": ("naive", "mine:nope")},
        {"optimizers": ("mine:nope",)},
        {"loss": "mine:nope"},
        {"ranks": (2,), "parallels": ("mine:nope:25MB",)},
        {"models": ("mine:LM",), "annotations": (("softmax", "mine:nope"),)},
    ],
)
def test_a_sweep_refuses_code_that_cannot_be_there(choices: dict[str, Sequence[str]], folder: Path) -> None:
    with pytest.raises(SpecError, match=r" mine:nope: mine has no nope \(.*mine.py\)"):
        sweep_from(model_path=(str(folder),), passes=("train-step",), **choices)


def test_a_search_refuses_code_that_cannot_be_there(folder: Path) -> None:
    start = sweep_from(passes=("train-step",))
    over, path = ["attention=naive,mine:nope"], (str(folder),)
    with pytest.raises(SpecError, match="attention mine:nope: mine has no nope"):
        search_of(start, over, "step", 600.0, {}, model_path=path)
