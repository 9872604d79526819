"""`cs336-tui problems`, and `export --problem` with the files that it writes."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from cs336_tui.analysis.estimates import judge
from cs336_tui.analysis.targets import named_target
from cs336_tui.cli.main import cli
from cs336_tui.cli.problems import problems
from cs336_tui.cli.run import name_of_log
from cs336_tui.config.order import rough_peak_bytes
from cs336_tui.config.presets import preset
from cs336_tui.config.problems import every_problem, problem_named
from cs336_tui.config.spec import SpecError
from cs336_tui.events.gpus import find_gpu
from cs336_tui.runner.predictor import PredictionError
from cs336_tui.session.log import LogError, default_session_dir
from tests.cli import a_machine
from tests.export.grids import MAGIC
from tests.made_predictions import MadePredictor
from tests.made_problems import problem_events
from tests.samples import write_log

FEW = ("--where", "context=128", "--where", "precision=fp32")
"""Two of the cells."""


def said(folder: Path, predictor: MadePredictor | None = None, **more: Any) -> str:
    options: dict[str, Any] = {
        "name": None, "session": None, "edition": None, "gpu": None, "format_": "json", "output": None,
        "overwrite": True, "session_dir": folder,
    }  # fmt: skip
    with a_machine(predictor or MadePredictor()):
        return problems.callback(**(options | more))


def listed(folder: Path, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said(folder, **more))["rows"]
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session folder with the whole of 2025's memory_profiling."""
    write_log(tmp_path / "memory.jsonl", problem_events(*problem_named("2025/memory_profiling")))
    return tmp_path


def export(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["export", "last", "--session-dir", str(folder), *words], catch_exceptions=False)


def test_every_problem_of_an_edition_is_listed_with_its_needs(tmp_path: Path) -> None:
    for edition in ("2024", "2025", "2026"):
        names = [row.name for each, row in every_problem() if each == edition]
        assert [row["problem"] for row in listed(tmp_path, edition=edition)] == names
    assert len(listed(tmp_path, edition="all")) == len(list(every_problem()))
    newest = listed(tmp_path)
    assert {row["edition"] for row in newest} == {"2026"}
    assert "other handouts: --edition 2025, 2024 or all" in said(tmp_path, format_="table")
    assert "other handouts" not in said(tmp_path, format_="table", edition="all")
    (script,) = [row for row in newest if row["problem"] == "benchmarking_script"]
    assert script["cells"] == 15
    assert "10B · ctx 512 · train-step" in script["largest"]
    assert script["needed_bytes"] > 0
    (checkpointing,) = [row for row in newest if row["problem"] == "gradient_checkpointing"]
    assert checkpointing["cells"] == 14 + 3, "three of the six nested ones are among the others"
    assert {row["gpu"] for row in newest if row["problem"].startswith("mixed_precision_acc")} == {""}


def test_a_problem_that_is_named_is_shown_alone_with_its_parts_and_their_commands(folder: Path) -> None:
    needs, parts = json.loads(said(folder, name="memory-profiling"))["tables"]
    assert [(row["problem"], row["cells"]) for row in needs["rows"]] == [("memory_profiling", 12)]
    assert len(parts["rows"]) == 5
    shown = said(folder, name="memory-profiling", format_="table")
    assert "2025/pytorch_attention" not in shown
    assert "cs336-tui bench --preset 2025/memory_profiling" in shown
    for part in problem_named("2025/memory_profiling")[0].parts:
        assert part.asks in shown
    assert "then: cs336-tui export last --problem memory_profiling" in shown
    assert "2026/memory_profiling" in said(folder, name="2026/memory_profiling", format_="table")


def test_what_stands_there_may_be_a_session_too(folder: Path) -> None:
    assert listed(folder, name="memory") == listed(folder)
    assert "in the session" in said(folder, name="nsys_profile", session="memory", format_="table")
    with pytest.raises(SpecError, match="problem nothing"):
        said(folder, name="nothing")


def test_an_edition_without_the_problem_and_the_last_session_of_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="--edition 2024 does not have 2026/end_to_end; leave out --edition"):
        said(tmp_path, name="end_to_end", edition="2024")
    assert "2024/benchmarking_script" in said(tmp_path, name="benchmarking_script", edition="2024", format_="table")
    with pytest.raises(LogError, match=r"no session in .* yet"):
        said(tmp_path, name="last")


