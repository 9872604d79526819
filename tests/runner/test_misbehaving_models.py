"""Misbehaving models in real children: the next cell gives the same result as without them. Of a user's own code that
cannot be used one cell fails, and the others that need it are skipped."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.session.state import SessionState
from tests.runner.running import Running, resume
from tests.watching import is_gone, small_spec

MODEL = """
import os, signal, sys, threading, time
import torch
from torch import nn

AT_IMPORT

class LM(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)
        self.kept = []
        self.steps = 0
        AT_START

    def forward(self, tokens):
        self.steps += 1
        IN_FORWARD
        return self.head(self.embed(tokens))
"""
GLOBALS = """
torch.set_default_dtype(torch.float64)
torch.set_default_dtype(torch.float32)
torch.set_num_threads(2)
torch.set_float32_matmul_precision("medium")
torch.use_deterministic_algorithms(True)
torch.manual_seed(1234)
torch.set_flush_denormal(True)
os.environ["OMP_NUM_THREADS"] = "3"
os.chdir("/")
sys.path.insert(0, "/nowhere")
"""


class Own:
    """A folder of models, and a way to run them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[Running] = []

    def spec(
        self, name: str, *, at_import: str = "", at_start: str = "", in_forward: str = "", **changes: Any
    ) -> CellSpec:
        text = MODEL.replace("AT_IMPORT", at_import)
        text = text.replace("AT_START", at_start or "pass").replace("IN_FORWARD", in_forward or "pass")
        (self.path / f"{name}.py").write_text(text)
        return small_spec(model=f"{name}:LM", model_path=(str(self.path),), **changes)

    def run(self, *specs: CellSpec, in_process: bool = False) -> SessionState:
        self.started.append(running := Running(self.path / "sessions", in_process=in_process))
        running.run(*specs)
        return running.watch.state


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    made = Own(tmp_path)
    yield made
    for running in made.started:
        running.bench.close()


def test_the_cell_beside_is_unharmed_whatever_a_model_does(own: Own) -> None:
    sleeps = "for _ in range(20): threading.Thread(target=time.sleep, args=(1e6,)).start()"
    signals = "for s in (2, 10, 12, 14, 15): signal.signal(s, lambda *_: None)\nsignal.alarm(1)"
    codes = {
        "leaks": {"in_forward": "self.kept.append(torch.ones(1 << 20))"},
        "threads": {"at_start": sleeps},
        "prints": {"in_forward": "print('x' * 10_000); sys.stderr.write('a word\\n')"},
        "settings": {"at_import": GLOBALS},
        "grad": {"at_start": "torch.set_grad_enabled(False)", "pass_": "forward+backward"},
        "doubles": {"at_import": "torch.set_default_dtype(torch.float64)"},
        "streams": {"at_import": "sys.stdout = sys.stderr = open(os.devnull, 'w')"},
        "signals": {"at_import": signals},
        "exits": {"in_forward": "if self.steps > 2: sys.exit('enough')"},
        "dies": {"in_forward": "if self.steps > 2: os._exit(7)"},
    }
    bad = {name: own.spec(name, **code) for name, code in codes.items()}
    alone = own.run(small_spec()).cells[0]
    specs = [spec for each in bad.values() for spec in (each, small_spec())]
    state = own.run(*specs)
    cells = dict(zip(bad, [state.cells[number] for number in range(0, len(specs), 2)], strict=True))
    for number in range(1, len(specs), 2):
        beside = state.cells[number]
        assert beside.status == "ok", bad
        assert len(beside.step_times_s) == 3
        assert beside.in_force == alone.in_force
        assert beside.output == alone.output == ""
    status = {name: cell.status for name, cell in cells.items()}
    failed = {"grad": "failed", "exits": "failed", "dies": "failed"}
    assert status == dict.fromkeys(bad, "ok") | failed
    assert cells["exits"].finished.error == "the model called sys.exit('enough') (exits.py:19 in forward)"
    assert len(cells["exits"].step_times_s) == 1
    assert "7" in cells["dies"].finished.error
    assert "a word" in cells["prints"].output
    assert cells["settings"].in_force.matmul_precision == "medium"  # what is in force is said, whoever set it
    assert cells["doubles"].in_force.parameter_dtype == "float64"
    assert all(is_gone(cell.pid) for cell in state.cells.values())
    assert not [child for child in psutil.Process().children(recursive=True) if child.name().startswith("sleep")]


def test_in_one_process_a_model_that_exits_ends_its_own_cell_only(own: Own) -> None:
    specs = [own.spec("quits", at_start="sys.exit(3)"), own.spec("quits_later", in_forward="sys.exit()"), small_spec()]
    state = own.run(*specs, in_process=True)
    assert [cell.status for cell in state.cells.values()] == ["failed", "failed", "ok"]
    assert state.cells[0].finished.error == "LM: called sys.exit(3) (quits.py:15 in __init__)"
    assert state.cells[1].finished.error == "the model called sys.exit() (quits_later.py:19 in forward)"


