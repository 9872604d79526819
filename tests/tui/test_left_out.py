"""Choices that this machine cannot run: left out and reported if a preset asks for them, refused if a person does."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from cs336_tui.config import presets
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.presets import Preset
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.entries import listed
from cs336_tui.tui.configure.pane import ConfigurePane
from tests.samples import ENVIRONMENT
from tests.tui.configuring import opened
from tests.tui.watched import SMALL, WIDE, ScriptedBench, until

WITHOUT_COMPILER = "no C++ compiler was found"
BARE = msgspec.structs.replace(
    ENVIRONMENT,
    devices=(DeviceInfo(name="cpu", label="A CPU", precisions=("fp32", "bf16"), cannot_compile=WITHOUT_COMPILER),),
)
"""A machine that has no compiler."""
NAME = "2026/attention"


def bare(**options: object) -> Cs336App:
    return Cs336App(partial(ScriptedBench, environment=BARE), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_a_preset_of_the_palette_loses_what_the_machine_lacks_and_says_so(size: tuple[int, int]) -> None:
    app = bare()
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, "A CPU")
        app.load_preset(presets.preset(NAME))
        await until(pilot, "left out: compile default")
        pane = app.query_one(ConfigurePane)
        asked = presets.preset(NAME).sweep
        assert pane.sweep == msgspec.structs.replace(asked, compiles=("off",))
        assert pane.sweep.devices == ("auto",), "what stays is as the preset has it"
        await until(pilot, f"{NAME} * ▾")


async def test_a_preset_of_the_list_does_too() -> None:
    app = bare()
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await until(pilot, "A CPU")
        await pilot.press("1", "home", "enter")
        await until(pilot, "Presets")
        place = [each.preset.name for each in listed(presets.bundled(), None)].index(NAME)
        await pilot.press(*["down"] * place, "enter")
        await until(pilot, WITHOUT_COMPILER)
        sweep = app.query_one(ConfigurePane).sweep
        assert sweep is not None
        assert sweep.compiles == ("off",)


@pytest.mark.parametrize(
    ("may_leave_out", "problems"), [(("compile",), 0), ((), 1)], ids=["of a preset", "asked for by name"]
)
async def test_choices_of_the_command_line(may_leave_out: tuple[str, ...], problems: int) -> None:
    app = bare(initial=sweep_from(preset_name=NAME), may_leave_out=may_leave_out)
    async with app.run_test(size=WIDE) as pilot:
        await until(pilot, "A CPU")
        await until(pilot, lambda _: app.live.state.environment is not None)
        assert len(app.query_one(ConfigurePane).problems) == problems


async def test_what_somebody_chose_meanwhile_stays() -> None:
    async with opened(here=False) as hand:
        hand.pane.load(presets.preset(NAME), ("compile",))
        await hand.type("batch_size", "2")
        hand.pane.set_environment(BARE)
        await hand.settle()
        (problem,) = hand.pane.problems
        assert problem.field == "compile"


async def test_one_of_which_nothing_would_be_left_is_shown_with_what_is_wrong() -> None:
    async with opened(here=False) as hand:
        hand.pane.set_environment(BARE)
        hand.pane.load(Preset("mine", "", Sweep(compiles=("default",))), ("compile",))
        await hand.settle()
        (problem,) = hand.pane.problems
        assert (problem.field, problem.allowed) == ("compile", WITHOUT_COMPILER)
