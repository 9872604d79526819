"""Files are what their names say, in every command that writes one; tables fit a terminal, and are whole in a pipe."""

import io
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cs336_tui.analysis.merge import results_of
from cs336_tui.cli.files import Destination
from cs336_tui.cli.main import COMMANDS, cli
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writing.files import FORMATS, SUFFIXES, ExportError, FormatError, settled_format
from cs336_tui.export.writing.formats import render
from cs336_tui.session import store
from tests.cli.test_progress import Terminal
from tests.samples import DEMO_LOG

OF_A_FOLDER = {"summary", "bundle"}
"""Commands whose ``-o`` is a folder or an archive."""
OF_TURNS = {"ab", "gate"}
"""Commands with a format for GitHub."""


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        yield name, command


WRITERS = {
    name: command
    for name, command in commands()
    if any(isinstance(each, click.Option) and "-o" in each.opts for each in command.params) and name not in OF_A_FOLDER
}


def run(*words: str, folder: Path) -> Result:
    return CliRunner().invoke(cli, [*words, "--session-dir", str(folder)])


def test_every_command_that_writes_a_file_is_known() -> None:
    assert set(WRITERS) == {
        "ab", "bench", "comm", "compare", "estimate", "export", "fit", "gate", "kernels", "memory", "open", "peak",
        "plan", "precision", "problems", "reference", "resume", "selftest", "sessions", "show", "tune",
        "verify", "watch",
    }  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_such_command_has_all_formats_under_one_spelling(name: str) -> None:
    (option,) = (each for each in WRITERS[name].params if each.name == "format_")
    assert set(option.type.choices) == {*FORMATS} | ({"github"} if name in OF_TURNS else set())
    spellings = {"md": "markdown", "tex": "latex", "LaTeX": "latex", "htm": "html", "txt": "table"}
    for spelling, meant in spellings.items():
        assert option.type.convert(spelling, option, None) == meant


@pytest.mark.parametrize("name", WRITERS)
def test_a_name_that_contradicts_the_format_is_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    needed = sum(isinstance(each, click.Argument) and each.required for each in WRITERS[name].params)
    sides = ("--a", "--precision fp32", "--b", "--precision bf16")
    arguments = sides if name == "ab" else [str(DEMO_LOG)] * needed
    file = tmp_path / "t.csv"
    done = run(name, *arguments, "--format", "tex", "-o", str(file), folder=tmp_path)
    assert isinstance(done.exception, (FormatError, SystemExit, click.UsageError))
    assert done.exit_code == 2 or isinstance(done.exception, FormatError)
    assert "its name says csv, --format says latex" in done.output + str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format_", SUFFIXES)
@pytest.mark.parametrize(
    "words",
    [
        ["export", str(DEMO_LOG)],
        ["show", str(DEMO_LOG)],
        ["reference", str(DEMO_LOG)],
        ["compare", f"{DEMO_LOG}:1", f"{DEMO_LOG}:2"],
        ["plan", "--gpu", "H100"],
        ["sessions"],
    ],
    ids=lambda words: words[0],
)
def test_the_suffix_says_the_format(words: list[str], format_: str, tmp_path: Path) -> None:
    file = tmp_path / f"t.{SUFFIXES[format_]}"
    done = run(*words, "-o", str(file), folder=DEMO_LOG.parent)
    assert done.exit_code == 0, done.output
    assert done.output.endswith(f"wrote {file}\n")
    assert len(file.read_text()) > 20
    every_note = ["-v"] if words[0] == "show" else []
    assert file.read_text() in run(*words, *every_note, "--format", format_, folder=DEMO_LOG.parent).stdout


@pytest.mark.parametrize(
    ("asked", "name", "format_"),
    [
        (None, None, "markdown"),
        ("latex", None, "latex"),
        (None, "a.TEX", "latex"),
        (None, "a.htm", "html"),
        (None, "a.v2.csv", "csv"),
        (None, "results", "markdown"),
        ("json", "results", "json"),
        ("json", "a.dat", "json"),
        ("latex", "a.txt", "latex"),
        (None, "a.txt", "table"),
        ("table", "a.txt", "table"),
    ],
)
def test_what_is_asked_for_and_the_name_settle_the_format(asked: str | None, name: str | None, format_: str) -> None:
    assert settled_format(asked, Path(name) if name else None, "markdown") == format_


@pytest.mark.parametrize(
    ("asked", "name", "why"),
    [
        ("latex", "t.csv", "its name says csv, --format says latex; leave out --format, or name it *.tex"),
        ("table", "t.md", "its name says markdown, --format says table"),
        (None, "t.xlsx", ".xlsx is not a table format (spreadsheets open .csv); use .md, .tex"),
        (None, "t.pdf", "pandoc or typst makes a PDF"),
        (None, "t.png", "export --figures DIR"),
        (None, "log.jsonl", ".jsonl is not a table format; use .md, .tex, .typ, .csv, .json, .html or .txt"),
    ],
)
def test_a_name_that_says_something_else_is_refused_in_one_line(asked: str | None, name: str, why: str) -> None:
    with pytest.raises(FormatError) as refused:
        settled_format(asked, Path(name), "markdown")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("words", [["estimate", "--size", "small"], ["bench"], ["peak"], ["show", str(DEMO_LOG)]])
