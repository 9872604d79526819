"""Results sorted into groups by the fields that tell them apart, for tables and figures of several cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, in_common, varies
from cs336_tui.analysis.merge import Result

TELLING = tuple(key for key, field in FIELDS.items() if field.kind in ("choice", "place"))
"""Fields by which cells are told apart: not the model's dimensions, which its size implies, nor repeats."""

SHARED = ("size", "context", "batch", "pass", "precision", "device", *VARIANTS)
"""Fields that say what a cell is, as far as it is to be said where they are the same for all."""

_BARE = ("size", "pass", "precision", "device", "machine", "session")
"""Fields whose values speak for themselves."""


def telling(results: Iterable[Result], but: Sequence[str] = (), among: Sequence[str] = TELLING) -> tuple[str, ...]:
    """Of the fields in `among` but not in `but` those that tell the results apart, no more than do."""
    found, told = list(results), 1
    keys: tuple[str, ...] = ()
    for key in among:
        if key not in but and varies(found, key):
            apart = len({shown(result, (*keys, key)) for result in found})
            if apart > told:
                keys, told = (*keys, key), apart
    return keys


def groups(results: Iterable[Result], keys: Sequence[str]) -> dict[tuple[str, ...], list[Result]]:
    """The results by what they show in these fields, in the fields' natural orders."""
    fields = [FIELDS[key] for key in keys]
    found: dict[tuple[str, ...], list[Result]] = {}
    for result in sorted(results, key=lambda result: tuple(field.order(result) for field in fields)):
        found.setdefault(shown(result, keys), []).append(result)
    return found


def shown(result: Result, keys: Sequence[str]) -> tuple[str, ...]:
    """What the result shows in these fields."""
    return tuple(FIELDS[key].show(result) for key in keys)


def label(result: Result, keys: Sequence[str]) -> str:
    """The same in words, but for what follows from the model: ``small · forward · warm-up 5``."""
    return " · ".join(
        text if key in _BARE else f"{FIELDS[key].title} {text}"
        for key, text in zip(keys, shown(result, keys), strict=True)
        if text != OWN
    )


def shared(results: Sequence[Result], but: Sequence[str] = (), among: Sequence[str] = SHARED) -> str:
    """What all results show alike in the fields of `among` that are not in `but`: ``size small, context 256``."""
    found = {key: in_common(results, key) for key in among if key not in but}
    return ", ".join(f"{FIELDS[key].title} {text}" for key, text in found.items() if text)
