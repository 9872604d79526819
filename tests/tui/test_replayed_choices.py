"""The Configure pane of a replay shows the choices of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.config.choices import sweep_from, sweep_of
from cs336_tui.tui.configure.pane import ConfigurePane
from tests.samples import session_start
from tests.tui.watched import on_screen, replaying, until

OWN = {"model_path": (str(Path(__file__).parent),)}
RUNS = {
    "compiled": {"compiles": ("off", "default"), "optimizers": ("adamw", "adamw-fused")},
    "checkpoints": {"checkpoints": (0, 1, 2), "attentions": ("naive", "flash")},
    "attention alone": {
        "workload": "attention",
        "head_dims": (16, 32),
        "causal": False,
        "attentions": ("naive", "sdpa"),
    },
    "own model": {"models": ("a:GPT",), "model_args": (("dropout", "0"),), "loss": "a:loss", **OWN},
    "own models": {"models": ("a:GPT", "b:Net"), "model_args": (("GPT.dropout", "0"), ("Net.bias", "1")), **OWN},
    "graphs": {"cuda_graphs": ("off", "step"), "passes": ("forward",)},
}


@pytest.mark.parametrize("name", RUNS)
def test_the_cells_make_the_choices_again(name: str) -> None:
    sweep = sweep_from(devices=("cpu",), **RUNS[name])
    assert sweep_of(sweep.cells()).cells() == sweep.cells()


async def test_a_replay_shows_how_many_cells_there_were_and_what_was_unusual(tmp_path: Path) -> None:
    sweep = sweep_from(devices=("cpu",), passes=("forward",), compiles=("off", "default"))
    async with on_screen(replaying(session_start(sweep.cells()), tmp_path), "at its end") as (app, pilot):
        await until(pilot, "2 cells")
        await until(pilot, "variants: compile off/default")
        assert app.query_one(ConfigurePane).sweep == sweep
