"""The line of each entry of the form, and of each of its choices."""

from __future__ import annotations

import pytest

from cs336_tui.config.axis import Axis
from cs336_tui.config.meanings import CHOICES, FIELDS, meaning
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, size_names
from cs336_tui.config.values import EDITIONS

ENTRIES = [axis for axis in AXES.values() if axis.group]
MOST, LONGEST = 84, 90
"""Characters of a line on an entry, and on a choice, which three rows of the form's pane hold."""


@pytest.mark.parametrize("axis", ENTRIES, ids=lambda axis: axis.field)
def test_every_entry_and_every_choice_says_what_it_is(axis: Axis) -> None:
    about = meaning(axis.name)
    assert about.endswith("."), "a sentence"
    assert len(about) <= MOST
    assert meaning(axis.others or axis.name) == about
    for choice in axis.values if axis.widget in ("chips", "one") else ():
        found = meaning(axis.name, choice)
        assert found.startswith(f"{choice}: "), "by its own name"
        assert found != about
        assert len(found) <= LONGEST


def test_there_is_no_line_for_what_is_not_there() -> None:
    others = {"preset", "recent", "head_dim", "heads", "lanes", "ddof", "timeout_s", "repeats", "reports", "after_oom"}
    assert not FIELDS.keys() - AXES.keys() - others
    for field, choices in CHOICES.items():
        if field in AXES:
            assert choices.keys() == set(AXES[field].values), field


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_size_is_told_by_its_dimensions_in_that_edition(edition: str) -> None:
    for size in size_names(edition):
        assert meaning("size", size, edition).startswith(f"{size}: d_model ")
    wide = {"2024": "1600", "2025": "1600", "2026": "2560"}[edition]
    assert meaning("size", "xl", edition).startswith(f"xl: d_model {wide}, d_ff ")
    assert "your own" in meaning("size", CUSTOM_SIZE, edition)
    assert meaning("size", "11B", edition).startswith("11B: edition ")


def test_a_device_is_told_by_its_name() -> None:
    assert meaning("device", "cuda:0", name="NVIDIA H100") == "cuda:0: NVIDIA H100"
    assert meaning("device", "auto") == "auto: the best device of this machine"
