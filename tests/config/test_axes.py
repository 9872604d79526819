"""A choice is declared once: everything that lists choices is derived from its axis, and each has its line of help."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cs336_tui
from cs336_tui.config.axes import Choices
from cs336_tui.config.axis import Axis
from cs336_tui.config.meanings import CHOICES, FIELDS, meaning
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, RULES, CellSpec, size_names
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import EDITIONS
from cs336_tui.tui.configure.form import Entries

PACKAGE = Path(cs336_tui.__file__).parent
VALUES = ["plain", "salted", "sweet"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Places in which a new choice appears, declared in a fresh process before anything is derived."""
    words = (sys.executable, "-m", "tests.config.throw_away_axis", str(tmp_path_factory.mktemp("axis")))
    result = subprocess.run(words, capture_output=True, text=True, cwd=PACKAGE.parent, timeout=100, check=False)
    assert result.returncode == 0, result.stderr
    made: dict[str, Any] = json.loads(result.stdout)
    return made


def test_a_new_choice_is_an_option_of_bench_and_may_be_on_or_off_or_a_number(found: dict[str, Any]) -> None:
    assert re.search(r"--flavour LIST +Flavour of a step: plain, salted, sweet\.\s+\[default:\s+plain\]", found["help"])
    assert found["option"] == ["salted"]
    assert "--flavour plain,salted" in found["command"]
    assert found["others"] == [[True, 3]] * 5
    assert re.search(r"--hot / --no-hot +Heat the step\.\s+\[default:\s+no-hot\]", found["help"])
    assert re.search(r"--grains N +Grains of salt\.\s+\[default:\s+7\]", found["help"])


def test_a_new_choice_has_an_entry_in_the_form(found: dict[str, Any]) -> None:
    form = found["form"]
    assert form["offered"] == VALUES
    assert form["sweep"] == ["plain", "salted"]
    assert form["problem"] == "sweet: cuda:0 has no sugar"
    assert "flavour plain/salted" in form["fold"]


def test_a_new_choice_is_kept_in_a_preset_makes_cells_is_logged_and_refused_where_it_cannot_be(
    found: dict[str, Any],
) -> None:
    assert re.search(r'flavour = \[\s*"plain",\s*"salted",?\s*\]', found["preset"])
    assert found["preset_read"] == ["plain", "salted"]
    assert found["cells"] == found["sweep_of_cells"] == ["plain", "salted"]
    assert found["logged"] == ["plain", "salted"] * 2
    assert found["title"].endswith(" · salted")
    assert "flavour         salted" in found["details"]
    assert not found["same_time"]
    assert not found["same_prediction"]
    assert found["refused"] == "flavour bitter: expected one of plain, salted, sweet"
    assert found["lacking"] == "flavour sweet: cpu has no sugar"


def test_a_new_choice_is_a_column_a_pivot_and_a_filter(found: dict[str, Any]) -> None:
    assert [row["flavour"] for row in csv.DictReader(io.StringIO(found["csv"]))] == ["plain", "salted"] * 2
    assert "| flavour |" in found["table"]
    assert "flavour plain | flavour salted" in re.sub(" +", " ", found["pivot"])
    assert [row["flavour"] for row in csv.DictReader(io.StringIO(found["filtered"]))] == ["salted"] * 2


def test_a_new_choice_may_be_a_decimal_number(found: dict[str, Any]) -> None:
    made = found["decimals"]
    assert made["sweeps"] == [[[2.0, 0.5, 10.0], 0.25, [0.25, 0.75]]] * 5
    assert made["types"] == ["float"]
    assert made["whole"] == [2.0]
    assert "--dose 2.0,0.5,10.0" in made["command"]
    assert "--heat 0.25" in made["command"]
    assert re.search(r"dose = \[\s*2.0,\s*0.5,\s*10.0,\s*\]\s*heat = 0.25|heat = 0.25", made["preset"])
    assert made["title"].endswith(" · 2.0 g")
    assert made["entries"] == ["2.0,0.5,10.0", "0.25", ["0.25"], "0.75"]
    assert re.search(r"--dose N,\.\.\. +Dose\. +\[default: 0\.5\]", found["help"])
    assert re.search(r"--heat NUMBER +Heat of a step\. +\[default: 1\.5\]", found["help"])


def test_what_is_no_decimal_number_is_refused(found: dict[str, Any]) -> None:
    assert found["decimals"]["refused"] == [
        "dose -0.5: expected a number, at least 0",
        "dose nan: expected a number, at least 0",
        "dose inf: expected a number, at most 2147483647",
        "dose x: expected a number, or several as 1,2,4",
        "Error: Invalid value for '--dose': '1.5,x': expected numbers separated by commas",
        "preset mine: dose x: expected a number",
        "preset mine: heat True: expected a number",
    ]


