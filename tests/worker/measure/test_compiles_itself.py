"""A model that calls torch.compile itself: compiling within measured steps is in their times and is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.worker.measure.cells import PLAIN, run, small_spec

WHY = why_cannot_compile("cpu")
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=WHY or ""),
    pytest.mark.usefixtures("warm_cache"),
    pytest.mark.timeout(300),  # a C++ compiler works for many seconds, on a busy machine for minutes
]

ITSELF = f'''{PLAIN}

class Growing(Plain):
    """Calls what is compiled with another factor from its fourth call on."""

    def forward(self, tokens):
        self.calls += 1
        return self.head(scaled(self.embedding(tokens), "half" if self.calls > 3 else "whole"))


@torch.compile(backend="eager")
def scaled(found, how):
    return found * 0.5 if how == "half" else found * 1.0
'''


@pytest.fixture
def own(folder: Path) -> dict[str, Any]:
    """Fields of a spec that name the model above."""
    (folder / "compiles_itself.py").write_text(ITSELF)
    return {"model": "compiles_itself:Growing", "model_path": (str(folder),), "num_heads": 2, "num_layers": 1}


def test_compiling_in_a_measured_step_is_told_and_in_warm_up_it_is_not(own: dict[str, Any]) -> None:
    finished = run(small_spec(pass_="forward", warmup_steps=2, measure_steps=4, **own)).finished
    assert (finished.status, finished.error) == ("ok", None)
    told = [remark for remark in finished.remarks if "torch.compile" in remark]
    assert told == ["torch.compile, which the model calls itself, compiled in measured step 2, whose time includes it"]
    assert finished.recompilations == 1


def test_nothing_is_told_where_warm_up_was_enough(own: dict[str, Any]) -> None:
    finished = run(small_spec(pass_="forward", warmup_steps=4, measure_steps=2, **own)).finished
    assert (finished.status, finished.error) == ("ok", None)
    assert finished.recompilations == 0
    assert not [remark for remark in finished.remarks if "torch.compile" in remark]
