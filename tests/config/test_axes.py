"""A choice is declared once: everything that lists choices is derived from its axis, and each has its line of help."""

import re
import subprocess
import sys
from pathlib import Path

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


def test_a_new_choice_appears_everywhere() -> None:
    """It is declared in a fresh process before anything is derived."""
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/config/throw_away_axis.py")
    done = subprocess.run(words, capture_output=True, text=True, cwd=PACKAGE.parent, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    assert "7 passed in" in done.stdout


def files_naming(field: str) -> set[str]:
    """Files of the package that spell a choice, without those that act on it in a cell's process."""
    named = re.compile(rf"\b({field}|{AXES[field].option})\b(?!-)")  # nsys's --cuda-graph-trace is another option
    sources = (path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
    return {name for name in sources if not name.startswith("worker/") and named.search((PACKAGE / name).read_text())}


def test_a_choice_is_named_where_it_is_declared_and_where_it_acts() -> None:
    declared, rules = "config/axes.py", "config/rules.py"
    assert files_naming("cuda_graph") == {declared, rules, "analysis/verdicts.py", "analysis/agreement.py"}


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
