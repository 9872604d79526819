"""Reports that were asked for with cells: each is made once, of a cell that ended well, when no cell waits any more."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from typing import cast

from cs336_tui.config.order import variant_kind
from cs336_tui.config.spec import PASSES, CellSpec
from cs336_tui.config.sweep import AskedReport
from cs336_tui.events.report_keys import report_key
from cs336_tui.runner.queue import WaitingReport
from cs336_tui.session.state import SessionState


class WantedReports:
    """The kinds of reports that were asked for with each cell, and the reports that are due. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[int, tuple[str, ...]] = {}
        self._due: dict[Hashable, WaitingReport] = {}
        self._made: set[Hashable] = set()

    def want(self, cells: Iterable[int], kinds: tuple[str, ...]) -> None:
        with self._lock:
            self._kinds |= dict.fromkeys(cells, kinds)

    def restore(self, state: SessionState) -> tuple[CellSpec, ...]:
        """Take over a session that goes on: what it has not made yet is due. Returns the cells that it is of."""
        with self._lock:
            self._kinds = dict(state.wanted)
            self._made = {_key(each.kind, each.spec) for each in state.reports.values() if each.status == "ok"}
        for cell in state.cells.values():
            if cell.status == "ok":
                self.ended_well(cell.cell, cell.spec)
        return tuple(report.spec for report in self._due.values())

    def ended_well(self, cell: int, spec: CellSpec) -> None:
        with self._lock:
            for kind in self._kinds.get(cell, ()):
                key, report = _key(kind, spec), WaitingReport(cast(AskedReport, kind), spec, cell)
                before = self._due.get(key)
                if key not in self._made and (before is None or _tells_more(spec, before.spec)):
                    self._due[key] = report

    def later(self, report: WaitingReport) -> None:
        """Have a report of a cell made once no cell waits any more, though none of its kind was asked for."""
        with self._lock:
            self._due[report.kind, report.cell] = report

    def take(self) -> tuple[WaitingReport, ...]:
        """The reports that are due; they count as made."""
        with self._lock:
            due, self._due = self._due, {}
            self._made |= due.keys()
            return tuple(due.values())

    def forget(self) -> None:
        """Nothing is due any more, nor will be for a cell that is ending now."""
        with self._lock:
            self._kinds, self._due = {}, {}


def _key(kind: str, spec: CellSpec) -> Hashable:
    """Equal for reports that tell the same: of dtypes the smallest model tells what all of its kind do."""
    if kind == "precision":
        return kind, spec.device, spec.precision, spec.arch, spec.model_args, variant_kind(spec)
    return kind, report_key(spec)


def _tells_more(spec: CellSpec, before: CellSpec) -> bool:
    """True if it is the same model with more of a training step."""
    return spec.dims == before.dims and PASSES.index(spec.pass_) > PASSES.index(before.pass_)
