"""Declares a choice that no other code knows and prints, as JSON, where it appears. Run in a process of its own."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from cs336_tui.config import axes
from cs336_tui.config.axis import Axis, Device


def lacks(value: str, device: Device) -> str:
    return f"{device.name} has no sugar" if value == "sweet" else ""


FLAVOUR = Axis(
    sweep="flavours",
    several=True,
    help="Flavour of a step: {values}",
    group="variants",
    said=lambda value: (value,),
    lacks=lacks,
)
axes.Choices = msgspec.defstruct(
    "Choices",
    [
        ("flavour", Annotated[Literal["plain", "salted", "sweet"], FLAVOUR], "plain"),
        ("hot", Annotated[bool, Axis(help="Heat the step", group="variants", said=lambda _: ("hot",))], False),
        ("grains", Annotated[int, Axis(help="Grains of salt", group="more", least=0)], 7),
        (
            "dose",
            Annotated[
                float,
                Axis(sweep="doses", several=True, help="Dose", group="variants", least=0, said=lambda x: (f"{x} g",)),
            ],
            0.5,
        ),
        ("heat", Annotated[float, Axis(help="Heat of a step", group="more", least=0)], 1.5),
        (
            "share",
            Annotated[
                float,
                Axis(
                    sweep="shares",
                    several=True,
                    help="Share",
                    group="variants",
                    widget="chips",
                    values=("0.25", "1.0"),
                    least=0,
                ),
            ],
            1.0,
        ),
    ],
    bases=(axes.Choices,),
    frozen=True,
    kw_only=True,
)

from click.testing import CliRunner  # noqa: E402  # everything is derived as soon as it is imported

from cs336_tui.analysis.fields import shown_of  # noqa: E402
from cs336_tui.cli.bench import bench  # noqa: E402
from cs336_tui.cli.main import cli  # noqa: E402
from cs336_tui.config.choices import command_of, sweep_from, sweep_of  # noqa: E402
from cs336_tui.config.order import time_kind  # noqa: E402
from cs336_tui.config.presets import Preset, PresetError, from_toml, to_toml  # noqa: E402
from cs336_tui.config.spec import SpecError  # noqa: E402
from cs336_tui.config.sweep import Sweep  # noqa: E402
from cs336_tui.events.codec import to_line  # noqa: E402
from cs336_tui.events.prediction import prediction_key  # noqa: E402
from cs336_tui.session.log import LogReader  # noqa: E402
from cs336_tui.tui.configure.form import entries_of, read  # noqa: E402
from cs336_tui.tui.tabs.cell_detail import asked  # noqa: E402
from cs336_tui.tui.widgets.entries import Chips  # noqa: E402
from tests.export.grids import SMALL, by, grid_events  # noqa: E402
from tests.samples import ENVIRONMENT, a_spec  # noqa: E402
from tests.tui.configuring import opened  # noqa: E402

BOTH = Sweep(flavours=("plain", "salted"), devices=("cpu",), passes=("forward",))
PLAIN, SALTED = BOTH.cells()


def output(*words: str) -> str:
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(make: Callable[[], object]) -> str:
    try:
        make()
    except (SpecError, PresetError) as error:
        return str(error)
    return ""


async def form() -> dict[str, Any]:
    """Values that the form's entry offers, the sweep after ticking one, and the messages about it."""
    async with opened((80, 60)) as hand:
        await hand.unfold("variants")
        chips = hand.entry("flavour", Chips)
        await hand.tick("flavour", "sweet")
        assert hand.pane.sweep is None
        problem = chips.problem
        await hand.tick("flavour", "sweet")
        await hand.tick("flavour", "salted")
        assert hand.pane.sweep is not None
        await hand.unfold("variants")
        return {
            "offered": [chip.value for chip in chips.chips],
            "sweep": hand.pane.sweep.flavours,
            "problem": problem,
            "fold": hand.seen(hand.fold("variants")),
        }


def others() -> list[list[object]]:
    """A choice that is on or off and one that is a number, after each way there and back."""
    sweep = msgspec.structs.replace(BOTH, hot=True, grains=3)
    there = [sweep, from_toml("mine", to_toml(Preset("mine", "", sweep))).sweep, read(entries_of(sweep)).sweep]
    there += [sweep_of(sweep.cells()), sweep_from(flavours=BOTH.flavours, hot=True, grains=3)]
    assert "--hot" in command_of(sweep)
    assert "--grains 3" in command_of(sweep)
    assert "hot" not in command_of(BOTH)
    assert shown_of(sweep.cells()[0], "hot") == "yes"
    return [[each.hot, each.grains] for each in there if each is not None]


