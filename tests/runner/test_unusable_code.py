"""A user's own code that cannot be used: one cell fails, and the others that need it are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.bench import Bench
from tests.runner.sessions import resume
from tests.watching import Watch, small_spec

LM = """
from torch import nn

class LM(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        if d_model % 3:
            raise ValueError("no multiple of 3")
        self.embed = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        return self.head(self.embed(tokens))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(LM)
    return tmp_path


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[[], tuple[Bench, Watch]]]:
    started: list[Bench] = []

    def begin() -> tuple[Bench, Watch]:
        watch = Watch()
        started.append(Bench(watch, session_dir=tmp_path / "sessions", device_interval_s=0))
        started[-1].prepare()
        return started[-1], watch

    yield begin
    for each in started:
        each.close()


def own(folder: Path, name: str = "mine:LM", **changes: object) -> CellSpec:
    return small_spec(**({"model": name, "model_path": (str(folder),), "d_model": 12} | changes))


def statuses(watch: Watch) -> list[str]:
    return [cell.status for cell in watch.state.cells.values()]


def test_cells_that_need_what_could_not_be_imported_are_skipped_and_can_be_retried(
    folder: Path, bench: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # whose code a resumed session imports
    running, watch = bench()
    wrong = [own(folder, "mine:ML", batch_size=size) for size in (1, 2)]
    running.run([*wrong, own(folder), small_spec(), own(folder, "mine:ML", pass_="inference")], "a command")
    assert statuses(watch) == ["failed", "skipped", "ok", "ok", "skipped"]
    assert watch.state.cells[1].skipped_because == "cell 1 could not use mine:ML, and this one needs it too"
    running.close()
    (folder / "mine.py").write_text(f"{LM}\nML = LM\n")
    left, again = resume(running.log_path, failed=True)
    assert left == (0, 1, 4)
    assert statuses(again) == ["ok"] * 5


def test_what_a_model_raises_at_some_dimensions_skips_no_others(folder: Path, bench: Callable) -> None:
    running, watch = bench()
    running.run([own(folder, d_model=8), own(folder, d_model=12)], "a command")
    assert statuses(watch) == ["failed", "ok"]
    assert watch.state.cells[0].finished.error == "LM: ValueError: no multiple of 3 (mine.py:8 in __init__)"


def test_an_argument_that_a_model_has_not_and_an_optimizer_that_is_none(folder: Path, bench: Callable) -> None:
    running, watch = bench()
    argument = [own(folder, model_args=(("x", "1"),), batch_size=size) for size in (1, 2)]
    optimizer = [own(folder, optimizer="mine:Adam", pass_=pass_) for pass_ in ("train-step", "forward", "train-step")]
    running.run([*argument, *optimizer], "a command")
    assert statuses(watch) == ["failed", "skipped", "failed", "ok", "skipped"]


def test_rounds_end_when_a_side_cannot_be_built(folder: Path, bench: Callable) -> None:
    running, watch = bench()
    running.run_ab(small_spec(), own(folder, d_model=8), 3, "ab command")
    assert statuses(watch) == ["failed", "failed", *["skipped"] * 4]
    assert watch.state.cells[2].skipped_because == "what failed while it was built in round 1 would fail again"


def test_dimensions_that_it_does_not_take_are_a_remark_of_the_cell(folder: Path, bench: Callable) -> None:
    running, watch = bench()
    running.run([own(folder)], "a command")
    (remark,) = watch.state.cells[0].finished.remarks
    assert remark.startswith("LM does not take num_layers, num_heads, d_ff: it has its own, whatever labels say (")
