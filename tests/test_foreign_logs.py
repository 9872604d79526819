"""Every command, and the app, against a log of others that names code everywhere: nothing of it runs. The same of 200
logs: ``python -m benchmarks.foreign_logs``."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.foreign_logs import (
    Canaries,
    a_foreign_log,
    ask_commands,
    others,
    press_keys,
    questions,
    quick_predictions,
)
from cs336_tui.cli.main import COMMANDS

_LOG = Path("sessions/log.jsonl")
ASKED = questions(_LOG) | others(_LOG)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    found = Canaries(tmp_path_factory.mktemp("home"))
    with found.entered(), quick_predictions():
        yield found


@pytest.fixture
def logs(canaries: Canaries, tmp_path: Path) -> list[Path]:
    """One whose cells wait, one of jobs, one of a race."""
    return [a_foreign_log(tmp_path, number, canaries, random.Random(number)) for number in (0, 1, 9)]


@pytest.mark.parametrize("command", ASKED)
def test_no_command_runs_what_a_log_names(command: str, canaries: Canaries, logs: list[Path]) -> None:
    for log in logs[: 3 if command in questions(_LOG) else 1]:
        asked = (questions(log) | others(log))[command]
        for answer, finding in ask_commands(log, canaries, {command: asked}):
            assert finding is None
            assert not answer.raised


def test_all_commands_are_asked() -> None:
    assert {words[0] for words in ASKED.values()} == set(COMMANDS)


async def test_no_key_of_the_app_does(canaries: Canaries, logs: list[Path], tmp_path: Path) -> None:
    await press_keys(tmp_path, logs[:1], random.Random(1), most=5)
    assert canaries.marks() == []
