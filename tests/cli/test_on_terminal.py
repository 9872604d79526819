"""Output of commands on a terminal; a pipe gets what it always got."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from cs336_tui.cli.main import cli
from cs336_tui.export.subjects.results import results_of, results_table
from cs336_tui.export.writing.formats import render
from cs336_tui.session import store

DEMO = Path(__file__).parent.parent / "data" / "demo-session.jsonl"


class Output(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def printed(*words: str | Path, tty: bool) -> str:
    output = Output(tty)
    with redirect_stdout(output):
        cli.main([*map(str, words)], prog_name="cs336-tui", standalone_mode=False)
    return output.getvalue()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_pipe_gets_whole_tables_as_ever() -> None:
    table = results_table(results_of(store.load(DEMO)))
    assert printed("export", DEMO, tty=False) == render(table, "markdown")
    assert printed("show", DEMO, tty=False).partition("\n\n")[2] == render(table, "markdown")
    assert printed("export", DEMO, "--format", "latex", tty=True) == render(table, "latex")


COMMANDS: Sequence[Sequence[str | Path]] = (
    ["show", DEMO],
    ["export", DEMO],
    ["export", DEMO, "--pivot", "size,precision:pass"],
    ["export", DEMO, "--reference"],
    ["export", DEMO, "--report", "roofline"],
    ["compare", f"{DEMO}:1", f"{DEMO}:2"],
    ["sessions", "--session-dir", DEMO.parent],
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(map(str, words[::2]))[:20])
def test_every_line_fits_the_terminal_and_none_is_markdown(words: Sequence[str | Path]) -> None:
    for columns in ("60", "80", "132"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", columns)
            patch.setenv("TERM", "dumb")
            text = printed(*words, tty=True)
        assert max(map(len, text.splitlines())) <= int(columns)
        assert "\x1b" not in text
        assert "| -" not in text


def test_a_format_that_is_asked_for_is_printed_on_a_terminal_too(tmp_path: Path) -> None:
    asked = printed("export", DEMO, "--format", "markdown", tty=True)
    assert asked == printed("export", DEMO, tty=False)
    file = tmp_path / "t.md"
    assert printed("export", DEMO, "-o", file, tty=True) == ""
    assert file.read_text() == asked


def test_notes_are_behind_an_option() -> None:
    brief, whole = (printed("show", DEMO, *words, tty=True) for words in ([], ["-v"]))
    assert "25 notes on these numbers: -v shows them" in brief
    assert "each-step" not in brief
    assert "host clock between two device" in whole
    assert len(brief.splitlines()) < 35


@pytest.mark.parametrize(("variable", "value", "has"), [("NO_COLOR", "1", {"\x1b[1m"}), ("TERM", "dumb", set())])
def test_a_terminal_that_wants_no_colour_gets_none(
    variable: str, value: str, has: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[32m" in printed("show", DEMO, tty=True)
    monkeypatch.setenv(variable, value)
    text = printed("show", DEMO, tty=True)
    assert "\x1b[3" not in text
    assert all(sequence in text for sequence in has)
    assert has or "\x1b" not in text