def test_the_time_is_that_of_all_cells_that_fit_by_their_work(tmp_path: Path) -> None:
    (row,) = [row for row in listed(tmp_path, gpu="H100 80GB") if row["problem"] == "pytorch_attention"]
    cells = preset("2026/pytorch_attention").sweep.with_devices(("cuda:0",)).cells()
    assert row["fit"] == len(cells)
    largest = max(cells, key=rough_peak_bytes)
    (prediction,) = MadePredictor().predict([largest])
    step_s = judge(prediction, named_target(find_gpu("H100 80GB"))).low_s
    assert step_s
    # 5 steps of warm-up and 100 measured ones a cell; forward is a third of forward and backward.
    work = {cell: cell.context_length**2 * cell.d_model * (3 if cell.pass_ == "backward" else 1) for cell in cells}
    assert row["low_s"] == pytest.approx(step_s * 105 * sum(work.values()) / work[largest])


def test_what_a_session_has_is_told(folder: Path) -> None:
    found = {row["problem"]: row for row in listed(folder)}
    assert {row["edition"] for row in found.values()} == {"2025"}, "the session's edition"
    memory = found["memory_profiling"]
    assert (memory["done"], memory["missing"], memory["cells_done"]) == ("a b c d e", "", 12)
    assert found["pytorch_attention"]["done"] == ""


def test_a_cell_that_cannot_be_predicted_costs_its_own_row_only(tmp_path: Path) -> None:
    class Fails(MadePredictor):
        def predict(self, specs: Any, *args: Any, **more: Any) -> Any:
            if specs[0].workload == "attention":
                raise PredictionError("it cannot be followed")
            return super().predict(specs, *args, **more)

    found = {row["problem"]: row["needed_bytes"] for row in listed(tmp_path, predictor=Fails())}
    assert found["pytorch_attention"] is None
    assert found["benchmarking_script"] > 0


def test_a_document_and_its_figures_lie_side_by_side(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    result = export(folder, "--problem", "memory_profiling", *FEW, "-o", str(out / "memory.md"))
    assert result.exit_code == 0, result.stderr
    text = (out / "memory.md").read_text()
    assert text.startswith("# 2025 memory_profiling: ")
    figures = sorted(path.name for path in (out / "memory-figures").iterdir())
    assert len(figures) == 2 * 3
    for name in figures:
        assert (out / "memory-figures" / name).read_bytes().startswith(MAGIC[name.rpartition(".")[2]])
    shown = [line for line in text.splitlines() if line.startswith("![")]
    assert len(shown) == 2
    for line in shown:
        assert (out / line.partition("](<")[2].rstrip(">)")).is_file()


def test_without_a_file_the_figures_are_offered(folder: Path, tmp_path: Path) -> None:
    result = export(folder, "--problem", "memory_profiling", *FEW)
    assert "2 figures: figures are written beside it with -o FILE" in result.stderr
    assert "![" not in result.stdout
    figures = ("--figures", str(tmp_path / "here"), "--format", "latex")
    result = export(folder, "--problem", "memory_profiling", *FEW, *figures)
    assert f"\\detokenize{{{(tmp_path / 'here').as_posix()}/memory-timeline-" in result.stdout
    assert len(list((tmp_path / "here").glob("*.pdf"))) == 2


def test_notes_go_to_a_file_or_nowhere(folder: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    result = export(folder, "--problem", "memory_profiling", "--notes", str(notes))
    assert not [line for line in result.stdout.splitlines() if line.startswith("- ")]
    assert "- " in notes.read_text()


def test_tables_as_pandas_writes_them_stand_under_the_same_headings(folder: Path) -> None:
    plain = export(folder, "--problem", "memory_profiling").stdout
    result = export(folder, "--problem", "memory_profiling", "--style", "pandas", "--no-index")
    assert result.exit_code == 0, result.stderr
    assert "--notes FILE writes them" in result.stderr

    def told(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith(("#", "**", "for a person"))]

    assert told(result.stdout) == told(plain)
    assert "|:-------|" in result.stdout
    assert "| residual_stream " in result.stdout
    assert not [line for line in result.stdout.splitlines() if line.startswith("- ")]


def test_the_command_for_the_parts_finds_a_session_of_another_folder(tmp_path: Path) -> None:
    assert name_of_log(default_session_dir() / "2026-11-20.jsonl") == "last"
    assert name_of_log(tmp_path / "my runs" / "a.jsonl") == f"'{tmp_path}/my runs/a.jsonl'"


def test_what_cannot_be_is_one_line(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["export", "last", "--session-dir", str(folder), "--problem", "nothing"])
    assert result.exit_code == 2
    assert "problem nothing: expected one of benchmarking_script" in result.stderr
    for other in (["--layout", "min-max"], ["--unit", "s"], ["--digits", "2"], ["--caption", "x"], ["--pivot", "auto"]):
        assert export(folder, "--problem", "warmup", *other).exit_code == 2
