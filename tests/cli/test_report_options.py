"""Options of the report commands: every part of a report can be chosen, and no option is ignored."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cs336_tui.cli.main import cli
from cs336_tui.cli.reports import REPORT_COMMANDS
from cs336_tui.config.variants import RANGES
from cs336_tui.events.kernel_report import FUSED
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.reports import _EXPORTS, _FROM_CELLS
from cs336_tui.tui.tab_list import TABS
from cs336_tui.worker.measure.report import _MAKERS
from tests.commands import DIMS, call


def test_every_part_of_a_compiled_model_can_be_asked_for() -> None:
    (option,) = [each for each in REPORT_COMMANDS["kernels"].params if each.name == "part"]
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == (*RANGES, FUSED)


@pytest.mark.parametrize("option", ["--phase", "--part"])
def test_json_which_has_all_parts_and_phases_takes_no_choice_of_them(option: str, tmp_path: Path) -> None:
    value = {"--phase": "loss", "--part": "head"}[option]
    arguments = ["kernels", "--device", "cpu", option, value, "--format", "json", "--session-dir", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert f"{option} {value}: JSON has every phase and part" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_report_is_printed_or_it_is_said_that_there_is_none(tmp_path: Path) -> None:
    words = [*DIMS, *"--pass train-step --context 8 --batch 1 --device cpu --threads 1".split()]
    words += ["--session-dir", str(tmp_path)]
    made = call("memory", *words)
    assert (made.returncode, made.stdout.count("**Largest allocations")) == (0, 1), made.stderr
    of_head = call("kernels", *words, "--phase", "forward", "--part", "head")
    assert (of_head.returncode, of_head.stdout.count("forward, head")) == (0, 1), of_head.stderr
    lost = call("memory", *words, "--timeout", "0.001")
    assert (lost.returncode, lost.stdout) == (1, "No report was made.\n"), lost.stderr


def test_every_report_is_made_shown_and_exported_by_someone() -> None:
    made = {kind: type_.content for kind, type_ in REPORTS.items() if type_.content is not None}
    assert made.keys() == _MAKERS.keys()
    assert set(made.values()) == _EXPORTS.keys()
    assert REPORTS.keys() - made.keys() == _FROM_CELLS.keys()
    assert {type_.tab for type_ in REPORTS.values()} <= {tab.id for tab in TABS.values()}
