"""Objects that only reference cycles keep alive are freed before the next step."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from cs336_tui.events.events import CellFinished, Event
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.measure.settings import freeze_existing_objects, no_garbage_collection
from tests.worker.measure.cells import PLAIN, run, small_spec

RECURSIVE = f"""{PLAIN}
MADE = []


class Recursive(Plain):
    def forward(self, tokens):
        alive = sum(made() is not None for made in MADE)
        if alive > 1:  # a train-step holds those of the step before until its zero_grad
            raise RuntimeError(f"activations of {{alive}} earlier steps are alive")
        found = self.embedding(tokens)
        MADE.append(weakref.ref(found))

        def doubled(times):
            return found if times == 0 else doubled(times - 1) * 2

        return self.head(doubled(2))
"""


@pytest.fixture
def own(folder: Path) -> dict[str, Any]:
    """Fields of a spec that name the model above."""
    (folder / "recursive_model.py").write_text(RECURSIVE)
    return {"model": "recursive_model:Recursive", "model_path": (str(folder),), "num_heads": 2, "num_layers": 1}


@pytest.mark.parametrize("pass_", ["forward", "backward", "train-step"])
def test_a_cell_holds_no_activations_of_earlier_steps(own: dict[str, Any], pass_: str) -> None:
    finished = run(small_spec(pass_=pass_, measure_steps=5, **own)).finished
    assert (finished.status, finished.error) == ("ok", None)


def test_nor_does_a_side_of_a_round(own: dict[str, Any]) -> None:
    events: list[Event] = []
    run_round((small_spec(), small_spec(pass_="forward", **own)), (0, 1), events.append, lambda: False)
    ends = [event for event in events if isinstance(event, CellFinished)]
    assert [(end.status, end.error) for end in ends] == [("ok", None)] * 2


def garbage_of_garbage() -> StorageWeakRef:
    """A tensor that one collection does not free."""
    held: Any = torch.ones(2, requires_grad=True) * 1
    held.itself = held
    holder: Any = held * held  # keeps what backward needs, out of the collector's sight
    holder.itself = holder
    return StorageWeakRef(held.untyped_storage())


def test_garbage_that_other_garbage_holds_is_freed_before_the_rest_is_kept() -> None:
    gc.disable()
    try:
        before = garbage_of_garbage()
        with no_garbage_collection():
            assert before.expired()
            garbage = garbage_of_garbage()
            freeze_existing_objects()
            assert garbage.expired()
    finally:
        gc.enable()
