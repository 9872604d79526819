"""`cs336-tui export` and `summary` as a person uses them: files, formats, and one clear line for a mistake."""

import csv
import io
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cs336_tui.cli import export as export_cli
from cs336_tui.cli.main import cli
from cs336_tui.events.codec import to_line
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.writing.files import FORMATS
from tests.export.grids import LAPTOP, SMALL, by, grid_events

GRID = by(pass_=["forward", "train-step"], precision=["fp32", "bf16-mixed"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session folder with two sessions of two machines."""
    box = grid_events(GRID, session="2026-box")
    laptop = grid_events(by([SMALL], pass_=["forward"], device=["mps"]), session="2026-laptop", environment=LAPTOP)
    for name, events in (("2026-box", box), ("2026-laptop", laptop)):
        (tmp_path / f"{name}.jsonl").write_bytes(b"".join(map(to_line, events)))
    return tmp_path


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--session-dir", str(folder)], catch_exceptions=False)


def export(folder: Path, *arguments: str) -> str:
    result = run(folder, "export", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_one_session_as_json_is_the_promised_document(folder: Path) -> None:
    document = json.loads(export(folder, "2026-b", "--format", "json"))
    assert document["schema"] == 1
    assert [run["status"] for run in document["runs"]] == ["ok"] * 8


def test_several_sessions_as_json_and_csv(folder: Path) -> None:
    documents = json.loads(export(folder, "2026-box", "2026-laptop", "--format", "json"))["sessions"]
    assert [document["session"] for document in documents] == ["2026-box", "2026-laptop"]
    rows = list(csv.DictReader(io.StringIO(export(folder, "2026-box", "2026-laptop", "--format", "csv"))))
    assert [row["session"] for row in rows] == ["2026-box"] * 8 + ["2026-laptop"]
    assert (rows[0]["host"], rows[8]["host"]) == ("gpu-box", "laptop")


def test_where_keeps_the_chosen_cells(folder: Path) -> None:
    arguments = ("2026-box", "--where", "precision=fp32", "--where", "pass=forward")
    document = json.loads(export(folder, *arguments, "--format", "json"))
    assert [run["spec"]["size"] for run in document["runs"]] == ["small", "medium"]
    assert "train-step" not in export(folder, *arguments)


def test_a_pivot_with_a_baseline(folder: Path) -> None:
    text = export(
        folder, "2026-box", "--pivot", "size,pass:precision", "--value", "speedup", "--baseline", "precision=fp32"
    )
    assert "1 (baseline)" in text
    assert "over precision fp32" in text
    assert "small" in export(folder, "2026-box", "--pivot", "auto", "--format", "typst")


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "what", ["--pivot=auto", "--layout=min-max", "--columns=size,mean", "--reference", "--compare"]
)
def test_every_table_has_every_format(folder: Path, what: str, format_: str) -> None:
    assert "small" in export(folder, "2026-box", "2026-laptop", "--where", "pass=forward", what, "--format", format_)


def test_html_opens_alone(folder: Path) -> None:
    text = export(folder, "2026-box", "--format", "html", "--caption", "Mine & yours")
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>Mine &amp; yours</title>" in text


def test_a_file_is_written_once_and_again_only_by_force(folder: Path) -> None:
    target = folder / "table.md"
    arguments = ("export", "2026-box", "-o", str(target))
    assert run(folder, *arguments).exit_code == 0
    target.write_text("mine")
    again = run(folder, *arguments)
    assert (again.exit_code, target.read_text()) == (2, "mine")
    assert run(folder, *arguments, "--force").exit_code == 0
    assert target.read_text().startswith("| size")


def test_figures_are_written_and_missing_ones_explained(folder: Path) -> None:
    result = run(folder, "export", "2026-laptop", "--figures", str(folder / "figures"))
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".svg", ".pdf", ".png"}
    assert "no figure context-length: no choice was timed at two context lengths" in result.stderr


def test_the_roofline_needs_no_prediction_and_says_what_to_do_for_the_peak(folder: Path) -> None:
    arguments = ("export", "2026-box", "--report", "roofline")
    result = run(folder, *arguments, "--figures", str(folder / "figures"))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("| small ") == 4
    assert "% of measured peak" in result.stdout
    assert "run cs336-tui peak on the machine of these cells" in result.stdout
    assert (folder / "figures" / "roofline.svg").stat().st_size > 0
    rows = json.loads(export(folder, *arguments[1:], "--format", "json"))["rows"]
    assert {row["share_of_measured"] for row in rows} == {None}
    assert all(row["share_of_sheet"] > 0 for row in rows)


def test_the_choices_of_reports_are_those_that_there_are() -> None:
    (option,) = [each for each in export_cli.export.params if each.name == "report"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == tuple(REPORTS)


def test_summary_writes_a_folder(folder: Path) -> None:
    target = folder / "summary"
    assert run(folder, "summary", "2026-box", "-o", str(target)).exit_code == 0
    assert (target / "summary.html").is_file()
    for name in ("tables/verdicts.md", "tables/roofline.csv", "figures/roofline.svg"):
        assert (target / name).is_file()
    again = run(folder, "summary", "2026-box", "-o", str(target))
    assert again.exit_code == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["2026"], "fits 2: 2026-box, 2026-laptop"),
        (["nope"], "no session 'nope'"),
        (["2026-box", "--pivot", "size"], "expected ROWS:COLUMNS"),
        (["2026-box", "--pivot", "context:pass"], "every cell has 128"),
        (["2026-box", "--pivot", "size:pass"], "precision"),
        (["2026-box", "--pivot", "size:colour"], "field colour"),
        (["2026-box", "--pivot", "auto", "--layout", "min-max"], "use one of them"),
        (["2026-box", "--value", "median"], "need --pivot"),
        (["2026-box", "--where", "precision"], "expected KEY=VALUE"),
        (["2026-box", "--where", "precision=int3"], "precision here is one of fp32, bf16-mixed"),
        (["2026-box", "--layout", "nope"], "layout nope: expected one of forward-only"),
        (["2026-box", "--layout", "min-max", "--unit", "s"], "fixed units"),
        (["2026-box", "--columns", "nope"], "column nope: expected some of"),
        (["2026-box", "--compare"], "two different sessions"),
        (["2026-box", "--report", "ab"], "time two cells in turns with cs336-tui ab --a FLAGS --b FLAGS first"),
        (["2026-box", "-o", "no/such/folder/x.md"], "does not exist"),
        (["2026-box", "--format", "csv", "--unit", "s"], "--unit s: CSV keeps every number unrounded"),
        (["2026-box", "--format", "json", "--digits", "0"], "--digits 0: JSON keeps every number unrounded"),
        (["2026-box", "--layout", "min-max", "--format", "csv", "--digits", "1"], "--digits 1: CSV keeps every number"),
        (["2026-box", "--format", "json", "--caption", "Mine"], "--caption: JSON has no caption here"),
        (["2026-box", "--pivot", "auto", "--format", "csv", "--caption", "Mine"], "--caption: CSV has no caption here"),
    ],
)
def test_a_mistake_is_one_clear_line(folder: Path, arguments: list[str], words: str) -> None:
    result = run(folder, "export", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
