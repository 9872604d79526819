"""`cs336-tui compare` as people and scripts call it."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cs336_tui.analysis.published import ReferenceFileError, own_path
from cs336_tui.cli.compare import compare, reference
from cs336_tui.cli.main import cli
from cs336_tui.session.log import LogError
from tests.samples import sized, write_log
from tests.session.made import OLD_LAPTOP, OTHER_GPU, Cell, cell, events_of

SLOW, FAST = [0.2000, 0.2001, 0.1999, 0.2000] * 3, [0.1000, 0.1001, 0.0999, 0.1000] * 3


def put(folder: Path, session: str, *cells: Cell, **more: object) -> Path:
    return write_log(folder / f"{session}.jsonl", events_of(*cells, session=session, **more))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path, "2026-01-01", cell(SLOW), cell(FAST, pass_="forward"), cell(status="oom", pass_="train-step"))
    put(tmp_path, "2026-01-02", cell(FAST), cell(FAST, pass_="forward"), cell(FAST, pass_="backward"),
        environment=OTHER_GPU)  # fmt: skip
    return tmp_path


def compared(a: str, b: str, folder: Path) -> str:
    return compare.callback(a, b, folder, format_="table")


def test_two_sessions_as_text(folder: Path) -> None:
    said = compared("2026-01-01", "last", folder)
    lines = said.splitlines()
    assert said.split()[:4] == ["A", "2026-01-01", "B", "2026-01-02"]
    assert "host: gpu-box | other-box" in [line.removeprefix("differs, A | B").strip() for line in lines]
    row = next(line for line in lines if line.startswith("small") and "forward+backward" in line)
    assert "200.000 ± 0.074" in row
    assert "all: B (ms) 100.000 ± 0.074" in said, "what all rows share stands above them"
    assert "slower" in row
    assert "2.000 [" in row
    assert any(line.startswith("same 1: ") for line in lines)
    assert lines[lines.index("only in A:") + 1].startswith("  small · ctx 128 · train-step")
    assert lines[lines.index("only in A:") + 1].endswith(": OOM")
    assert lines[lines.index("only in B:") + 1].strip().startswith("small · ctx 128 · backward")


def test_what_did_not_fit_has_no_verdict(tmp_path: Path) -> None:
    put(tmp_path, "one", cell(FAST), cell(status="oom", pass_="forward"))
    put(tmp_path, "two", cell(FAST), cell(FAST, pass_="forward"))
    lines = compared("one", "two", tmp_path).splitlines()
    (row,) = (line for line in lines if "OOM" in line)
    assert row.split()[:3] == ["small", "forward", "OOM"]
    assert "ambiguous" not in row
    assert not any(line.startswith("ambiguous") for line in lines)


def test_one_cell_of_each(folder: Path) -> None:
    said = compared("2026-01-01:1", "2026-01-01:2", folder)
    assert said.split()[:4] == ["A", "2026-01-01:1", "B", "2026-01-01:2"]
    assert "pass: forward+backward | forward" in said
    assert "slower 1" in said


def test_as_json(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["compare", "2026-01-01", "2026-01-02", "--json", "--session-dir", str(folder)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["schema"] == 1
    assert [pair["verdict"] for pair in found["pairs"]] == ["slower", "same"]
    assert found["pairs"][0]["ratio"]["ratio"] == pytest.approx(2)
    assert found["pairs"][0]["a"]["summary"]["n"] == 12
    assert found["pairs"][0]["a"]["spec"]["pass"] == "forward+backward"


def test_sessions_of_one_name_are_told_by_their_ids(tmp_path: Path) -> None:
    for session in ("one", "two"):
        put(tmp_path, session, cell(FAST), name="quick")
    assert compared("one", "two", tmp_path).split()[:4] == ["A", "one:1", "B", "two:1"]


def test_nothing_in_common_is_said(tmp_path: Path) -> None:
    put(tmp_path, "one", cell(FAST, device="cpu"), cell(FAST, device="mps"), environment=OLD_LAPTOP)
    put(tmp_path, "two", cell(FAST), cell(FAST, pass_="forward"))
    assert "A and B have no cell in common." in compared("one", "two", tmp_path)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ("2026-01-01", "nothing", "no session 'nothing'"),
        ("last:9", "last", "cell 9: session 2026-01-02 has cells 1 to 3"),
        ("last:0", "last", "cell 0: session 2026-01-02 has cells 1 to 3"),
        ("last:x", "last", "no session 'last:x'"),
    ],
)
def test_what_is_not_there_is_bad_usage(folder: Path, a: str, b: str, said: str) -> None:
    with pytest.raises((click.UsageError, LogError)) as error:
        compared(a, b, folder)
    assert error.value.exit_code == 2
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("a", "b"), [("last", "last"), ("last", "2026-01-02"), ("last:1", "last:1"), ("last", "last:2"), ("last:1", "last")]
)
def test_what_is_compared_with_itself_is_bad_usage(folder: Path, a: str, b: str) -> None:
    with pytest.raises(click.UsageError, match=r"^A and B are both (cell 1 of )?2026-01-02; name another, or "):
        compared(a, b, folder)


def test_two_copies_of_one_log_are_bad_usage(folder: Path) -> None:
    copy = folder / "copy.jsonl"
    copy.write_bytes((folder / "2026-01-02.jsonl").read_bytes())
    with pytest.raises(click.UsageError, match=r"^A and B are both 2026-01-02; name another, or "):
        compared("2026-01-02", str(copy), folder)


def beside_published(folder: Path, keep: str | None = None) -> str:
    return reference.callback("one", keep, folder, format_="table")


@pytest.fixture
def own_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of one's own reference points, which is not there yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return own_path()


def test_reference_points_beside_a_sessions_cells(tmp_path: Path, own_points: Path) -> None:
    put(tmp_path, "one", cell([0.0161, 0.0161], pass_="forward", context_length=512, warmup_steps=5, measure_steps=10))
    said = beside_published(tmp_path)
    assert said.startswith("small forward fp32: 16.1 ms here; 16.3 published on B200")
    assert "44.4 on A100" in said
    assert beside_published(tmp_path, "this box") == "kept 1 reference point as 'this box'"
    assert "16.1 noted as this box on NVIDIA H100 80GB HBM3" in beside_published(tmp_path)
    with pytest.raises(ReferenceFileError, match="exist already"):
        beside_published(tmp_path, "this box")
    own_points.write_text("nonsense")
    with pytest.raises(ReferenceFileError, match="line 1: no column"):
        beside_published(tmp_path)


@pytest.mark.usefixtures("own_points")
def test_published_peaks_and_kernels_follow_the_times(tmp_path: Path) -> None:
    put(tmp_path, "one", cell([0.9], **sized("2.7B", "2025"), pass_="train-step"))
    said = beside_published(tmp_path).splitlines()
    whole = said.index("2.7B train-step fp32, ctx 128, peak: 1.00 GB here")
    assert said[whole + 1].startswith("  55.2 GB, here / there 0.02: public repository EnzoDing-rgb")


def test_pairs_of_several_variants_are_told_apart_and_a_common_one_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        put(tmp_path, name, *(cell(FAST, attention=each, compile="default") for each in ("naive", "sdpa")))
    lines = compared("one", "two", tmp_path).splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("small")] == [["small", "naive"], ["small", "sdpa"]]
    (shared,) = (line for line in lines if line.startswith("every pair"))
    assert "compile default" in shared
    assert "checkpoint" not in shared
