"""torch.compile on a CPU: it ends before the first step, changes no result, and its time and graphs are counted."""

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from cs336_tui.config import processes
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.values import Compile
from cs336_tui.events.events import ModelPrepared, StepsTimed
from cs336_tui.worker.measure.preparing import compile_ahead, fresh_compiler
from cs336_tui.worker.workload.building import make_optimizer
from cs336_tui.worker.workload.compile_and_capture import compiled, run_whole, why_cannot_compile
from cs336_tui.worker.workload.passes import Step, Training
from cs336_tui.worker.workload.transformer import random_batch
from tests.loading import python
from tests.worker.measure.cells import USERS_MODELS, Report, Rounded, can_compile, compiles, of_user, run, small_spec
from tests.worker.measure.users_models import Plain

CPU = torch.device("cpu")
pytestmark = pytest.mark.timeout(300)  # a C++ compiler works for many seconds, on a busy machine for minutes


def user_names(folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the user name this folder for torch's caches; None for none, where torch may have named one."""
    monkeypatch.setattr(processes, "USERS_CACHE_FOLDER", folder)
    if folder is None:
        monkeypatch.delenv(processes.CACHE_FOLDER, raising=False)
    else:
        monkeypatch.setenv(processes.CACHE_FOLDER, folder)


def of_compiled(folder: Path, model: str = "Plain", **changes: Any) -> CellSpec:
    """A compiled cell of a user's own model."""
    return small_spec(**of_user(folder, model, compile="default") | changes)


def tiny_step(mode: Compile) -> tuple[Step, nn.Module]:
    """A step of a model that compiles quickly, and the model as it is written."""
    torch.manual_seed(0)
    model = Plain(40, 8)
    optimizer, name = make_optimizer("adamw", model, "cpu")
    training = Training(optimizer, name, "cpu", scale_gradients=False)
    runs = model if mode == "off" else compiled(model, mode, CPU)
    return Step("train-step", runs, random_batch(2, 4, 40, device="cpu", seed=0), nullcontext, training), model


def prepared(report: Report) -> ModelPrepared:
    (found,) = (event for event in report.events if isinstance(event, ModelPrepared))
    return found


@compiles
def test_compiling_ahead_changes_no_parameter_and_a_step_then_comes_to_what_it_does_as_written() -> None:
    with fresh_compiler("default"):
        step, model = tiny_step("default")
        before = [parameter.detach().clone() for parameter in model.parameters()]
        found = compile_ahead(step, CPU, "default", lambda: None)
        assert found.graphs == 1
        assert found.graph_breaks == ()
        assert found.compile_s > 0
        assert step.training.steps_taken == 0
        assert all(map(torch.equal, before, model.parameters()))
        assert all(parameter.grad is None for parameter in model.parameters())
        plain, written = tiny_step("off")
        for each in (step, plain):
            for _ in range(2):
                run_whole(each)
        for mine, other in zip(model.parameters(), written.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-5)
            assert not torch.equal(mine, torch.zeros_like(mine))


@can_compile
def test_compiling_is_in_no_step_and_one_cell_does_not_find_what_another_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user_names(None, monkeypatch)
    spec = of_compiled(folder, "Plain", pass_="forward", warmup_steps=3)
    report, *others = (run(spec) for _ in range(3))
    first, second = map(prepared, others)  # the first of all has to load the compiler, too
    assert (first.graphs, second.graphs) == (1, 1)
    assert second.compile_s > first.compile_s / 5, "what comes from a cache takes a twentieth"
    # A first compilation takes seconds, where a step takes less than a millisecond.
    assert report.finished.status == "ok", report.finished.error
    assert report.outline[:4] == ["building", "ModelBuilt", "compiling", "ModelPrepared"]
    found = prepared(report)
    assert found.compile_s > 0.2
    assert max(report.times_s("warm-up") + report.times_s()) < found.compile_s / 10
    assert report.finished.recompilations == 0
    assert not any("compiled again" in remark for remark in report.finished.remarks)
    assert report.built.in_force.compiler.startswith("inductor")
    assert processes.CACHE_FOLDER not in os.environ


@compiles
def test_without_warmup_the_first_step_is_not_cold_and_that_is_said(folder: Path) -> None:
    report = run(of_compiled(folder, "Plain", pass_="forward", warmup_steps=0))
    assert report.finished.status == "ok", report.finished.error
    assert "the first step is not cold: compiling ran the model 2 times" in report.finished.remarks


@compiles
def test_a_graph_break_is_told_with_the_line_that_made_it(folder: Path) -> None:
    report = run(of_compiled(folder, "Printing"))
    assert report.finished.status == "ok", report.finished.error
    assert prepared(report).graphs == 2
    (reason,) = prepared(report).graph_breaks
    line = USERS_MODELS.splitlines().index('        print("here")') + 1
    assert reason.startswith(f"own_models.py, line {line}: ")
    assert "print" in reason
    assert "\n" not in reason


@compiles
def test_compiling_again_in_a_measured_step_is_counted_and_told(folder: Path) -> None:
    # Compiling ahead calls the model twice, warm-up twice more.
    report = run(of_compiled(folder, "Flipping", warmup_steps=2, measure_steps=5))
    assert report.finished.status == "ok", report.finished.error
    assert report.finished.recompilations == 1
    assert "torch.compile compiled again in measured step 3, whose time includes it" in report.finished.remarks


@compiles
def test_a_side_of_a_round_is_compiled_before_either_is_warmed_up(folder: Path) -> None:
    written = of_compiled(folder, "Plain", compile="off")
    compiled_side = of_compiled(folder)
    done = Rounded(written, compiled_side)
    a, b = done.a, done.b
    assert (a.finished.status, b.finished.status) == ("ok", "ok"), (a.finished.error, b.finished.error)
    assert b.outline[:5] == ["building", "ModelBuilt", "compiling", "ModelPrepared", "warm-up"]
    assert "compiling" not in a.outline
    assert prepared(b).graphs == 1
    compiled_at = done.events.index(prepared(b))
    assert not any(isinstance(event, StepsTimed) for event in done.events[:compiled_at])
    assert len(a.times_s()) == len(b.times_s()) == written.measure_steps
    assert (a.finished.recompilations, b.finished.recompilations) == (0, 0)
    assert (a.built.in_force.compiler, b.built.in_force.compiler) == (None, "inductor")


@compiles
def test_a_stop_while_compiling_is_asked_for_between_runs(folder: Path) -> None:
    asked = iter([False, False, True])
    report = run(of_compiled(folder, "Plain", pass_="inference"), cancelled=lambda: next(asked, True))
    assert report.finished.status == "cancelled"
    assert report.finished.stage == "compiling"
    assert report.times_s("warm-up") == []


@can_compile
def test_a_compiler_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "broken-g++"
    compiler.write_text('#!/bin/sh\necho "kernel.cpp:1:1: error: this one is broken" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    source = """
from tests.worker.measure.cells import run, small_spec
finished = run(small_spec(compile="default", num_layers=1, pass_="inference")).finished
print(finished.stage, finished.error)
"""
    done = python(source)
    (line,) = done.stdout.splitlines()
    assert line.startswith("compiling CompileError: ")
    assert line.endswith("; choose --compile off to run the model as it is written")
    assert str(compiler) in done.stderr


@compiles
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin `sys.exit:UserWarning")
def test_what_is_wrong_with_a_model_is_told_as_without_torch_compile(folder: Path) -> None:
    shapes = run(of_compiled(folder, "Misshapen")).finished
    line = next(number for number, text in enumerate(USERS_MODELS.splitlines(), 1) if text.endswith("# misshapen"))
    assert (shapes.status, shapes.stage, shapes.phase) == ("failed", "compiling", "forward")
    assert "RuntimeError: " in shapes.error
    assert shapes.error.endswith(f"(own_models.py:{line} in forward)")
    leaving = run(of_compiled(folder, "Leaving")).finished
    assert leaving.error.startswith("the model called sys.exit(3)")


def test_without_a_compiler_one_line_says_what_to_do() -> None:
    source = """
import os
import sys
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from cs336_tui.worker.measure.probe import probe
for compiler in (None, "no-such-compiler"):
    if compiler:
        os.environ["CXX"] = compiler
    print(why_cannot_compile("cpu"))
    assert compiler or "torch._inductor" not in sys.modules, "asking is to be cheap"
    assert probe().devices[0].cannot_compile == why_cannot_compile("cpu")
    from tests.worker.measure.cells import run, small_spec
    print(run(small_spec(compile="default")).finished.error)
"""
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", processes.CACHE_FOLDER)}
    lines = python(source, env=kept | {"PATH": ""}).stdout.splitlines()
    for told in ("needs a C++ compiler: install", "CXX=no-such-compiler names none"):
        why, error = lines.pop(0), lines.pop(0)
        assert told in why
        assert "--compile off" in why
        assert why in error
    assert not lines


def test_cuda_without_triton_is_refused() -> None:
    if __import__("importlib.util").util.find_spec("triton") is not None:
        pytest.skip("Triton is installed")
    why = why_cannot_compile("cuda")
    assert "install the package triton" in why
    with pytest.raises(ValueError, match=r"compile max-autotune: torch\.compile needs Triton"):
        compiled(Plain(40, 8), "max-autotune", torch.device("cuda"))


def test_a_user_cache_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    user_names(str(tmp_path), monkeypatch)
    (tmp_path / "kept").touch()
    with fresh_compiler("default"):
        assert os.environ[processes.CACHE_FOLDER] == str(tmp_path)
    assert (tmp_path / "kept").exists()
    user_names(None, monkeypatch)
    with fresh_compiler("off", "default"):
        folder = Path(os.environ[processes.CACHE_FOLDER])
        assert folder.is_dir()
    assert not folder.exists()
    assert processes.CACHE_FOLDER not in os.environ
    with fresh_compiler("off"):
        assert processes.CACHE_FOLDER not in os.environ
    with fresh_compiler("off", always=True):
        folder = Path(os.environ[processes.CACHE_FOLDER])
        assert not [*folder.iterdir()]
        assert os.environ["TRITON_CACHE_DIR"] == str(folder / "triton")


def test_what_the_first_run_takes_beside_the_step_can_be_left_out_of_the_peaks() -> None:
    """Autotuning is over after it, and graphs are recorded in the next."""
    log: list[str] = []
    step: Any = SimpleNamespace(run_trial=lambda: log.append("runs"), end_trial=lambda: None)
    compile_ahead(step, CPU, "max-autotune", lambda: None, compiled=lambda: log.append("compiled"))
    assert log == ["runs", "compiled", "runs"]


ITSELF = '''
class Growing(Plain):
    """Calls what is compiled with another factor from its fourth call on."""

    def forward(self, tokens):
        self.calls += 1
        return self.head(scaled(self.embedding(tokens), "half" if self.calls > 3 else "whole"))


@torch.compile(backend="eager")
def scaled(found, how):
    return found * 0.5 if how == "half" else found * 1.0
'''


@compiles
@pytest.mark.parametrize(("warmup", "recompiled"), [(2, 1), (4, 0)])
def test_compiling_in_a_measured_step_is_told_of_a_model_that_compiles_itself_and_in_warm_up_it_is_not(
    folder: Path, warmup: int, recompiled: int
) -> None:
    own = of_user(folder, "Growing", ITSELF, pass_="forward")
    finished = run(small_spec(**own, warmup_steps=warmup, measure_steps=6 - warmup)).finished
    assert (finished.status, finished.error, finished.recompilations) == ("ok", None, recompiled)
    told = [remark for remark in finished.remarks if "torch.compile" in remark]
    expected = "torch.compile, which the model calls itself, compiled in measured step 2, whose time includes it"
    assert told == [expected] * recompiled


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder for torch.compile that cannot be made, as on a full disk."""
    user_names(None, monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))


@can_compile
@pytest.mark.usefixtures("nowhere")
def test_without_room_for_caches_a_cell_or_a_round_fails_in_one_line_for_each() -> None:
    alone, done = run(small_spec(compile="default")).finished, Rounded(small_spec(), small_spec(compile="default"))
    assert (alone.status, alone.stage) == ("failed", "building")
    assert (done.a.finished.status, done.b.finished.status) == ("failed", "failed")
    for error in (alone.error, done.a.finished.error):
        assert "No such file or directory" in error
