"""The results table tells cells of several variants apart, even in the smallest window."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from cs336_tui.tui.app import Cs336App
from tests.samples import a_spec, cell_end, cell_start, session_start, steps
from tests.tui.watched import SMALL, log_of, until

MODELS, CHECKPOINTS, OPTIMIZERS = ("reference", "mine:GPT"), (0, 4), ("adamw", "adamw-fused")


async def test_no_two_rows_look_alike(tmp_path: Path) -> None:
    specs = [
        a_spec(pass_="train-step", model=model, checkpoint=checkpoint, optimizer=optimizer)
        for model, checkpoint, optimizer in product(MODELS, CHECKPOINTS, OPTIMIZERS)
    ]
    events = [*session_start(specs)]
    for cell in range(len(specs)):
        events += [*cell_start(cell), *steps(cell, [0.3], [0.1234, 0.1233, 0.1239, 0.1235]), cell_end(cell)]
    app = Cs336App(replay=log_of(events, tmp_path), speed=0)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda _: not app.run_in_progress)
        await pilot.press("4", "home")
        shown = await until(pilot, lambda shown: "mean ms" in shown and "123" in shown)
        assert {"model", "checkpoint", "optimizer"} <= set(shown.split())
        assert "pass train-step" in shown  # of all cells, above the table
        rows = [row for row in shown.splitlines() if row.startswith(" small ")]
        assert len({" ".join(row.split()) for row in rows}) == len(specs)
