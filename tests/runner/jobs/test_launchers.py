"""The launcher of a choice, also of one that a file from elsewhere holds."""

from __future__ import annotations

from typing import Any

import pytest

from cs336_tui.runner.jobs.job import LaunchChoice, LaunchError
from cs336_tui.runner.jobs.launchers import make_launcher


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\x85", "\u2028"])
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--partition", lambda text: {"partition": text}),
        ("--time", lambda text: {"time": text}),
        ("--slurm", lambda text: {"parameters": (("qos", text),)}),
        ("--slurm", lambda text: {"parameters": ((text, "a"),)}),
    ],
)
def test_a_text_of_several_lines_reaches_no_script(option: str, given: Any, character: str) -> None:
    choice = LaunchChoice(launcher="slurm", **given(f"ci{character}#SBATCH --wrap=rm"))
    with pytest.raises(LaunchError, match=f"{option} .*expected one line without control characters") as refused:
        make_launcher(choice)
    assert str(refused.value).isprintable()
