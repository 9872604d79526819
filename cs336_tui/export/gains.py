"""Gains of each searched choice, as a table and as data."""

from __future__ import annotations

from collections.abc import Iterator

from cs336_tui.analysis.gains import Factor, Gain, gains_of, together
from cs336_tui.analysis.tuning import Race
from cs336_tui.config.spec import AXES
from cs336_tui.config.tuning import choice_words
from cs336_tui.export.tables import Column, Table, Value
from cs336_tui.stats.quantities import UNKNOWN


def gains_table(race: Race) -> Table | None:
    """A row a value of a choice: its ratio of costs alone, and beside the best candidate's other choices. None without
    a best candidate that changes something, or another value to compare."""
    gains = gains_of(race)
    if not any(gain.alone or gain.beside for gain in gains):
        return None
    columns: list[Column[Gain]] = [
        Column("choice", left=True, text=lambda gain: choice_words({gain.field: gain.value})),
        Column("alone", text=lambda gain: factor_words(gain.alone)),
        Column("beside", "beside the best's others", text=lambda gain: factor_words(gain.beside)),
        Column("interacts", left=True, text=_interacts),
        Column("in_best", "in the best", left=True, text=lambda gain: "yes" if gain.is_best else ""),
    ]
    return Table.of(
        gains,
        columns,
        record=_record,
        caption="What each choice gains: cost with it over cost without it",
        footnotes=tuple(_notes(race, gains)),
        label="gains",
    )


def _record(gain: Gain) -> dict[str, Value]:
    """A gain as data; None for what is not known."""
    record: dict[str, Value] = {"choice": AXES[gain.field].option, "value": gain.value, "in_best": gain.is_best}
    for name, factor in (("alone", gain.alone), ("beside", gain.beside)):
        record |= {f"{name}_{part}": getattr(factor, part) if factor else None for part in Factor._fields}
    return {**record, "interacts": gain.interacts}


def factor_words(factor: Factor | None) -> str:
    """A ratio with its interval: ``0.712 [0.703, 0.721]``."""
    if factor is None:
        return UNKNOWN
    bounds = "" if factor.low is None or factor.high is None else f" [{factor.low:.3f}, {factor.high:.3f}]"
    return f"{factor.ratio:.3f}{bounds}"


def _interacts(gain: Gain) -> str:
    return {None: UNKNOWN, True: "yes", False: "not shown"}[gain.interacts]


def _notes(race: Race, gains: tuple[Gain, ...]) -> Iterator[str]:
    yield "alone: in place of the starting point's value; below 1 it gains"
    yield "beside: the same where all other choices are the best candidate's; n/a: one of the cells was not measured"
    yield "interacts: both intervals exclude each other, so that the choice gains another ratio beside the others"
    if both := together(race, gains):
        product = UNKNOWN if both.product is None else f"{both.product:.3f}"
        yield f"together: {factor_words(both.ratio)}; the product of what its choices gain alone: {product}"