def test_a_decimal_number_is_a_column_a_pivot_and_a_filter_in_its_order(found: dict[str, Any]) -> None:
    made = found["decimals"]
    assert made["logged"] == [2.0, 0.5, 10.0] * 2
    assert [row["dose"] for row in csv.DictReader(io.StringIO(made["csv"]))] == ["2.0", "0.5", "10.0"] * 2
    assert [row["dose"] for row in json.loads(made["columns"])["rows"]] == [2.0, 0.5, 10.0] * 2
    assert re.findall(r"^\| +([0-9.]+) \|", made["pivot"], re.MULTILINE) == ["0.5", "2.0", "10.0"]
    assert [row["dose"] for row in csv.DictReader(io.StringIO(made["filtered"]))] == ["0.5"] * 2


def files_naming(field: str) -> set[str]:
    """Files of the package that spell a choice, without those that act on it in a cell's process."""
    named = re.compile(rf"\b({field}|{AXES[field].option})\b(?!-)")  # nsys's --cuda-graph-trace is another option
    sources = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return {name for name in sources if not name.startswith("worker/") and named.search((PACKAGE / name).read_text())}


def test_a_choice_is_named_where_it_is_declared_and_where_it_acts() -> None:
    declared, told, rules = "config/axes.py", "config/meanings.py", "config/rules.py"
    assert files_naming("cuda_graph") == {declared, told, rules, "analysis/verdicts.py", "analysis/agreement.py"}


def test_every_choice_is_in_the_cell_the_sweep_and_the_form() -> None:
    assert set(AXES) == set(CellSpec.__struct_fields__) == set(Choices.__struct_fields__)
    assert {axis.sweep for axis in AXES.values()} - {""} | {
        "dims",
        "head_dims",
        "heads",
        "reports",
        "oom_skip",
        "lanes",
    } == set(Sweep.__struct_fields__)
    assert {axis.field for axis in AXES.values() if axis.group} <= set(Entries.__struct_fields__)


def test_rules_look_at_no_choice_but_those_they_name() -> None:
    """Each rule answers for a cell of which only the choices that the rule names are known."""
    always = {"workload", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size"}
    for rule in RULES:
        for cell in (an_odd_cell("language-model"), an_odd_cell("attention")):
            whole = [str(each) for each in rule.refusals(cell)]
            blank = {field: axis.alike for field, axis in AXES.items() if field not in (*rule.fields, *always)}
            assert [str(each) for each in rule.refusals(msgspec.structs.replace(cell, **blank))] == whole


def an_odd_cell(workload: str) -> Choices:
    """A cell that breaks as many rules as one cell can."""
    return Choices(
        size="odd", edition="2026", arch="swiglu-rope", d_model=9, d_ff=9, num_layers=1, num_heads=3, vocab_size=1,
        context_length=1, batch_size=1, pass_="train-step", precision="fp16-mixed", device="cuda:0", sync="pipelined",
        steps_auto=0.01, workload=workload, model="a:B", model_args=(("d_model", "1"),), attention="sdpa",
        optimizer="c:D", loss="e:f", compile="max-autotune", checkpoint=2, cuda_graph="step",
    )  # fmt: skip


ENTRIES = [axis for axis in AXES.values() if axis.group]
MOST, LONGEST = 84, 90
"""Characters of a line on an entry, and on a choice, which three rows of the form's pane hold."""


@pytest.mark.parametrize("axis", ENTRIES, ids=lambda axis: axis.field)
def test_every_entry_and_every_choice_says_what_it_is(axis: Axis) -> None:
    about = meaning(axis.name)
    assert about.endswith("."), "a sentence"
    assert len(about) <= MOST
    assert meaning(axis.others or axis.name) == about
    for choice in axis.values if axis.widget in ("chips", "one") else ():
        found = meaning(axis.name, choice)
        assert found.startswith(f"{choice}: "), "by its own name"
        assert found != about
        assert len(found) <= LONGEST


def test_there_is_no_line_for_what_is_not_there() -> None:
    others = {"preset", "recent", "head_dim", "heads", "lanes", "ddof", "timeout_s", "repeats", "reports", "after_oom"}
    assert not FIELDS.keys() - AXES.keys() - others
    for field, choices in CHOICES.items():
        if field in AXES:
            assert choices.keys() == set(AXES[field].values), field


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_size_is_told_by_its_dimensions_in_that_edition(edition: str) -> None:
    for size in size_names(edition):
        assert meaning("size", size, edition).startswith(f"{size}: d_model ")
    wide = {"2024": "1600", "2025": "1600", "2026": "2560"}[edition]
    assert meaning("size", "xl", edition).startswith(f"xl: d_model {wide}, d_ff ")
    assert "your own" in meaning("size", CUSTOM_SIZE, edition)
    assert meaning("size", "11B", edition).startswith("11B: edition ")


def test_a_device_is_told_by_its_name() -> None:
    assert meaning("device", "cuda:0", name="NVIDIA H100") == "cuda:0: NVIDIA H100"
    assert meaning("device", "auto") == "auto: the best device of this machine"
