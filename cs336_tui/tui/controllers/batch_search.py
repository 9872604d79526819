"""The largest batch of cells that fits, looked for among predictions as they come."""

from __future__ import annotations

from collections.abc import Mapping

from cs336_tui.analysis.fitting import search
from cs336_tui.analysis.targets import Target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction
from cs336_tui.tui.configure.preview import needs_of
from cs336_tui.tui.tabs.estimate_texts import Largest

_AT_ONCE = 4
"""Cells whose largest batch is looked for at the same time."""


class _Missing(Exception):
    """A prediction that the search needs next."""

    def __init__(self, spec: CellSpec) -> None:
        super().__init__()
        self.spec = spec


class BatchSearch:
    """Looks for the largest batch of cells that fits, among the predictions that there are. What it lacks is `missing`,
    of few cells at a time: with those it comes further when it is asked again. The room is that of the first look."""

    def __init__(self) -> None:
        self._rooms: dict[CellSpec, int | None] = {}
        self._found: dict[CellSpec, Largest] = {}
        self.missing: tuple[CellSpec, ...] = ()

    def of(
        self,
        predictions: Mapping[CellSpec, Prediction],
        unpredictable: Mapping[CellSpec, str],
        spec: CellSpec,
        target: Target,
    ) -> Largest:
        """The largest batch of a cell, or how far the search for it is. The mappings are by `needs_of`."""
        if (known := self._found.get(spec)) is not None:
            return known
        room = self._rooms.setdefault(spec, target.room_bytes(spec.ranks))
        if room is None:
            return Largest(problem="the memory of the device is not known")

        def need(candidate: CellSpec) -> int:
            if found := predictions.get(needs_of(candidate)):
                return found.needed_of(room)
            raise _Missing(candidate)

        try:
            fit = search(spec, "batch", need, room)
        except _Missing as missing:
            if why := unpredictable.get(needs_of(missing.spec)):
                return Largest(problem=f"batch {missing.spec.batch_size} is not predicted: {why}")
            if len(self.missing) < _AT_ONCE:
                self.missing += (missing.spec,)
            return Largest(tries=missing.spec.batch_size)
        self._found[spec] = Largest(
            fit,
            predictions.get(needs_of(fit.spec)) if fit.spec else None,
            predictions.get(needs_of(fit.next_spec)) if fit.next_spec else None,
        )
        return self._found[spec]
