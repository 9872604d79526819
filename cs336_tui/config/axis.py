"""The declaration of a choice (`Axis`), and the error for a value that cannot be (`SpecError`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

import msgspec

from cs336_tui.config.variants import expected, is_well_formed, likely_meant

MAX_COUNT = 2**31 - 1
NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}
"""Kinds of choices that are numbers, in words."""


Section = Literal[
    "What to run", "How long", "Your model", "Variants", "Several ranks", "One operation alone", "How it runs"
]
"""A heading of help, which has the options of choices; in that order."""


def names_of(text: str) -> tuple[str, ...]:
    """Names between commas, without those that are empty."""
    return tuple(filter(None, map(str.strip, text.split(","))))


class UserError(Exception):
    """An error that a person can mend; its text says how in one line, and a command ends with `exit_code`."""

    exit_code = 2


class SpecError(UserError, ValueError):
    """A value that cannot be run: names the field, the value and what is allowed, in one line."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field, self.value, self.allowed = field, value, allowed
        name = {"annotations": "annotate"}.get(field, field.replace("_", " "))
        super().__init__(" ".join(f"{name} {value!s}: {allowed}".splitlines()))


class Device(Protocol):
    """The part of `events.environment.DeviceInfo` that choices use."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def precisions(self) -> tuple[str, ...]: ...
    @property
    def capability(self) -> str | None: ...
    @property
    def attentions(self) -> tuple[str, ...]: ...
    @property
    def cannot_compile(self) -> str | None: ...


class Cell(Protocol):
    """The part of `config.spec.CellSpec` that choices use."""

    @property
    def workload(self) -> str: ...
    @property
    def pass_(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def attention(self) -> str: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def checkpoint(self) -> int: ...
    @property
    def timer(self) -> str: ...
    @property
    def brings_own_code(self) -> bool: ...
    @property
    def ranks(self) -> int: ...
    @property
    def recording(self) -> str: ...


Kind = Literal["prediction", "memory", "time", "pace"]
"""Likeness of cells of one kind: a ``prediction`` of memory and FLOPs; that larger ones run out of ``memory``, too; the
estimate of a step's ``time``; the same as long as no cell of that kind is timed (``pace``)."""
Widget = Literal["chips", "one", "names", "numbers", "number", "pairs", "pieces", "text"]
"""Entry of the form: ``chips`` are ticked, of ``one`` exactly one; the others are typed."""


