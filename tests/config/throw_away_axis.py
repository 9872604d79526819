"""Declares choices that no other code knows; its tests are that they appear everywhere. Run in a process of its own."""

import csv
import io
import json
import re
import shlex
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
    said=lambda x: (x,),
    lacks=lacks,
)
DOSE = Axis(sweep="doses", several=True, help="Dose", group="variants", least=0, said=lambda x: (f"{x} g",))
SHARE = Axis(
    sweep="shares", several=True, help="Share", group="variants", widget="chips", values=("0.25", "1.0"), least=0
)
axes.Choices = msgspec.defstruct(
    "Choices",
    [
        ("flavour", Annotated[Literal["plain", "salted", "sweet"], FLAVOUR], "plain"),
        ("hot", Annotated[bool, Axis(help="Heat the step", group="variants", said=lambda _: ("hot",))], False),
        ("grains", Annotated[int, Axis(help="Grains of salt", group="more", least=0)], 7),
        ("dose", Annotated[float, DOSE], 0.5),
        ("heat", Annotated[float, Axis(help="Heat of a step", group="more", least=0)], 1.5),
        ("share", Annotated[float, SHARE], 1.0),
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
from cs336_tui.events.prediction import prediction_key  # noqa: E402
from cs336_tui.session.log import LogReader  # noqa: E402
from cs336_tui.tui.configure.form import entries_of, read  # noqa: E402
from cs336_tui.tui.tabs.cell_detail import _asked  # noqa: E402
from cs336_tui.tui.widgets.entries import Chips  # noqa: E402
from tests.export.grids import SMALL, by, grid_events  # noqa: E402
from tests.samples import ENVIRONMENT, a_spec, write_log  # noqa: E402
from tests.tui.configuring import opened  # noqa: E402

BOTH = Sweep(flavours=("plain", "salted"), devices=("cpu",), passes=("forward",))
PLAIN, SALTED = BOTH.cells()
DECIMALS = msgspec.structs.replace(BOTH, flavours=("plain",), doses=(2.0, 0.5, 10.0), heat=0.25, shares=(0.25, 0.75))


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


def there_and_back(sweep: Sweep, **given: Any) -> list[Sweep | None]:
    """The sweep after each way there and back; `given` are its choices as options give them."""
    preset = from_toml("mine", to_toml(Preset("mine", "", sweep))).sweep
    return [sweep, preset, read(entries_of(sweep)).sweep, sweep_of(sweep.cells()), sweep_from(**given)]


def exported(folder: Path, **choices: list[Any]) -> tuple[list[Any], Callable[..., str]]:
    """The specs in a log of these choices, and what exports of it say."""
    log = write_log(folder / "log.jsonl", grid_events(by(**choices)))
    specs = [spec for event in LogReader(log) for spec in getattr(event, "specs", ())]
    return specs, lambda *words: output("export", str(log), *words)


def column(text: str, name: str) -> list[str]:
    return [row[name] for row in csv.DictReader(io.StringIO(text))]


def test_it_is_an_option_of_bench_and_may_be_on_or_off_or_a_number() -> None:
    shown = output("bench", "--help-all")
    assert re.search(r"--flavour LIST +Flavour of a step: plain, salted, sweet\.\s+\[default:\s+plain\]", shown)
    assert re.search(r"--hot / --no-hot +Heat the step\.\s+\[default:\s+no-hot\]", shown)
    assert re.search(r"--grains N +Grains of salt\.\s+\[default:\s+7\]", shown)
    assert re.search(r"--dose N,\.\.\. +Dose\. +\[default: 0\.5\]", shown)
    assert re.search(r"--heat NUMBER +Heat of a step\. +\[default: 1\.5\]", shown)
    assert sweep_from(flavours=("salted",)).flavours == ("salted",)
    assert "--flavour plain,salted" in command_of(BOTH)
    sweep = msgspec.structs.replace(BOTH, hot=True, grains=3)
    ways = there_and_back(sweep, flavours=BOTH.flavours, hot=True, grains=3)
    assert [each and (each.hot, each.grains) for each in ways] == [(True, 3)] * 5
    assert "--hot" in command_of(sweep)
    assert "--grains 3" in command_of(sweep)
    assert "hot" not in command_of(BOTH)
    assert shown_of(sweep.cells()[0], "hot") == "yes"


async def test_it_has_an_entry_in_the_form() -> None:
    async with opened((80, 60)) as hand:
        await hand.unfold("variants")
        chips = hand.entry("flavour", Chips)
        assert [*chips.chips] == ["plain", "salted", "sweet"]
        await hand.tick("flavour", "sweet")
        assert hand.pane.form.sweep is None
        assert chips.problem == "sweet: cuda:0 has no sugar"
        await hand.tick("flavour", "sweet")
        await hand.tick("flavour", "salted")
        assert hand.pane.form.sweep.flavours == BOTH.flavours
        await hand.unfold("variants")
        assert "flavour plain/salted" in hand.seen(hand.fold("variants"))


def test_it_is_kept_in_a_preset_makes_cells_and_is_refused_where_it_cannot_be() -> None:
    preset = to_toml(Preset("mine", "", BOTH))
    assert re.search(r'flavour = \[\s*"plain",\s*"salted",?\s*\]', preset)
    assert from_toml("mine", preset).sweep.flavours == BOTH.flavours
    assert (PLAIN.flavour, SALTED.flavour) == sweep_of((PLAIN, SALTED)).flavours == BOTH.flavours
    assert SALTED.title.endswith(" · salted")
    assert ("flavour", "salted") in _asked(SALTED)
    assert time_kind(PLAIN) != time_kind(SALTED)
    assert prediction_key(PLAIN) != prediction_key(SALTED)
    assert refusal(lambda: a_spec(flavour="bitter")) == "flavour bitter: expected one of plain, salted, sweet"
    sweet = a_spec(device="cpu", flavour="sweet")
    assert refusal(lambda: ENVIRONMENT.check(sweet)) == "flavour sweet: cpu has no sugar"


def test_it_is_logged_a_column_a_pivot_and_a_filter(tmp_path: Path) -> None:
    specs, export = exported(tmp_path, flavour=["plain", "salted"])
    assert [spec.flavour for spec in specs] == ["plain", "salted"] * 2
    assert column(export("--format", "csv"), "flavour") == ["plain", "salted"] * 2
    assert "| flavour |" in export()
    assert "flavour plain | flavour salted" in re.sub(" +", " ", export("--pivot", "size:flavour"))
    assert column(export("--format", "csv", "--where", "flavour=salted"), "flavour") == ["salted"] * 2


def test_it_may_be_a_decimal_number() -> None:
    words = bench.make_context("bench", shlex.split(command_of(DECIMALS))[2:]).params
    ways = there_and_back(DECIMALS, **{name: words.get(name) for name in Sweep.__struct_fields__})
    values = [each and (each.doses, each.heat, each.shares) for each in ways]
    assert values == [((2.0, 0.5, 10.0), 0.25, (0.25, 0.75))] * 5
    assert {type(x) for each in ways if each for x in (*each.doses, each.heat, *each.shares)} == {float}
    assert from_toml("mine", "dose = 2\nheat = 3").sweep.doses == (2.0,)
    assert "--dose 2.0,0.5,10.0" in command_of(DECIMALS)
    assert "--heat 0.25" in command_of(DECIMALS)
    text = to_toml(Preset("mine", "", DECIMALS))
    assert re.search(r"dose = \[\s*2.0,\s*0.5,\s*10.0,\s*\]\s*heat = 0.25|heat = 0.25", text)
    assert DECIMALS.cells()[0].title.endswith(" · 2.0 g")
    entries = entries_of(DECIMALS)
    assert (entries.dose, entries.heat, [*entries.share]) == ("2.0,0.5,10.0", "0.25", ["0.25"])
    assert entries.other_shares == "0.75"


def test_what_is_no_decimal_number_is_refused() -> None:
    assert [refusal(lambda dose=dose: a_spec(dose=dose)) for dose in (-0.5, float("nan"), float("inf"))] == [
        "dose -0.5: expected a number, at least 0",
        "dose nan: expected a number, at least 0",
        "dose inf: expected a number, at most 2147483647",
    ]
    (problem,) = read(entries_of(DECIMALS).with_value("dose", "1.5,x")).problems
    assert str(problem) == "dose x: expected a number, or several as 1,2,4"
    said = CliRunner().invoke(cli, ("bench", "--dose", "1.5,x")).output.splitlines()[-1]
    assert said == "Error: Invalid value for '--dose': '1.5,x': expected numbers separated by commas"
    assert refusal(lambda: from_toml("mine", "dose = [0.5, 'x']")) == "preset mine: dose x: expected a number"
    assert refusal(lambda: from_toml("mine", "heat = true")) == "preset mine: heat True: expected a number"


def test_a_decimal_number_is_a_column_a_pivot_and_a_filter_in_its_order(tmp_path: Path) -> None:
    doses = [2.0, 0.5, 10.0]
    specs, export = exported(tmp_path, sizes=(SMALL,), pass_=["forward", "backward"], dose=doses)
    assert [spec.dose for spec in specs] == doses * 2
    assert column(export("--format", "csv"), "dose") == ["2.0", "0.5", "10.0"] * 2
    assert [
        row["dose"] for row in json.loads(export("--columns", "dose,mean", "--format", "json"))["rows"]
    ] == doses * 2
    assert re.findall(r"^\| +([0-9.]+) \|", export("--pivot", "dose:pass"), re.MULTILINE) == ["0.5", "2.0", "10.0"]
    assert column(export("--format", "csv", "--where", "dose=0.5"), "dose") == ["0.5"] * 2
