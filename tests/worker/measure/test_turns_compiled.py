"""Two compiled sides of a round: each is compiled for its own sizes, as when it runs alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cs336_tui.events.events import CellFinished, Event
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.workload.compile_and_capture import why_cannot_compile
from tests.worker.measure.cells import PLAIN, small_spec

WHY = why_cannot_compile("cpu")
can_compile = pytest.mark.skipif(WHY is not None, reason=WHY or "")

LOOKING = f'''{PLAIN}
SEEN = {{}}


@torch.library.custom_op("cs336_tui_tests::look", mutates_args=())
def look(found: torch.Tensor) -> torch.Tensor:
    return found.clone()


@look.register_fake
def _(found):
    """Is called when a graph is made: a size that may change is no number then."""
    SEEN.setdefault(int(found.shape[0]), set()).add(type(found.shape[0]).__name__)
    return torch.empty_like(found)


class Looks(Plain):
    def forward(self, tokens):
        return self.head(look(self.embedding(tokens)))


class CompilesItself(Looks):
    """Has a part compiled, as a user's own attention may."""

    def forward(self, tokens):
        return self.head(part(self.embedding(tokens)))


@torch.compile
def part(found):
    return look(found)
'''


@pytest.fixture
def folder(folder: Path) -> str:
    (folder / "looking_at_sizes.py").write_text(LOOKING)
    return str(folder)


@can_compile
@pytest.mark.timeout(300)  # a C++ compiler works for many seconds, on a busy machine for minutes
@pytest.mark.usefixtures("warm_cache")
@pytest.mark.parametrize(("model", "mode"), [("Looks", "default"), ("CompilesItself", "off")])
def test_a_side_is_compiled_for_its_own_sizes_whatever_the_other_sides_are(folder: str, model: str, mode: str) -> None:
    # torch.compile takes a size for one that changes when it meets the second one, and code for any size is slower.
    own: dict[str, Any] = {"model_path": (folder,), "d_model": 8, "num_heads": 2, "num_layers": 1, "compile": mode}
    a, b = (
        small_spec(model=f"looking_at_sizes:{model}", pass_="inference", batch_size=size, measure_steps=1, **own)
        for size in (2, 4)
    )
    events: list[Event] = []
    seen: dict[int, set[str]] = {}

    def listen(event: Event) -> None:
        events.append(event)
        if "looking_at_sizes" in sys.modules:
            seen.update(sys.modules["looking_at_sizes"].SEEN)

    run_round((a, b), (0, 1), listen, lambda: False)
    ends = [event for event in events if isinstance(event, CellFinished)]
    assert [(end.status, end.error, end.recompilations) for end in ends] == [("ok", None, 0)] * 2
    assert seen == {2: {"int"}, 4: {"int"}}
