"""Text of logs, names, devices, presets and command lines reaches a terminal as plain text only."""

import csv
import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import hostile
from benchmarks.fuzz_inputs import RAW, a_home, ask
from cs336_tui.cli.streams import StatusLines
from cs336_tui.events.codec import to_line
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.texts import as_data, in_brief, one_line, plain
from tests.cli.test_progress import Terminal
from tests.commands import COMMAND
from tests.samples import write_log
from tests.tui.test_process import EVIL, evil_session

SESSION, OTHER = "2026-01-01T00-00-00-evil", "2026-01-01T00-00-01-good"
COMMANDS = [
    ["sessions"], ["sessions", "--json"], ["show", SESSION], ["compare", SESSION, OTHER], ["reference", SESSION],
    *(["export", SESSION, "--format", format_] for format_ in FORMATS),
    *(["export", OTHER, "--report", report] for report in REPORTS),
    ["export", SESSION, "--pivot", "size:pass"], ["presets"], ["presets", "show", "evil"], ["bench", "--preset",
    "evil"],
    ["show", EVIL], ["bench", "--size", EVIL], ["bench", "--model-arg", EVIL], ["export", SESSION, "--layout", EVIL],
    ["export", SESSION, "--where", f"size={EVIL}"], ["rename", OTHER, f"name {EVIL}"], ["annotate", OTHER,
    f"note {EVIL}"],
    ["sessions", "--session-dir", f"/nowhere/{EVIL}"], ["--replay", EVIL], [EVIL], ["summary", SESSION, "-o",
    "s\x1b[2J\ny"],
    ["export", SESSION, "-o", "f\x1b]0;x\x07.md"], ["delete", SESSION, "--yes"],
]  # fmt: skip


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with a_home() as folder:
        sessions = folder / "data/cs336-tui/sessions"
        write_log(sessions / f"{SESSION}.jsonl", evil_session())
        (sessions / f"{OTHER}.jsonl").write_bytes(b"".join(map(hostile.line, hostile.base_log())))
        (folder / "config/cs336-tui/presets/evil.toml").write_text(
            'about = "a\\u001b[31mb\\u009b1m\\nc"\nsize = "\\u001b]0;x"'
        )
        (folder / "config/cs336-tui/presets/na\x1b[2Jme.toml").write_text('size = "tiny"')
        yield folder


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: ascii(" ".join(words))[:60])
def test_no_control_character_leaves_a_command(words: list[str]) -> None:
    answer = ask(words)
    assert answer.out or answer.err
    assert set(answer.faults()) <= {"slow"}, answer  # figures take their time


def test_names_keep_one_line(home: Path) -> None:
    rows = ask(["sessions"]).out.splitlines()
    assert len(rows) == 1 + len(list((home / "data/cs336-tui/sessions").glob("*.jsonl")))
    assert sum("name" in row for row in rows[1:]) >= 1


def test_a_process_says_no_more_than_that(tmp_path: Path) -> None:
    log = write_log(tmp_path / f"{SESSION}.jsonl", evil_session())
    environment = dict(os.environ) | {"PYTHONIOENCODING": "latin-1"}
    ended = subprocess.run([COMMAND, "show", str(log)], capture_output=True, env=environment, cwd=tmp_path)
    assert ended.returncode == 0
    assert not RAW.search(ended.stdout.decode("latin-1") + ended.stderr.decode("latin-1"))


@given(
    st.text(st.characters(codec=None, exclude_categories=[]) | st.sampled_from("\x1b\x9b\x9d\x90\x07\x9c[]P;m\\\n\t"))
)
def test_plain_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    assert not RAW.search(plain(text))
    assert plain(plain(text)) == plain(text)
    assert len(one_line(text).splitlines()) <= 1
    assert len(in_brief(text * 50, 100)) <= 100


def test_a_whole_control_string_goes_and_no_text_beside_it() -> None:
    assert plain("a\x1b]0;title\x07b\x1b]8;;http://x\x1b\\c\x1bPq\x1b\\d\x9d0;t\x9ce\x1b[31mf") == "abcdef"
    assert plain("a\x1b]0;never ended\nb") == "a]0;never ended\nb"


FORMULAS = ["=1+1", "+cmd|'x'!A0", "-2+3", "@SUM(A1)", " =1", "\t=1", "＝1", "=cmd;y", "--"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *((text, f"'{plain(text)}") for text in FORMULAS),
        *((text, text) for text in ("", "tiny", "-1.5", "+3", "-2e-5", ".5", "a=b", "1-2", "'=1")),
    ],
)
def test_a_text_that_a_spreadsheet_would_compute_is_a_text_and_others_stay(text: str, written: str) -> None:
    assert as_data(text) == written


def test_no_cell_of_a_csv_is_a_formula_and_numbers_are_numbers(home: Path) -> None:
    import json

    lines = [json.loads(to_line(event)) for event in evil_session()]
    for line in lines:
        for key in ("host", "torch", "driver"):
            if "environment" in line:
                line["environment"][key] = "=HYPERLINK(1)"
        if line.get("error"):
            line["error"] = "@SUM(1)\n=2"
    log = home / "formulas.jsonl"
    log.write_bytes(b"".join(map(hostile.line, lines)))
    for words in (["export", str(log)], ["export", str(log), "--layout", "by-mean"]):
        rows = list(csv.DictReader(io.StringIO(ask([*words, "--format", "csv"]).out)))
        cells = [cell for row in rows for cell in row.values()]
        assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
    (first, *_) = list(csv.DictReader(io.StringIO(ask(["export", str(log), "--format", "csv"]).out)))
    assert first["host"] == "'=HYPERLINK(1)"
    assert float(first["mean_s"]) == pytest.approx(0.1532)


def test_a_status_line_is_redrawn_and_shows_text_alone() -> None:
    screen = Terminal()
    line = StatusLines(screen)
    line.say(f"cell {EVIL}")
    line.clear()
    line.clear()
    shown = screen.getvalue().split("\r\x1b[J")
    assert len(shown) == 3
    assert not RAW.search("".join(shown))
