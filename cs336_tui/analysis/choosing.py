"""Fields and values as a person names them, and the results that they pick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cs336_tui.analysis.fields import FIELDS, Field, values
from cs336_tui.analysis.merge import Result
from cs336_tui.config.variants import is_imported, short

_BY_BEGINNING = ("device", "machine", "session")


class PivotError(ValueError):
    """A choice of fields or values that cannot be shown; one line says what was asked for and what would do."""


def field_named(name: str) -> Field:
    """The field of that key or title. Raises `PivotError` naming the known ones."""
    for field in FIELDS.values():
        if name in (field.key, field.title):
            return field
    raise PivotError(f"field {name}: expected one of {', '.join(FIELDS)}")


def values_meant(field: Field, text: str, known: Sequence[str], said: str) -> tuple[str, ...]:
    """The known values that a person's text means: one itself, in whatever capitals, or several with commas; of
    devices, machines and sessions a unique beginning will do, of ``package.module:Class`` the class where it is unique.
    Raises `PivotError`, which begins with `said`."""
    if text in known:
        return (text,)
    fitting = [shown for shown in known if shown.casefold() == text.casefold()]
    if not fitting and text and field.key in _BY_BEGINNING:
        fitting = [shown for shown in known if shown.casefold().startswith(text.casefold())]
    fitting = fitting or [shown for shown in known if is_imported(shown) and short(shown) == text]
    if len(fitting) == 1:
        return (fitting[0],)
    if "," in text:
        return tuple(shown for word in text.split(",") for shown in values_meant(field, word.strip(), known, said))
    raise PivotError(f"{said}: {field.title} here is {'one of ' if len(known) > 1 else ''}{', '.join(known)}")


def select(results: Sequence[Result], where: Mapping[str, str]) -> tuple[Result, ...]:
    """The results that show these values: ``{"precision": "fp32"}``, several with commas. Raises `PivotError`."""
    kept = tuple(results)
    for name, text in where.items():
        field = field_named(name)
        wanted = values_meant(field, text, values(results, field.key), f"{name}={text}")
        kept = tuple(result for result in kept if field.show(result) in wanted)
    if where and not kept:
        raise PivotError(f"{in_words(where)}: no cell has all of these")
    return kept


def in_words(where: Mapping[str, str]) -> str:
    """``size=small, pass=forward``."""
    return ", ".join(f"{name}={text}" for name, text in where.items())
