"""Objects that only reference cycles keep alive are freed before the next step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.events.events import CellFinished, Event
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.workload.imported.finding import look_in
from tests.worker.measure.cells import run, small_spec

RECURSIVE = """
import weakref

from torch import nn

MADE = []


class Recursive(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        alive = sum(made() is not None for made in MADE)
        if alive > 1:  # a train-step holds those of the step before until its zero_grad
            raise RuntimeError(f"activations of {alive} earlier steps are alive")
        found = self.embedding(tokens)
        MADE.append(weakref.ref(found))

        def doubled(times):
            return found if times == 0 else doubled(times - 1) * 2

        return self.head(doubled(2))
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Fields of a spec that name the model above."""
    (tmp_path / "recursive_model.py").write_text(RECURSIVE)
    path, meta_path = list(sys.path), list(sys.meta_path)
    yield {"model": "recursive_model:Recursive", "model_path": (str(tmp_path),), "num_heads": 2, "num_layers": 1}
    look_in(())
    sys.path[:], sys.meta_path[:] = path, meta_path


@pytest.mark.parametrize("pass_", ["forward", "backward", "train-step"])
def test_a_cell_holds_no_activations_of_earlier_steps(own: dict[str, Any], pass_: str) -> None:
    finished = run(small_spec(pass_=pass_, measure_steps=5, **own)).finished
    assert (finished.status, finished.error) == ("ok", None)


def test_nor_does_a_side_of_a_round(own: dict[str, Any]) -> None:
    events: list[Event] = []
    run_round((small_spec(), small_spec(pass_="forward", **own)), (0, 1), events.append, lambda: False)
    ends = [event for event in events if isinstance(event, CellFinished)]
    assert [(end.status, end.error) for end in ends] == [("ok", None)] * 2
