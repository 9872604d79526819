"""Results sorted by the fields and places that tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cs336_tui.analysis.fields import FIELDS, OWN, VARIANTS, in_common, values, varies
from cs336_tui.analysis.merge import Result, grouped, measured

TELLING = tuple(key for key, field in FIELDS.items() if field.kind in ("choice", "place"))
"""Fields by which cells are told apart: not the model's dimensions, which its size implies, nor repeats."""

SHARED = ("size", "context", "batch", "pass", "precision", "device", *VARIANTS)
"""Fields that say what a cell is, as far as it is to be said where they are the same for all."""

ALWAYS = ("size", "context", "pass", "precision")
"""Fields that name a cell, if cells differ in them or not."""

_BARE = ("size", "pass", "precision", "device", "op", "machine", "session")
"""Fields whose values speak for themselves."""


def telling(results: Iterable[Result], but: Sequence[str] = (), among: Sequence[str] = TELLING) -> tuple[str, ...]:
    """The fields in `among` but not in `but` that tell the results apart, no more than do."""
    found, told = list(results), 1
    keys: tuple[str, ...] = ()
    for key in among:
        if key not in but and varies(found, key):
            apart = len({shown(result, (*keys, key)) for result in found})
            if apart > told:
                keys, told = (*keys, key), apart
    return keys


def settled(results: Sequence[Result]) -> list[Result]:
    """The results, those without timings each with a `home`, if nothing like them was measured at their place: the
    result of the same session and threads, and if there is one of the same device and model, that was measured last.
    So a place where a cell only ended, or that is not known of it, makes no table of its own."""
    homes: dict[tuple[object, ...], dict[tuple[str, ...], Result]] = {}
    for result in measured(results):
        for kind in _kinds(result):
            homes.setdefault(kind, {})[shown(result, PLACES)] = result
    found = list(results)
    for place, result in enumerate(results):
        here = next((homes[kind] for kind in _kinds(result) if kind in homes), {})
        if not result.is_measured and here and shown(result, PLACES) not in here:
            found[place] = result._replace(home=next(reversed(here.values())))
    return found


def _kinds(result: Result) -> Iterator[tuple[object, ...]]:
    """Fields by which results are of a kind, the narrowest first."""
    kind = (result.source, result.spec.threads, result.spec.device, result.spec.model)
    yield from (kind[:parts] for parts in (4, 3, 2))


def groups(results: Iterable[Result], keys: Sequence[str]) -> dict[tuple[str, ...], list[Result]]:
    """The results by what they show in these fields, in the fields' natural orders."""
    fields = [FIELDS[key] for key in keys]
    in_order = sorted(results, key=lambda result: tuple(field.order(result) for field in fields))
    return grouped(in_order, lambda result: shown(result, keys))


def shown(result: Result, keys: Sequence[str]) -> tuple[str, ...]:
    """The texts of the result in these fields."""
    return tuple(FIELDS[key].show(result) for key in keys)


def label(result: Result, keys: Sequence[str]) -> str:
    """The same in words, but for what follows from the model: ``small · forward · warm-up 5``."""
    return " · ".join(
        text if key in _BARE else f"{FIELDS[key].title} {text}"
        for key, text in zip(keys, shown(result, keys), strict=True)
        if text not in (OWN, "")
    )


def shared(results: Sequence[Result], but: Sequence[str] = (), among: Sequence[str] = SHARED) -> str:
    """The texts that all results share in the fields of `among` that are not in `but`: ``size small, context 256``."""
    found = {key: in_common(results, key) for key in among if key not in but}
    return ", ".join(f"{FIELDS[key].title} {text}" for key, text in found.items() if text)


PLACES = ("machine", "session", "torch", "threads")
_MARKED = ("machine", "torch", "threads")


class UsualPlaces:
    """The place where most figures of each device were measured, in the fields that are not `named` in the table.
    `figures` gives one result of each. Called with one, says where it ran if that is not the usual place."""

    def __init__(self, figures: Iterable[Result], named: Sequence[str]) -> None:
        self._fields = [key for key in _MARKED if key not in named]
        counted: dict[tuple[str, str], Counter[str]] = {}
        for result in figures:
            if _ran(result):
                for key in self._fields:
                    counted.setdefault((key, result.spec.device), Counter())[FIELDS[key].show(result)] += 1
        self._usual = {key: counter.most_common(1)[0][0] for key, counter in counted.items()}

    def marks(self, result: Result) -> tuple[str, ...]:
        """``("torch 2.12.0",)``; nothing for one that was measured where the others were, or has not begun."""
        if not _ran(result):
            return ()
        texts = {key: FIELDS[key].show(result) for key in self._fields}
        apart = (key for key, text in texts.items() if text != self._usual.get((key, result.spec.device)))
        return tuple(f"{FIELDS[key].title} {texts[key]}" for key in apart)


def place_notes(results: Sequence[Result], named: Sequence[str]) -> Iterator[str]:
    """A line for each of machine, session, torch and threads that differs and is not named in the table."""
    ran = list(filter(_ran, results))
    for key in PLACES:
        if key in named or len(values(ran, key)) < 2:
            continue
        said = {device: ", ".join(values(cells, key)) for (device,), cells in groups(ran, ("device",)).items()}
        parts = said.values() if len(said) == 1 else (f"{device}: {shown}" for device, shown in said.items())
        yield f"{FIELDS[key].title} differs: {'; '.join(parts)}"


def _ran(result: Result) -> bool:
    return result.cell.started_at is not None
