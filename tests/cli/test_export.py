"""`cs336-tui export` and `summary` as a person uses them: files, formats, `--ddof`, one clear line for a mistake."""

import csv
import io
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from cs336_tui.cli.main import cli
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.export.writeups import LAYOUTS
from tests.attention_cells import attention_spec
from tests.export.grids import SMALL, by, grid_events
from tests.made_kernels import a_group, a_kernel_report
from tests.samples import LAPTOP, report_events, write_log

GRID = by(pass_=["forward", "train-step"], precision=["fp32", "bf16-mixed"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session folder with two sessions of two machines."""
    box = grid_events(GRID, session="2026-box")
    laptop = grid_events(by([SMALL], pass_=["forward"], device=["mps"]), session="2026-laptop", environment=LAPTOP)
    for name, events in (("2026-box", box), ("2026-laptop", laptop)):
        write_log(tmp_path / f"{name}.jsonl", events)
    return tmp_path


def run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--session-dir", str(folder)], catch_exceptions=False)


def export(folder: Path, *arguments: str) -> str:
    result = run(folder, "export", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_sessions_as_json_and_csv_are_the_promised_documents(folder: Path) -> None:
    document = json.loads(export(folder, "2026-b", "--format", "json"))
    assert document["schema"] == 1
    assert [run["status"] for run in document["runs"]] == ["ok"] * 8
    where = ("--where", "precision=fp32", "--where", "pass=forward")
    chosen = json.loads(export(folder, "2026-b", *where, "--format", "json"))["runs"]
    assert [run["spec"]["size"] for run in chosen] == ["small", "medium"]
    documents = json.loads(export(folder, "2026-box", "2026-laptop", "--format", "json"))["sessions"]
    assert [document["session"] for document in documents] == ["2026-box", "2026-laptop"]
    rows = list(csv.DictReader(io.StringIO(export(folder, "2026-box", "2026-laptop", "--format", "csv"))))
    assert [row["session"] for row in rows] == ["2026-box"] * 8 + ["2026-laptop"]
    assert (rows[0]["host"], rows[8]["host"]) == ("gpu-box", "laptop")


def test_a_pivot_with_a_baseline(folder: Path) -> None:
    text = export(
        folder, "2026-box", "--pivot", "size,pass:precision", "--value", "speedup", "--baseline", "precision=fp32"
    )
    assert "1 (baseline)" in text
    assert "over precision fp32" in text
    assert "small" in export(folder, "2026-box", "--pivot", "auto", "--format", "typst")


@pytest.mark.parametrize(
    "what", ["--pivot=auto", "--layout=min-max", "--columns=size,mean", "--reference", "--compare"]
)
def test_every_table_of_the_chosen_cells(folder: Path, what: str) -> None:
    text = export(folder, "2026-box", "2026-laptop", "--where", "pass=forward", what, "--format", "typst")
    assert "small" in text
    assert "train-step" not in text


def test_notes_are_left_out_of_any_format(folder: Path) -> None:
    asked = ("2026-box", "--layout", "by-mean", "--format", "latex")
    texts = export(folder, *asked), export(folder, *asked, "--no-notes")
    assert all("forward" in text for text in texts)
    assert ["sample standard deviation" in text for text in texts] == [True, False]


def test_figures_are_written_and_missing_ones_explained(folder: Path) -> None:
    result = run(folder, "export", "2026-laptop", "--figures", str(folder / "figures"))
    assert {path.suffix for path in (folder / "figures").iterdir()} == {".svg", ".pdf", ".png"}
    assert "no figure context-length: no choice was timed at two context lengths" in result.stderr


def test_the_heat_map_of_a_pivot_is_written_beside_the_other_figures(folder: Path) -> None:
    for name, pivot in (("plain", ()), ("pivoted", ("--pivot", "size,pass:precision"))):
        export(folder, "2026-box", *pivot, "--figures", str(folder / name))
    plain, pivoted = ({path.stem for path in (folder / name).iterdir()} for name in ("plain", "pivoted"))
    assert plain
    assert pivoted - plain == {"heat-map"}
    assert plain < pivoted


def test_summary_writes_a_folder(folder: Path) -> None:
    target = folder / "summary"
    assert run(folder, "summary", "2026-box", "-o", str(target)).exit_code == 0
    assert (target / "summary.html").is_file()
    for name in ("tables/verdicts.md", "tables/roofline.md", "figures/roofline.svg"):
        assert (target / name).is_file()
    assert not (target / "tables/roofline.csv").exists()
    assert run(folder, "summary", "2026-box", "-o", str(target), "--every-format").exit_code == 0
    assert (target / "tables/roofline.csv").is_file()
    again = run(folder, "summary", "2026-box", "-o", str(target), "--no-clobber")
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
        (["2026-box", "--columns", "nope"], "column nope: did you mean op?"),
        (["2026-box", "--compare"], "two different sessions"),
        (["2026-box", "--report", "ab"], "time two cells in turns with cs336-tui ab --a FLAGS --b FLAGS first"),
        (["2026-box", "--format", "csv", "--unit", "s"], "--unit s: CSV keeps every number unrounded"),
        (["2026-box", "--format", "json", "--digits", "0"], "--digits 0: JSON keeps every number unrounded"),
        (["2026-box", "--layout", "min-max", "--format", "csv", "--digits", "1"], "--digits 1: CSV keeps every number"),
        (["2026-box", "--format", "json", "--caption", "Mine"], "--caption: JSON has no caption here"),
        (["2026-box", "--pivot", "auto", "--format", "csv", "--caption", "Mine"], "--caption: CSV has no caption here"),
        (["2026-box", "--style", "pandas", "--format", "csv"], "--style pandas writes markdown, not csv"),
        (["2026-box", "--style", "pandas", "--digits", "3"], "--digits 3"),
        (["2026-box", "--style", "pandas", "--unit", "s"], "--unit s"),
        (["2026-box", "--no-index"], "--style pandas"),
        (["2026-box", "--format", "json", "--notes", "notes.md"], "--notes"),
    ],
)
def test_a_mistake_is_one_clear_line(folder: Path, arguments: list[str], words: str) -> None:
    result = run(folder, "export", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


SPECS = (
    *by([SMALL], pass_=["forward", "train-step"], precision=["fp32", "bf16-mixed"]),
    *by([SMALL], pass_=["train-step"], compile=["default"]),
    *by([SMALL], pass_=["train-step"], checkpoint=[1, 2]),
    *by([SMALL], pass_=["train-step"], optimizer=["adamw-fused"]),
    attention_spec(measure_steps=6),
    attention_spec(workload="norm", measure_steps=6),
    *by([SMALL], pass_=["train-step"], ranks=[2], parallel=["ddp", "zero1"]),
    *sweep_from(workload="collective", ranks=(2,), sizes=("1MB",), devices=("cpu",), steps=6).cells(),
)
NOTE = {0: "population standard deviation, n (ddof 0)", 1: "sample standard deviation, n − 1"}
STD = {0: statistics.pstdev, 1: statistics.stdev}
DURATIONS = (100.0, 110.0, 160.0)


def noisy(spec: CellSpec) -> list[float]:
    return [0.010 * (1 + 0.1 * math.sin(7.0 * step)) for step in range(spec.measure_steps)]


@pytest.fixture
def noisy_session(tmp_path: Path) -> Path:
    """A session that asked for a ddof of 1, with a kernel report of one kernel."""
    report = a_kernel_report(SPECS[0], groups=(a_group("gemm", "matrix multiply", "forward", "", DURATIONS),))
    write_log(tmp_path / "one.jsonl", [*grid_events(SPECS, times=noisy), *report_events(report)])
    return tmp_path


def exported(folder: Path, *arguments: str) -> str:
    return export(folder, "one", *arguments)


@pytest.mark.parametrize(
    "table",
    [
        (), ("--pivot", "auto"), ("--pivot", "auto", "--value", "std"), ("--columns", "size,pass,std"),
        ("--reference",), ("--report", "kernels"), ("--report", "mixed-precision"),
        *(("--layout", name) for name in LAYOUTS if name != "leaderboard"),  # no cell of it is an entry
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_table_with_a_std_follows_and_says_which(noisy_session: Path, table: tuple[str, ...]) -> None:
    texts = {ddof: exported(noisy_session, *table, "--ddof", str(ddof)) for ddof in NOTE}
    for ddof, text in texts.items():
        assert NOTE[ddof] in text
        assert NOTE[1 - ddof] not in text
    tables = ["\n".join(row for row in text.splitlines() if "|" in row) for text in texts.values()]
    if "std" in tables[0].lower() or "±" in tables[0]:
        assert tables[0] != tables[1]
    else:
        assert "--layout" in table or tables[0] != tables[1], "only layouts have tables without a std"
    assert exported(noisy_session, *table) == texts[1], "without --ddof as the session has it"


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_std_in_data_is_that_of_the_steps(noisy_session: Path, ddof: int) -> None:
    document = json.loads(exported(noisy_session, "--format", "json", "--ddof", str(ddof)))
    for record in document["runs"]:
        assert record["summary"]["ddof"] == ddof
        assert record["summary"]["std_s"] == pytest.approx(np.std(record["step_times_s"], ddof=ddof))
    rows = csv.DictReader(
        io.StringIO(exported(noisy_session, "--report", "kernels", "--format", "csv", "--ddof", str(ddof)))
    )
    found = [float(row["std_ns"]) for row in rows if row.get("std_ns") and row["name"] == "gemm"]
    assert found
    assert found == pytest.approx([STD[ddof](DURATIONS) * 1000] * len(found))


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_problem_follows_with_the_stds_of_kernels_too(noisy_session: Path, ddof: int) -> None:
    text = exported(noisy_session, "--problem", "nsys_profile", "--ddof", str(ddof))
    rows = [row for row in text.splitlines() if "gemm" in row]
    assert any(f"{STD[ddof](DURATIONS) * 1000:,.1f}" in row for row in rows)
    assert not any(f"{STD[1 - ddof](DURATIONS) * 1000:,.1f}" in row for row in rows)
    assert NOTE[1 - ddof] not in text