def decimals(folder: Path) -> dict[str, Any]:
    """Choices that are decimal numbers: each way there and back, a log of them, and its tables."""
    sweep = msgspec.structs.replace(BOTH, flavours=("plain",), doses=(2.0, 0.5, 10.0), heat=0.25, shares=(0.25, 0.75))
    words = bench.make_context("bench", shlex.split(command_of(sweep))[2:]).params
    given = {name: words.get(name) for name in Sweep.__struct_fields__}
    text = to_toml(Preset("mine", "", sweep))
    there = [sweep, from_toml("mine", text).sweep, read(entries_of(sweep)).sweep, sweep_of(sweep.cells())]
    there.append(sweep_from(**given))
    log = folder / "decimals.jsonl"
    specs = by((SMALL,), pass_=["forward", "backward"], dose=[2.0, 0.5, 10.0])
    log.write_bytes(b"".join(map(to_line, grid_events(specs))))
    export, entries = ("export", str(log)), entries_of(sweep)
    return {
        "sweeps": [[each.doses, each.heat, each.shares] for each in there if each is not None],
        "types": sorted({type(x).__name__ for each in there if each for x in (*each.doses, each.heat, *each.shares)}),
        "command": command_of(sweep),
        "preset": text,
        "whole": from_toml("mine", "dose = 2\nheat = 3").sweep.doses,
        "title": sweep.cells()[0].title,
        "entries": [entries.dose, entries.heat, entries.share, entries.other_shares],
        "refused": [
            refusal(lambda: a_spec(dose=-0.5)),
            refusal(lambda: a_spec(dose=float("nan"))),
            refusal(lambda: a_spec(dose=float("inf"))),
            *map(str, read(entries.with_value("dose", "1.5,x")).problems),
            CliRunner().invoke(cli, ("bench", "--dose", "1.5,x")).output.splitlines()[-1],
            refusal(lambda: from_toml("mine", "dose = [0.5, 'x']")),
            refusal(lambda: from_toml("mine", "heat = true")),
        ],
        "logged": [spec.dose for event in LogReader(log) for spec in getattr(event, "specs", ())],
        "csv": output(*export, "--format", "csv"),
        "columns": output(*export, "--columns", "dose,mean", "--format", "json"),
        "pivot": output(*export, "--pivot", "dose:pass"),
        "filtered": output(*export, "--format", "csv", "--where", "dose=0.5"),
    }


def found(folder: Path) -> dict[str, Any]:
    preset = to_toml(Preset("mine", "", BOTH))
    log = folder / "log.jsonl"
    log.write_bytes(b"".join(map(to_line, grid_events(by(flavour=["plain", "salted"])))))
    given = ("export", str(log))
    return {
        "help": output("bench", "--help"),
        "option": sweep_from(flavours=("salted",)).flavours,
        "command": command_of(BOTH),
        "others": others(),
        "decimals": decimals(folder),
        "preset": preset,
        "preset_read": from_toml("mine", preset).sweep.flavours,
        "cells": [cell.flavour for cell in (PLAIN, SALTED)],
        "sweep_of_cells": sweep_of((PLAIN, SALTED)).flavours,
        "title": SALTED.title,
        "details": ["".join(span.text for span in line) for line in asked(SALTED, 80)],
        "refused": refusal(lambda: a_spec(flavour="bitter")),
        "lacking": refusal(lambda: ENVIRONMENT.check(a_spec(device="cpu", flavour="sweet"))),
        "form": asyncio.run(form()),
        "logged": [spec.flavour for event in LogReader(log) for spec in getattr(event, "specs", ())],
        "csv": output(*given, "--format", "csv"),
        "table": output(*given),
        "pivot": output(*given, "--pivot", "size:flavour"),
        "filtered": output(*given, "--format", "csv", "--where", "flavour=salted"),
        "same_time": time_kind(PLAIN) == time_kind(SALTED),
        "same_prediction": prediction_key(PLAIN) == prediction_key(SALTED),
    }


if __name__ == "__main__":
    print(json.dumps(found(Path(sys.argv[1]))))
