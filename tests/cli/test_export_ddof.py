"""`export --ddof`: every std of every table and figure, and the note that says which it is."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.codec import to_line
from cs336_tui.events.events import CellsQueued, Event, ReportFinished, ReportStarted
from cs336_tui.export.writeups import LAYOUTS
from tests.attention_cells import attention_spec
from tests.cli.test_export import run
from tests.export.grids import SMALL, by, grid_events
from tests.made_kernels import a_group, a_kernel_report
from tests.samples import START

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
def folder(tmp_path: Path) -> Path:
    """A session that asked for a ddof of 1, with a kernel report of one kernel."""
    report = a_kernel_report(SPECS[0], groups=(a_group("gemm", "matrix multiply", "forward", "", DURATIONS),))
    events: list[Event] = [
        *grid_events(SPECS, times=noisy),
        ReportStarted(at=START + 100, report=0, kind="kernels", spec=report.spec),
        ReportFinished(at=START + 101, report=0, status="ok", content=report),
    ]
    (tmp_path / "one.jsonl").write_bytes(b"".join(map(to_line, events)))
    return tmp_path


def exported(folder: Path, *arguments: str) -> str:
    result = run(folder, "export", "one", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "table",
    [
        (), ("--pivot", "auto"), ("--pivot", "auto", "--value", "std"), ("--columns", "size,pass,std"),
        ("--reference",), ("--report", "kernels"), ("--report", "mixed-precision"),
        *(("--layout", name) for name in LAYOUTS),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_table_with_a_std_follows_and_says_which(folder: Path, table: tuple[str, ...]) -> None:
    texts = {ddof: exported(folder, *table, "--ddof", str(ddof)) for ddof in NOTE}
    for ddof, text in texts.items():
        assert NOTE[ddof] in text
        assert NOTE[1 - ddof] not in text
    tables = ["\n".join(row for row in text.splitlines() if "|" in row) for text in texts.values()]
    if "std" in tables[0].lower() or "±" in tables[0]:
        assert tables[0] != tables[1]
    else:
        assert "--layout" in table or tables[0] != tables[1], "only layouts have tables without a std"
    assert exported(folder, *table) == texts[1], "without --ddof as the session has it"


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_std_in_data_is_that_of_the_steps(folder: Path, ddof: int) -> None:
    document = json.loads(exported(folder, "--format", "json", "--ddof", str(ddof)))
    for record in document["runs"]:
        assert record["summary"]["ddof"] == ddof
        assert record["summary"]["std_s"] == pytest.approx(np.std(record["step_times_s"], ddof=ddof))
    rows = csv.DictReader(io.StringIO(exported(folder, "--report", "kernels", "--format", "csv", "--ddof", str(ddof))))
    found = [float(row["std_ns"]) for row in rows if row.get("std_ns") and row["name"] == "gemm"]
    assert found
    assert found == pytest.approx([STD[ddof](DURATIONS) * 1000] * len(found))


@pytest.mark.parametrize("ddof", [0, 1])
def test_a_problem_follows_with_the_stds_of_kernels_too(folder: Path, ddof: int) -> None:
    text = exported(folder, "--problem", "nsys_profile", "--ddof", str(ddof))
    rows = [row for row in text.splitlines() if "gemm" in row]
    assert any(f"{STD[ddof](DURATIONS) * 1000:,.1f}" in row for row in rows)
    assert not any(f"{STD[1 - ddof](DURATIONS) * 1000:,.1f}" in row for row in rows)
    assert NOTE[1 - ddof] not in text


def test_a_session_of_ddof_0_can_be_shown_with_1(folder: Path) -> None:
    events = [
        msgspec.structs.replace(event, ddof=0) if isinstance(event, CellsQueued) else event
        for event in grid_events(SPECS[:1], times=noisy)
    ]
    (folder / "one.jsonl").write_bytes(b"".join(map(to_line, events)))
    assert NOTE[0] in exported(folder)
    assert NOTE[1] in exported(folder, "--ddof", "1")


def test_figures_follow(folder: Path) -> None:
    for ddof in NOTE:
        exported(
            folder,
            "--where",
            "size=small",
            "--where",
            "pass=forward",
            "--ddof",
            str(ddof),
            "--figures",
            str(folder / str(ddof)),
        )
    drawn = [ElementTree.parse(folder / str(ddof) / "passes-by-size.svg").iter() for ddof in NOTE]
    bars = [[each.get("d") for part in whole if "LineCollection" in part.get("id", "") for each in part.iter()]
            for whole in drawn]  # fmt: skip
    assert any(bars[0])
    assert bars[0] != bars[1]