_SECTIONS: dict[str, Section] = {
    "": "What to run", "what": "What to run", "how": "How long", "more": "How it runs", "variants": "Variants"
}  # fmt: skip
"""Headings of help by groups of the form, where a choice does not say its own."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: how it is given, kept, shown and told apart.

    `field`, `kind` and `default` come from its field of `Choices`, a text, a number or a bool; `values` do for a
    ``Literal``, and are two words for a bool, yes first. Of the rest, a choice gives what is not as usual.
    """

    field: str = ""
    kind: type = str
    """Type of one value: str, int, float or bool; tuple for several texts or pairs."""
    sweep_type: Any = str
    default: Any = None

    values: tuple[str, ...] = ()
    own: str = ""
    """Kind of a user's own value, ``package.module:`` and this; empty if only `values` are allowed."""
    arguments_of: str = ""
    """Field of the user's own code whose arguments these pairs are; several values of one are a sweep's."""
    least: float = 1
    """Minimum of a number."""
    check: Callable[[Any], None] | None = None
    """Raises `SpecError`; replaces the check against `values`, `own` and `least`."""
    lacks: Callable[[Any, Device], str] | None = None
    """Why a device cannot do this value, empty if it can; None if every device can."""

    sweep: str = ""
    """Field of `Sweep`: the field's own name where empty, ``-`` for none."""
    several: bool = False
    """True if a sweep tries several values, not one for all its cells."""
    usual: Any = None
    """The sweep's value or values if nobody chooses; None for the default."""
    option: str = ""
    """Without its dashes, and with underscores the key in presets; the field's name where empty, ``-`` for none."""
    section: Section | None = None
    """Heading of the option in help; None for what `group` comes to."""
    help: str = ""
    metavar: str | None = None

    column: str = ""
    """Key of the column, in CSV and JSON, of the filter and of the pivot."""
    title: str = ""
    """Header of the column and label of the entry. The column's key where empty."""
    long_title: str = ""
    """Label in a cell's details, where it is not the title."""
    said: Callable[[Any], tuple[str, ...]] | None = None
    """Words of a cell's title for a value that is not the default; None for none."""
    detail: Callable[[Any], str] = str
    """The value in a cell's details."""
    workloads: tuple[str, ...] = ()
    """Workloads that have this choice; empty if each has."""
    applies: Callable[[Cell], bool] = lambda _: True
    """True if the choice changes anything in a cell of that workload."""
    recorded: bool = False
    """True if it is known of a recording that others made; no other choice of such a cell is."""

    group: Literal["", "what", "how", "variants", "more"] = ""
    """Part of the form that holds its entry; empty for no entry."""
    widget: Widget | None = None
    """None for what the type and the values come to."""
    before: str = ""
    """Field before which it stands in options, forms and tables, where that is not its place in the group."""
    label: str = ""
    """Label of the entry, if it is not the title."""
    hint: str = ""
    """In the empty entry; beside ``chips`` in the one for other values."""
    tip: str | None = None

    kinds: tuple[Kind, ...] = ("prediction", "memory", "time")
    """The kinds of cells that it tells apart."""
    searched: bool = False
    """True if a search of what nobody names tries it: it does not change results."""
    tried: tuple[Any, ...] = ()
    """Values that a search tries beside the starting point's, if nobody names any; empty: all."""
    unpredicted: str = ""
    """Note of a prediction that leaves a value other than the default out."""
    compared: Literal["name", "setting", "work"] = "setting"
    """If it differs between two sessions: the same work under another ``name``, the ``setting`` that is compared, or
    other ``work``, whose cells do not pair."""
    stand_in: Any = None
    """Value in the key of cells that count as alike; None for the default."""

    @property
    def name(self) -> str:
        """As `SpecError` names it."""
        return self.field.rstrip("_")

    @property
    def others(self) -> str:
        """Entry of values beside those that are ticked; empty where there are no others."""
        return f"other_{self.sweep}" if self.widget == "chips" and (self.own or self.is_number) else ""

    @property
    def has_chips(self) -> bool:
        """True if its values are ticked in the form, not typed."""
        return self.widget in ("chips", "one")

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS

    @property
    def key(self) -> str:
        """Key in a preset."""
        return self.option.replace("-", "_")

    @property
    def heading(self) -> Section:
        """Heading of the option in help."""
        return self.section or _SECTIONS[self.group]

    @property
    def sweep_default(self) -> Any:
        value = self.default if self.usual is None else self.usual
        return value if not self.several or isinstance(value, tuple) else (value,)

    @property
    def alike(self) -> Any:
        """The value in keys of cells that count as alike."""
        return self.default if self.stand_in is None else self.stand_in

    def counts_in(self, cell: Cell) -> bool:
        """True if the choice changes anything in a cell, and is known of it."""
        return (self.recorded or not cell.recording) and self.is_in(cell.workload) and self.applies(cell)

    def is_in(self, workload: str) -> bool:
        """True if this workload has the choice."""
        return not self.workloads or workload in self.workloads

    def validate(self, value: Any) -> None:
        """Raise `SpecError` for a value that cannot be."""
        if self.check:
            self.check(value)
        elif self.kind is str and self.values and value not in self.values:
            self._refuse(value)
        elif self.is_number and value is not None and not self.least <= value <= MAX_COUNT:
            bound = f"at most {MAX_COUNT}" if value > MAX_COUNT else f"at least {self.least}"
            raise SpecError(self.name, value, f"expected {NUMBERS[self.kind]}, {bound}")

    def _refuse(self, value: str) -> None:
        if not self.own:
            raise SpecError(self.name, value, expected(value, self.values))
        if not is_well_formed(value):
            own = ", or package.module:name for one of your own"
            raise SpecError(self.name, value, likely_meant(value) or expected(value, self.values, own=own))


def axes_of(choices: type[msgspec.Struct], names: Mapping[str, Any]) -> dict[str, Axis]:
    """Every choice by its field, in the order in which people see them. `names` are those that annotations use."""
    hints = get_type_hints(choices, dict(names), include_extras=True)
    found: list[Axis] = []
    for field in msgspec.structs.fields(choices):
        kind, axis = get_args(hints[field.name])[:2]
        found.append(_axis_of(field.name, kind, axis, None if field.default is msgspec.NODEFAULT else field.default))
    found.sort(key=lambda axis: {"more": 1, "variants": 2}.get(axis.group, 0))
    for axis in [axis for axis in found if axis.before]:
        found.remove(axis)
        found.insert([other.field for other in found].index(axis.before), axis)
    return {axis.field: axis for axis in found}


def _axis_of(field: str, kind: Any, axis: Axis, default: Any) -> Axis:
    """The axis with what its field says itself."""
    values = axis.values
    type_ = str if get_origin(kind) is Literal else kind
    if get_origin(kind) is Literal:
        values, kind = values or get_args(kind), str
    elif not isinstance(kind, type) or get_origin(kind):
        kind = next((each for each in get_args(kind) if each in NUMBERS), tuple)
    elif kind is bool:
        values = values or ("yes", "no")
    option = axis.option or field.rstrip("_").replace("_", "-")
    column = axis.column or (field if axis.sweep == "-" else option)
    widget: Widget = "chips" if axis.several else "one"
    if not values:
        widget = "text" if kind not in NUMBERS else "numbers" if axis.several else "number"
    return msgspec.structs.replace(
        axis,
        field=field,
        kind=kind,
        sweep_type=tuple[kind, ...] if axis.several else type_,
        default=default,
        values=values,
        option=option.strip("-"),
        column=column.strip("-"),
        sweep=(axis.sweep or field).strip("-"),
        widget=axis.widget or widget,
        title=axis.title or column.replace("-", " "),
    )