def test_an_error_ends_with_the_users_frame_and_its_traceback_begins_there(own: Own) -> None:
    backward = """
class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, grad): raise ValueError("no gradient")
"""
    specs = [
        own.spec("wrong", in_forward="torch.ones(2, 3) @ torch.ones(2, 3)"),
        own.spec("broken", at_import=backward, in_forward="return Broken.apply(self.head(self.embed(tokens)))",
                 pass_="backward"),
    ]  # fmt: skip
    state = own.run(*specs)
    errors = [cell.finished.error for cell in state.cells.values()]
    assert re.match("RuntimeError: (mm: )?mat1 and mat2 shapes cannot be multiplied", errors[0])
    assert errors[0].endswith("(wrong.py:19 in forward)")
    assert errors[1] == "ValueError: no gradient (broken.py:11 in backward)"
    output = state.cells[0].output
    assert "wrong.py" in output
    assert "cs336_tui" not in output


def test_whatever_a_model_raises_keeps_its_message(own: Own) -> None:
    unreadable = "class Unreadable(ValueError):\n    def __str__(self): raise KeyError('no text')"
    no_stderr = "sys.stderr.close(); raise ValueError('after that')"
    bad = {
        "huge": ("", "raise ValueError('x' * 5_000_000)", f"ValueError: {'x' * 1000} ... (huge.py:19 in forward)"),
        "surrogate": ("", r"raise ValueError('a \udc80 b')", r"ValueError: a \udc80 b (surrogate.py:19 in forward)"),
        "ctrl_c": ("", "raise KeyboardInterrupt('mine')", "KeyboardInterrupt: mine (ctrl_c.py:19 in forward)"),
        "generator": ("", "raise GeneratorExit('done')", "GeneratorExit: done (generator.py:19 in forward)"),
        "stop": ("", "raise StopIteration('no more')", "StopIteration: no more (stop.py:19 in forward)"),
        "exit": ("", r"sys.exit('\udc80')", r"the model called sys.exit('\udc80') (exit.py:19 in forward)"),
        "unreadable": (
            unreadable,
            "raise Unreadable",
            "Unreadable: (its message cannot be read: KeyError) (unreadable.py:20 in forward)",
        ),
        "silenced": ("", no_stderr, "ValueError: after that (silenced.py:19 in forward)"),
        "base": ("class Rude(BaseException): pass", "raise Rude('text')", "Rude: text (base.py:19 in forward)"),
    }
    specs = [own.spec(name, at_import=top, in_forward=body) for name, (top, body, _) in bad.items()]
    built = own.spec("built", at_start="raise KeyboardInterrupt('in building')")
    prints = own.spec("prints", in_forward=r"print('\udc80')")
    state = own.run(*specs, built, prints, small_spec())
    cells = list(state.cells.values())
    assert [cell.finished.error for cell in cells] == [
        *(line for _, _, line in bad.values()),
        "LM: KeyboardInterrupt: in building (built.py:15 in __init__)",
        None,
        None,
    ]
    assert [cell.status for cell in cells] == ["failed"] * (len(bad) + 1) + ["ok", "ok"]
    assert r"\udc80" in cells[-2].output


@pytest.fixture
def folder(own: Own) -> Path:
    own.spec("mine", at_start="if d_model % 3: raise ValueError('no multiple of 3')")
    return own.path


def mine(folder: Path, name: str = "mine:LM", **changes: object) -> CellSpec:
    return small_spec(**({"model": name, "model_path": (str(folder),), "d_model": 12} | changes))


def test_cells_that_need_what_could_not_be_imported_are_skipped_and_can_be_retried(
    folder: Path, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # whose code a resumed session imports
    wrong = [mine(folder, "mine:ML", batch_size=size) for size in (1, 2)]
    running.run(*[*wrong, mine(folder), small_spec(), mine(folder, "mine:ML", pass_="inference")])
    assert running.statuses == ["failed", "skipped", "ok", "ok", "skipped"]
    assert running.cells[1].skipped_because == "cell 1 could not use mine:ML, and this one needs it too"
    running.bench.close()
    with (folder / "mine.py").open("a") as file:
        file.write("ML = LM\n")
    left, again = resume(running.bench.log_path, failed=True)
    assert left == (0, 1, 4)
    assert [cell.status for cell in again.state.cells.values()] == ["ok"] * 5


def test_what_a_model_raises_at_some_dimensions_skips_no_others_and_those_that_it_does_not_take_are_a_remark(
    folder: Path, running: Running
) -> None:
    running.run(*[mine(folder, d_model=8), mine(folder, d_model=12)])
    assert running.statuses == ["failed", "ok"]
    assert running.cells[0].finished.error == "LM: ValueError: no multiple of 3 (mine.py:15 in __init__)"
    (remark,) = running.cells[1].finished.remarks
    assert remark.startswith("LM does not take num_layers, num_heads, d_ff: it has its own, whatever labels say (")


def test_an_argument_that_a_model_has_not_and_an_optimizer_that_is_none(folder: Path, running: Running) -> None:
    argument = [mine(folder, model_args=(("x", "1"),), batch_size=size) for size in (1, 2)]
    optimizer = [mine(folder, optimizer="mine:Adam", pass_=pass_) for pass_ in ("train-step", "forward", "train-step")]
    running.run(*[*argument, *optimizer])
    assert running.statuses == ["failed", "skipped", "failed", "ok", "skipped"]


def test_rounds_end_when_a_side_cannot_be_built(folder: Path, running: Running) -> None:
    running.turns(small_spec(), mine(folder, d_model=8), 3)
    assert running.statuses == ["failed", "failed", *["skipped"] * 4]
    assert running.cells[2].skipped_because == "what failed while it was built in round 1 would fail again"
