"""Where results were measured, when it was not one place: said beside the table, marked in it, never mixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from cs336_tui.analysis.fields import FIELDS, values
from cs336_tui.analysis.merge import Result

PLACES = ("machine", "session", "torch", "threads")
_MARKED = ("machine", "torch", "threads")


class UsualPlaces:
    """Where most figures of each device were measured, in the fields that are not `named` in the table.

    `figures` gives one result of each. Called with one, says where it ran if that is not the usual place.
    """

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
        shown = ((key, FIELDS[key].show(result)) for key in self._fields)
        return tuple(
            f"{FIELDS[key].title} {text}" for key, text in shown if text != self._usual.get((key, result.spec.device))
        )


def place_notes(results: Sequence[Result], named: Sequence[str]) -> Iterator[str]:
    """A line for each of machine, session, torch and threads that differs and is not named in the table."""
    ran = list(filter(_ran, results))
    for key in PLACES:
        if key in named or len(values(ran, key)) < 2:
            continue
        by_device: dict[str, list[Result]] = {device: [] for device in values(ran, "device")}
        for result in ran:
            by_device[result.spec.device].append(result)
        said = {device: ", ".join(values(cells, key)) for device, cells in by_device.items()}
        parts = said.values() if len(said) == 1 else (f"{device}: {shown}" for device, shown in said.items())
        yield f"{FIELDS[key].title} differs: {'; '.join(parts)}"


def _ran(result: Result) -> bool:
    return result.cell.started_at is not None
