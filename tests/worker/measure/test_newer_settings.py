"""torch 2.9's settings for float32 products: torch's older queries raise under them, but no cell fails."""

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.events.events import ModelBuilt
from cs336_tui.worker.measure.settings import read_settings, restore
from cs336_tui.worker.workload.precision import effective_matmul, tf32_allowed
from tests.worker.measure.cells import Rounded, of_user, run, small_spec

newer = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has the older settings alone"
)
LINES = """
import warnings


class Newer(Plain):
    def __init__(self, vocab_size, d_model):
        super().__init__(vocab_size, d_model)
        {at_first}

    def forward(self, tokens):
        {later}
        return super().forward(tokens)
"""
SETTINGS = {
    'torch.backends.cuda.matmul.fp32_precision = "tf32"': "highest",
    'torch.backends.fp32_precision = "tf32"': "highest",
    'torch.backends.mkldnn.matmul.fp32_precision = "bf16"': "medium",
    'torch.backends.mkldnn.matmul.fp32_precision = "tf32"': "high",
    'torch.set_float32_matmul_precision("high"); torch.backends.cuda.matmul.fp32_precision = "ieee"': "high",
    'warnings.simplefilter("error"); torch.backends.cudnn.conv.fp32_precision = "ieee"': "highest",
}
"""Statements in a user's model and the precision then in force on a CPU."""
WITHIN = ("", "cuda.matmul.", "cudnn.", "cudnn.conv.", "mkldnn.", "mkldnn.matmul.", "mkldnn.rnn.")
VALUES = {"": ("none", "ieee", "tf32", "bf16"), "c": ("none", "ieee", "tf32"), "m": ("none", "ieee", "tf32", "bf16")}


@pytest.fixture
def folder(folder: Path) -> Iterator[Path]:
    """A user's folder; its modules and their settings are forgotten after the test."""
    before = read_settings()
    yield folder
    restore(before)


@newer
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("when", ["at_first", "later"])
@pytest.mark.parametrize(("setting", "description"), SETTINGS.items())
def test_a_model_that_sets_them_runs_in_turns_too(folder: Path, setting: str, description: str, when: str) -> None:
    before = read_settings()
    lines = LINES.format(**{"at_first": "pass", "later": "pass", when: setting})
    spec = small_spec(**of_user(folder, "Newer", lines, pass_="forward"))
    report = run(spec)
    assert report.finished.status == "ok", report.finished.error
    assert len(report.times_s()) == 3
    last = [event for event in report.events if isinstance(event, ModelBuilt)][-1].in_force
    assert last.matmul_precision == description
    done = Rounded(spec, small_spec())
    assert [(side.finished.status, side.finished.error) for side in (done.a, done.b)] == [("ok", None)] * 2
    assert done.b.built.in_force.matmul_precision == "highest"
    assert read_settings() == before


@newer
def test_what_is_in_force_is_the_devices_own_setting() -> None:
    def in_force() -> tuple[str, str, bool]:
        return effective_matmul("cuda"), effective_matmul("cpu"), tf32_allowed()

    before = read_settings()
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert in_force() == ("high", "highest", True)
        torch.set_float32_matmul_precision("medium")
        assert in_force() == ("medium", "medium", True)
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert in_force() == ("highest", "medium", False)
    finally:
        restore(before)


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Settings in the order of assignment, by newer and by older names."""
    places = draw(st.lists(st.sampled_from((*WITHIN, "older")), max_size=6))
    older = ("highest", "high", "medium")
    return [(place, draw(st.sampled_from(older if place == "older" else VALUES[place[:1]]))) for place in places]


def made(found: list[tuple[str, str]]) -> None:
    for place, value in found:
        if place == "older":
            torch.set_float32_matmul_precision(value)
        else:
            owner = attrgetter(place[:-1])(torch.backends) if place else torch.backends
            owner.fp32_precision = value


@newer
@pytest.mark.filterwarnings("ignore")
@given(a=changes(), b=changes())
def test_each_side_of_ab_finds_again_what_it_set_in_any_order_and_mixture(
    a: list[tuple[str, str]], b: list[tuple[str, str]]
) -> None:
    clean = read_settings()
    try:
        made(a)
        of_a = read_settings()
        assert restore(clean) == ()
        assert read_settings() == clean
        made(b)
        of_b = read_settings()
        for side in (of_a, of_b, of_a):
            assert restore(side) == ()
            now = read_settings()
            assert {name: now.get(name) for name in side} == side
    finally:
        restore(clean)
        assert read_settings() == clean
