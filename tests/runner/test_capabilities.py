"""Choices that a machine cannot run: left out of a preset, refused if asked for by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cs336_tui.config.presets import preset
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import DeviceInfo, Environment, without_impossible
from tests.samples import ENVIRONMENT


def machine(**facts: Any) -> Environment:
    device = DeviceInfo(name="cpu", label="A CPU", precisions=("fp32", "bf16"), **facts)
    return msgspec.structs.replace(ENVIRONMENT, devices=(device,))


def test_what_the_machine_lacks_is_left_out_and_named() -> None:
    here = machine(cannot_compile="no C++ compiler was found")
    sweep = preset("2026/attention").sweep.with_devices(("cpu",))
    found, said = without_impossible(sweep, here)
    assert (found.compiles, said) == (("off",), ("left out: compile default: no C++ compiler was found",))
    assert len(found) == len(sweep) / 2
    for cell in found.cells():
        here.check(cell)


def test_several_things_that_are_lacking_are_all_left_out() -> None:
    here = machine(cannot_compile="no compiler", attentions=("naive", "sdpa"))
    sweep = Sweep(
        devices=("cpu",), precisions=("fp32", "tf32"), attentions=("flash", "sdpa"), compiles=("off", "default")
    )
    found, said = without_impossible(sweep, here)
    assert (found.precisions, found.attentions, found.compiles) == (("fp32",), ("sdpa",), ("off",))
    assert len(said) == 3


def test_what_one_of_the_devices_can_do_stays() -> None:
    other = DeviceInfo(name="mps", label="A GPU", precisions=("fp32", "fp16-mixed"))
    here = msgspec.structs.replace(machine(), devices=(*machine().devices, other))
    sweep = Sweep(devices=("cpu", "mps"), precisions=("fp32", "fp16-mixed"))
    found, said = without_impossible(sweep, here)
    assert (found, said) == (sweep, ())
    refused = next(cell for cell in found.cells() if (cell.device, cell.precision) == ("cpu", "fp16-mixed"))
    with pytest.raises(SpecError, match="precision fp16-mixed"):
        here.check(refused)


def test_what_was_asked_for_by_name_or_would_leave_nothing_stays() -> None:
    here = machine(cannot_compile="no compiler")
    both = Sweep(devices=("cpu",), compiles=("off", "default"))
    assert without_impossible(both, here, ("precision",)) == (both, ())
    alone = Sweep(devices=("cpu",), compiles=("default",))
    assert without_impossible(alone, here) == (alone, ())


def test_where_all_is_there_nothing_changes() -> None:
    sweep = preset("2026/attention").sweep.with_devices(("cpu",))
    assert without_impossible(sweep, machine()) == (sweep, ())
