"""From choices given by name, as flags give them, to a sweep."""

from __future__ import annotations

from typing import Any

import msgspec

from cs336_tui.presets import preset
from cs336_tui.spec import ModelDims, SpecError
from cs336_tui.sweep import UNRESOLVED, Sweep

_RAW_DIMS = ("d_model", "d_ff", "num_layers", "num_heads")


def sweep_from(*, preset_name: str | None = None, vocab_size: int | None = None, **choices: Any) -> Sweep:
    """The preset (or the default sweep) with the given choices in place of its own; None leaves a choice alone.

    `choices` are fields of `Sweep` and the raw dimensions. Raises `SpecError` when they contradict each other or
    any cell of the sweep could not be; ``auto`` and ``every`` are left for the machine to resolve.
    """
    base = preset(preset_name).sweep if preset_name else Sweep()
    raw = {name: choices.pop(name, None) for name in _RAW_DIMS}
    given = {name: value for name, value in choices.items() if value is not None}
    if vocab_size is not None:
        given["vocab_size"] = vocab_size
    if any(value is not None for value in raw.values()):
        missing = [f"--{name.replace('_', '-')}" for name, value in raw.items() if value is None]
        if missing:
            raise SpecError("raw dimensions", "incomplete", f"{', '.join(missing)} missing; give all of them")
        if "sizes" in given:
            raise SpecError("size", ",".join(given["sizes"]), "give either --size or raw dimensions, not both")
        given["dims"] = ModelDims(**raw, vocab_size=base.vocab_size if vocab_size is None else vocab_size)
    elif preset_name and given.get("edition", base.edition) != base.edition and "sizes" not in given:
        raise SpecError("edition", given["edition"], f"changes what the sizes of {preset_name} mean; give --size too")
    sweep = msgspec.structs.replace(base, **given)
    named = tuple(device for device in sweep.devices if device not in UNRESOLVED)
    if problems := sweep.with_devices(named or ("cpu",)).problems():
        raise problems[0]
    return sweep
