"""Figures: valid files, the same each time, absent if there is nothing to draw."""

import os
import warnings
from xml.etree import ElementTree

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.config.values import PASSES
from cs336_tui.export.figures import (
    _LOOK_OF_PASS,
    MOST_PANELS,
    _look,
    by_context,
    by_precision,
    drawings,
    passes_by_size,
    step_times,
)
from cs336_tui.export.writing.drawing import FIGURE_FORMATS, MOST_LINES, Absent, Drawing
from tests.export.grids import MAGIC, SMALL, by, grid, merged
from tests.export.keeping import as_drawn
from tests.loading import python
from tests.samples import a_spec, cell_start, session_start, state_of, steps


def texts(figure: Drawing | Absent) -> str:
    """Every text of the figure."""
    assert isinstance(figure, Drawing), figure
    root = ElementTree.fromstring(figure.files(["svg"])["svg"])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    found = ("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    return "\n".join(found).replace("\N{NO-BREAK SPACE}", " ")


def test_every_format_is_what_it_says_and_the_same_each_time() -> None:
    figure = step_times(merged(grid(by([SMALL]))))
    files = figure.files()
    assert tuple(files) == FIGURE_FORMATS
    assert all(data.startswith(MAGIC[format_]) for format_, data in files.items())
    assert files == figure.files()


def test_figures_of_cells_in_two_contexts_and_precisions(snapshot: SnapshotAssertion) -> None:
    """The half of the steps without a warm-up, and twice the speed of fp32; the last cell ran out of memory."""
    choices = {"context_length": [128, 256], "precision": ["fp32", "bf16-mixed"], "warmup_steps": [0, 2]}
    found = drawings(merged(grid(by(**choices), oom=[15])))
    assert "\n\n".join(map(as_drawn, found)) == snapshot


def test_many_cells_and_lines_of_many_choices_say_how_many_are_shown() -> None:
    specs = by([SMALL], seed=range(MOST_PANELS + 1))
    assert f"the first {MOST_PANELS} of {MOST_PANELS + 1} cells" in step_times(merged(grid(specs))).title
    specs = by([SMALL], context_length=[128, 256], seed=range(MOST_LINES + 1))
    assert f"the first {MOST_LINES} of {MOST_LINES + 1} lines" in by_context(merged(grid(specs))).title


def test_every_pass_has_a_look_of_its_own_whichever_others_there_are() -> None:
    looks = [(_look(index)["color"], _look(index)["hatch"]) for index in _LOOK_OF_PASS.values()]
    assert set(_LOOK_OF_PASS) == set(PASSES)
    assert len(set(looks)) == len(PASSES)
    for passes in (["train-step"], ["forward", "train-step"]):
        assert "#009e73" in passes_by_size(merged(grid(by([SMALL], pass_=passes)))).files(["svg"])["svg"].decode()


def test_what_is_not_there_is_not_drawn() -> None:
    one = merged(grid(by([SMALL])))
    assert isinstance(by_context(one), Absent)
    assert isinstance(by_precision(one), Absent)
    nothing = merged(grid(by([SMALL]), oom=[0]))
    assert [type(figure) for figure in drawings(nothing)] == [Absent] * 4
    assert all(figure.reason for figure in drawings(nothing) if isinstance(figure, Absent))
    assert all(isinstance(figure, Absent) for figure in drawings(()))


def test_a_running_cell_has_its_steps_drawn() -> None:
    state = state_of([*session_start([a_spec()]), *cell_start(0), *steps(0, (0.2,), ())])
    assert "Step times" in texts(step_times(merged(state)))


OWN = "a_module_of_ones_own.models.transformer:Another_Class_With_A_Long_Name"


def test_what_all_cells_are_and_no_axis_shows_is_in_the_title(snapshot: SnapshotAssertion) -> None:
    specs = by([SMALL], model=["mine:GPT"], context_length=[128, 256], precision=["fp32", "bf16-mixed"])
    passes = step_times(merged(grid(by(pass_=["forward", "train-step"]))))
    assert [figure.title for figure in (*drawings(merged(grid(specs))), passes)] == snapshot


def test_names_that_are_long_leave_room_for_what_is_drawn() -> None:
    specs = by(
        model=[OWN, "reference"], precision=["fp32", "bf16-mixed"], context_length=[128, 256], optimizer=["adamw"],
        pass_=["forward", "train-step"],
    )  # fmt: skip
    results = merged(grid(specs, session="2026-01-02T03-04-05-abcd"), grid(specs, session="2026-01-02T03-04-06-dcba"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns where names take all the room
        for figure, most in ((by_precision(results), 60), (by_context(results), 80)):
            assert max(map(len, texts(figure).splitlines())) <= most, figure.name
            assert "transformer:" in texts(figure)


def test_any_name_is_drawn_as_it_is_written_and_matplotlib_says_nothing(
    recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Names with half a formula, which is an error to matplotlib, and with a letter that no font has."""
    figure = step_times(merged(grid(by([SMALL]))))
    assert "$a_{$" in texts(figure._replace(title="cost $a_{$ 机"))
    assert figure._replace(title="机").files(["png"])
    assert not list(recwarn)
    assert not caplog.records


def test_without_a_folder_for_its_caches_matplotlib_says_nothing() -> None:
    code = """
from tests.export.grids import SMALL, by, grid, merged
from cs336_tui.export.figures import step_times
step_times(merged(grid(by([SMALL])))).files(["svg"])["svg"]
"""
    assert python(code, env=os.environ | {"MPLCONFIGDIR": "/dev/null/none"}).stderr == ""
