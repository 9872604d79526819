"""Intervals are written in one way, and a requested width is not confused with half of it."""

from pathlib import Path

import numpy as np

from cs336_tui.events.peaks import PeakCache
from cs336_tui.tui.help import help_page
from cs336_tui.tui.judging import assess
from cs336_tui.tui.tabs.cell_detail import cell_detail
from tests.analysis.judging import a_cell, judged
from tests.samples import a_spec
from tests.session.made import Cell, session_of
from tests.tui.watched import text

STEADY_S = [0.1 + 0.0001 * (step * 7 % 5) for step in range(30)]


def told(**spec: object) -> str:
    state = session_of(Cell(a_spec(**spec), STEADY_S))
    found = assess(state, state.cells[0], PeakCache(Path("/nowhere")))
    return " ".join(text(cell_detail(state, state.cells[0], 100, found)).split())


def test_the_level_of_an_interval_stands_apart_from_its_sign() -> None:
    noisy = list(0.1 * np.random.default_rng(5).lognormal(0.0, 0.5, 30))
    assert "95 % CI ± 23 % of the mean" in judged(a_cell(noisy)).sentence
    assert "of the mean (95 %)" in told()


def test_half_of_the_width_that_was_asked_for_is_said_as_plus_and_minus() -> None:
    asked = told(steps_auto=0.03, measure_steps=50)
    assert "interval ± 1.5 % of the mean ends it" in asked


def test_the_help_says_how_well_the_mean_is_known_by_default() -> None:
    shown = " ".join(text(help_page(100, replaying=False).lines).split())
    assert "the mean is known to ± 0.5 %" in shown
    assert "auto 2%: until ± 1 %" in shown
