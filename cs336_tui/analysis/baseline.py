"""Which figure of a pivot a speed-up is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cs336_tui.analysis.choosing import PivotError, field_named, in_words, values_meant
from cs336_tui.analysis.fields import FIELDS, OWN

Shown = tuple[str, ...]
"""What a figure shows in each of the named fields."""


class Baseline(NamedTuple):
    """A chosen baseline and, for each figure that has one, the figure that it is compared with."""

    chosen: dict[str, str]
    of: dict[Shown, Shown]


def baseline_of(
    figures: Iterable[Shown],
    named: Sequence[str],
    taken: Mapping[str, Sequence[str]],
    wanted: Mapping[str, str],
) -> Baseline:
    """For each figure the one with the baseline's values and all else the same.

    Where there is none: the one that was asked the same otherwise, as another device is in another machine, and another
    model has an attention and arguments of its own. `named` are the fields of rows and columns, `taken` what each field
    takes, `wanted` the baseline as a person names it. Raises `PivotError` for no baseline, one that is not among the
    figures, and one that fits several.
    """
    chosen = _chosen(named, taken, wanted)
    choices = [key for key in named if FIELDS[key].kind in ("choice", "run") and key not in chosen]
    shown = {figure: dict(zip(named, figure, strict=True)) for figure in figures}
    loose = [key for key in choices if key == _ARGUMENTS or any(fields[key] == OWN for fields in shown.values())]
    choices = [key for key in choices if key not in loose]
    alike: dict[Shown, list[Shown]] = {}
    for figure, fields in shown.items():
        if fields == fields | chosen:
            alike.setdefault(tuple(fields[key] for key in choices), []).append(figure)
    if not alike:
        raise PivotError(f"baseline {in_words(chosen)}: no cell has all of these")
    found: dict[Shown, Shown] = {}
    for figure, fields in shown.items():
        candidates = [
            candidate
            for candidate in alike.get(tuple(fields[key] for key in choices), [])
            if all(_fits(key, fields, shown[candidate]) for key in loose)
        ]
        exact = [candidate for candidate in candidates if shown[candidate] == fields | chosen]
        match exact or candidates:
            case [base]:
                found[figure] = base
            case [first, second, *_]:
                differ = next(key for key in named if shown[first][key] != shown[second][key])
                options = ", ".join(dict.fromkeys(shown[candidate][differ] for candidate in candidates))
                raise PivotError(f"baseline {in_words(chosen)}: fits several; add {differ}, one of {options}")
    return Baseline(chosen, found)


_ARGUMENTS = "model-args"


def _fits(key: str, fields: Mapping[str, str], base: Mapping[str, str]) -> bool:
    """Whether both show the same, or what follows from the model of one of them."""
    of_others = key == _ARGUMENTS and fields.get("model") != base.get("model")
    return of_others or fields[key] == base[key] or OWN in (fields[key], base[key])


def _chosen(named: Sequence[str], taken: Mapping[str, Sequence[str]], wanted: Mapping[str, str]) -> dict[str, str]:
    """The baseline as field keys and what they show."""
    example = f", such as {named[0]}={taken[named[0]][0]}" if named else ""
    if not wanted:
        raise PivotError(f"speed-up needs a baseline{example or ': there is one figure only'}")
    chosen: dict[str, str] = {}
    for name, text in wanted.items():
        field, said = field_named(name), f"baseline {name}={text}"
        if field.key not in named:
            raise PivotError(f"{said}: {field.title} is in neither rows nor columns{example}")
        shown = values_meant(field, text, taken[field.key], said)
        if len(shown) > 1:
            raise PivotError(f"{said}: fits several; a baseline is one value")
        chosen[field.key] = shown[0]
    return chosen
