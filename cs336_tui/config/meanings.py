"""Each entry of the form in one line, with its unit, and what each of its choices means."""

from __future__ import annotations

import tomllib
from functools import cache

from cs336_tui.config.reading import packaged
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, SpecError, dims_of
from cs336_tui.stats.quantities import counted

_TEXTS = tomllib.loads(packaged("meanings.toml"))
FIELDS: dict[str, str] = _TEXTS["fields"]
"""By the field of the choice, else by the name of the entry. Where a choice has none here, its tip is it."""
CHOICES: dict[str, dict[str, str]] = _TEXTS["choices"]
"""By the field, as in `FIELDS`, and the choice."""


@cache
def examples() -> dict[str, dict[str, str]]:
    """Code of one's own to start from, by what it is: its option, what it takes and returns, its command and file."""
    return tomllib.loads(packaged("examples.toml"))


def own_code(field: str) -> str:
    """Parameters and result of one's own code in a text entry of a choice, and the command of a file to start from;
    empty where the entry takes no code."""
    axis = next((a for a in AXES.values() if a.own and field == (a.others or a.field)), None)
    for name, example in examples().items() if axis else ():
        option, code = example["call"].split()
        if axis and option == f"--{axis.option}":
            return f"{code}: {example['about']}. To start from: cs336-tui example {name} > mine.py"
    return ""


def meaning(field: str, choice: str | None = None, edition: str = "2026", name: str = "") -> str:
    """The line of an entry, and of a choice where one is under the cursor; `field` as `SpecError` names it, or of its
    entry for other values. `name`: that of the device which the choice means."""
    axis = AXES.get(field) or next((a for a in AXES.values() if field in (a.name, a.others)), None)
    key = axis.field if axis else field
    about = FIELDS.get(key) or (axis.tip if axis else "") or ""
    if choice is None:
        return about
    if key == "size":
        return f"{choice}: {_dimensions(choice, edition)}"
    if key == "context_length":
        return f"{choice}: tokens in a sequence; any others in the line below, with commas"
    if key == "device":
        return f"{choice}: {name or 'the best device of this machine' if choice == 'auto' else name or 'a device'}"
    found = CHOICES.get(key, {}).get(choice, "")
    return f"{choice}: {found}" if found else about


def _dimensions(size: str, edition: str) -> str:
    if size == CUSTOM_SIZE:
        return "your own d_model, d_ff, layers and heads, beside the named ones"
    try:
        dims = dims_of(size, edition)
    except SpecError as error:
        return error.allowed
    layers, heads = counted(dims.num_layers, "layer"), counted(dims.num_heads, "head")
    return f"d_model {dims.d_model}, d_ff {dims.d_ff}, {layers}, {heads}"
