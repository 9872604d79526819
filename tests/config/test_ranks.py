"""Choices of several ranks that do not go together, refused in one line."""

import pytest

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import SpecError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"sync": "pipelined"}, "sync pipelined: is of one rank; leave it out, or choose --ranks 1"),
        ({"timers": ("do_bench",)}, "timer do_bench: is of one rank; leave it out, or choose --ranks 1"),
        ({"compiles": ("default",)}, "compile default: is of one rank; leave it out, or choose --ranks 1"),
        ({"reports": ("memory",)}, "reports memory: are of one rank, not of 2; give --reports none, or --ranks 1"),
    ],
)
def test_what_is_of_one_rank_is_refused_of_several(words: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError) as refused:
        sweep_from(ranks=(1, 2), devices=("cpu",), **words)
    assert str(refused.value) == said