def test_no_clobber_refuses_a_file_that_is_there_before_anything_runs(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("mine")
    done = run(*words, "--format", "csv", "-o", str(file), "--no-clobber", folder=tmp_path)
    said = done.output + str(done.exception)
    assert "t.csv: already exists; choose another name, or leave out --no-clobber" in said
    assert [each.name for each in tmp_path.iterdir()] == ["t.csv"]
    assert file.read_text() == "mine"


def test_a_file_that_is_there_is_written_over_and_no_clobber_counts_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    for before, after, code in (
        ((), (), 0),
        (("--force",), (), 0),
        (("--no-clobber",), (), 2),
        ((), ("--no-clobber",), 2),
    ):
        file.write_text("mine")
        words = [*before, "-o", str(file), "--format", "csv", *after]
        assert run("show", str(DEMO_LOG), *words, folder=tmp_path).exit_code == code
        assert (file.read_text() == "mine") == bool(code)


@pytest.mark.parametrize("words", [["estimate", "--size", "small"], ["peak"], ["problems"]])
def test_a_folder_that_is_not_there_is_told_before_anything_runs(words: list[str], tmp_path: Path) -> None:
    done = run(*words, "-o", str(tmp_path / "none" / "t.csv"), folder=tmp_path)
    assert f"directory {tmp_path / 'none'} does not exist" in done.output + str(done.exception)
    assert done.exit_code != 0


def test_a_text_whose_file_was_lost_meanwhile_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExportError, match="does not exist"):
        Destination("markdown", tmp_path / "gone" / "t.md").deliver("the result\n")
    assert capsys.readouterr().out == "the result\n"


def test_a_name_without_suffix_gets_the_usual_format_and_the_command_says_so(tmp_path: Path) -> None:
    file = tmp_path / "results"
    done = run("export", str(DEMO_LOG), "-o", str(file), folder=tmp_path)
    assert done.output == f"wrote {file}, as markdown\n"
    assert file.read_text().startswith("| size ")


def test_the_summary_is_a_folder_by_its_name(tmp_path: Path) -> None:
    done = run("summary", str(DEMO_LOG), "-o", str(tmp_path / "s.html"), folder=tmp_path)
    assert f"the summary is a folder; name one, such as {tmp_path / 's'}" in done.output + str(done.exception)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--summary", "--notes"])
def test_files_of_markdown_have_its_suffix(option: str, tmp_path: Path) -> None:
    words = ["export", str(DEMO_LOG)] if option == "--notes" else ["bench"]
    done = run(*words, option, str(tmp_path / "s.html"), folder=tmp_path)
    assert "this file is markdown; name it s.md" in done.output + str(done.exception)
    assert not list(tmp_path.iterdir())


def printed(*words: str | Path, tty: bool) -> str:
    output = Terminal() if tty else io.StringIO()
    with redirect_stdout(output):
        cli.main([*map(str, words)], prog_name="cs336-tui", standalone_mode=False)
    return output.getvalue()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("terminal")
def test_a_pipe_gets_whole_tables_as_ever() -> None:
    table = results_table(results_of(store.load(DEMO_LOG)))
    assert printed("export", DEMO_LOG, tty=False) == render(table, "markdown")
    assert printed("show", DEMO_LOG, "-v", tty=False).partition("\n\n")[2] == render(table, "markdown")
    brief, notes = printed("show", DEMO_LOG, tty=False).split("\n\n")[1:]
    assert brief == render(table, "markdown").partition("\n\n")[0]
    assert notes == f"- {len(table.footnotes)} notes on these numbers: -v shows them\n"
    assert printed("export", DEMO_LOG, "--format", "latex", tty=True) == render(table, "latex")


ON_TERMINAL: Sequence[Sequence[str | Path]] = (
    ["show", DEMO_LOG],
    ["export", DEMO_LOG],
    ["export", DEMO_LOG, "--pivot", "size,precision:pass"],
    ["export", DEMO_LOG, "--reference"],
    ["export", DEMO_LOG, "--report", "roofline"],
    ["compare", f"{DEMO_LOG}:1", f"{DEMO_LOG}:2"],
    ["sessions", "--session-dir", DEMO_LOG.parent],
)


@pytest.mark.parametrize("words", ON_TERMINAL, ids=lambda words: " ".join(map(str, words[::2]))[:20])
@pytest.mark.usefixtures("terminal")
def test_every_line_fits_the_terminal_and_none_is_markdown(words: Sequence[str | Path]) -> None:
    for columns in ("60", "80", "132"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", columns)
            patch.setenv("TERM", "dumb")
            text = printed(*words, tty=True)
        assert max(map(len, text.splitlines())) <= int(columns)
        assert "\x1b" not in text
        assert "| -" not in text


@pytest.mark.usefixtures("terminal")
def test_a_format_that_is_asked_for_is_printed_on_a_terminal_too(tmp_path: Path) -> None:
    asked = printed("export", DEMO_LOG, "--format", "markdown", tty=True)
    assert asked == printed("export", DEMO_LOG, tty=False)
    file = tmp_path / "t.md"
    assert printed("export", DEMO_LOG, "-o", file, tty=True) == ""
    assert file.read_text() == asked


@pytest.mark.usefixtures("terminal")
def test_notes_are_behind_an_option() -> None:
    brief, whole = (printed("show", DEMO_LOG, *words, tty=True) for words in ([], ["-v"]))
    assert "25 notes on these numbers: -v shows them" in brief
    assert "each-step" not in brief
    assert "host clock between two device" in whole
    assert len(brief.splitlines()) < 35


@pytest.mark.parametrize(("variable", "value", "has"), [("NO_COLOR", "1", {"\x1b[1m"}), ("TERM", "dumb", set())])
@pytest.mark.usefixtures("terminal")
def test_a_terminal_that_wants_no_colour_gets_none(
    variable: str, value: str, has: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[32m" in printed("show", DEMO_LOG, tty=True)
    monkeypatch.setenv(variable, value)
    text = printed("show", DEMO_LOG, tty=True)
    assert "\x1b[3" not in text
    assert all(sequence in text for sequence in has)
    assert has or "\x1b" not in text
