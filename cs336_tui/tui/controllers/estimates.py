"""Predictions on the screen: which are asked for, and what the Estimate tab is about."""

from __future__ import annotations

from textual.timer import Timer

from cs336_tui.analysis.estimates import named_target
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.gpus import find_gpu
from cs336_tui.session.state import SessionState
from cs336_tui.tui.configure.preview import MOST, Cells, Need, as_cells, needs_of, run_alike
from cs336_tui.tui.controllers.forecast import Forecast, Outlook, whole_time
from cs336_tui.tui.controllers.protocol import Host
from cs336_tui.tui.tabs.estimate import Estimated, Whose
from cs336_tui.tui.tabs.estimate_detail import Row, target_text

SETTLED_S = 0.3
"""Predictions are asked for when the choices have stayed the same for so long."""


class EstimateController:
    """Serves the Estimate tab and Configure's summary; made when one of them is first in sight."""

    def __init__(self, app: Host) -> None:
        self._app = app
        self._outlook = Outlook()
        self._whose: Whose = "chosen"
        self._asked: tuple[CellSpec, ...] = ()
        """What has to be known, as it was when it was asked for last."""
        self._timer: Timer | None = None
        self._session_cells: tuple[tuple[int, int], Cells] = ((0, 0), Cells())

    # What is shown.

    def summary(self) -> Forecast:
        """The end of Configure's summary."""
        state = self._app.live.state
        held = self._app.run_in_progress
        return self._outlook.summary(state, self._chosen, predicts=self._predicts and not held)

    def estimated(self) -> Estimated:
        """What the Estimate tab shows."""
        app, outlook = self._app, self._outlook
        state = app.state
        chosen = self._chosen if self._has_choices else Cells()
        of_session = self._cells_of(state)
        both = bool(of_session.cells) and self._has_choices
        whose: Whose = (
            "session" if of_session.cells and (self._whose == "session" or not self._has_choices) else "chosen"
        )
        cells = chosen if whose == "chosen" else of_session
        found = outlook.asked_of(cells.largest)
        estimates = outlook.there(state, found)
        measured = self._measured(state) if outlook.gpu is None else {}
        rows = tuple(
            Row(
                need.spec,
                estimate,
                measured.get(run_alike(need.spec)),
                self._refused(need.spec),
                state.unpredictable.get(needs_of(need.spec), ""),
            )
            for need, estimate in zip(found, estimates, strict=True)
        )
        return Estimated(
            rows,
            whose,
            target=self._target(state, rows),
            elsewhere=outlook.gpu is not None,
            why_none=chosen.why_none or "This session has no cells yet.",
            waiting=self._waiting,
            total=self._total(found, rows, more=cells.is_cut),
            part=f"the {MOST} largest of {cells.kinds} kinds" if cells.is_cut else "",
            can_switch=both,
        )

    def _target(self, state: SessionState, rows: tuple[Row, ...]) -> str:
        if self._outlook.gpu is not None:
            return target_text(named_target(self._outlook.gpu))
        devices = tuple(dict.fromkeys(row.spec.device for row in rows))
        if len(devices) != 1:
            return "this machine" if devices else ""
        target = self._outlook.target(state, devices[0])
        return target_text(target) if target else devices[0]

    def _refused(self, spec: CellSpec) -> str:
        gpu = self._outlook.gpu
        if gpu is None or spec.precision in gpu.precisions:
            return ""
        return f"{gpu.name} can do {', '.join(gpu.precisions)}, not {spec.precision}"

    @staticmethod
    def _total(found: tuple[Need, ...], rows: tuple[Row, ...], *, more: bool) -> str:
        possible = [(need, row.estimate) for need, row in zip(found, rows, strict=True) if not row.refused]
        known = [(need, estimate) for need, estimate in possible if estimate]
        if not possible or len(known) < len(possible):
            return ""
        whole = whole_time(known, more=more)
        return f"all steps {whole}" if whole else ""

    @property
    def _waiting(self) -> str:
        if not self._predicts:
            return "There is no prediction in this session's log."
        return "predictions go on after the run ..." if self._app.run_in_progress else "predicting ..."

    @staticmethod
    def _measured(state: SessionState) -> dict[CellSpec, int]:
        """The allocator's peak of the cells that have run, by what they need and how they run."""
        return {
            run_alike(cell.spec): cell.finished.peak_allocated_bytes
            for cell in state.cells.values()
            if cell.finished and cell.finished.status == "ok" and cell.finished.peak_allocated_bytes
        }

    @property
    def _has_choices(self) -> bool:
        return not self._app.replaying and self._app.shown is self._app.live

    @property
    def _predicts(self) -> bool:
        return self._has_choices and self._app.live.source is not None

    @property
    def _chosen(self) -> Cells:
        return self._app.main.chosen

    def _cells_of(self, state: SessionState) -> Cells:
        of = (id(state), len(state.cells))
        if self._session_cells[0] != of:
            self._session_cells = of, as_cells(tuple((cell.spec, cell.repeat) for cell in state.cells.values()))
        return self._session_cells[1]

    # What is asked for.

    def turn(self) -> None:
        """Show the session's cells instead of those of the choices, or back."""
        self._whose = "session" if self._whose == "chosen" else "chosen"

    def name_gpu(self, name: str | None) -> None:
        """Judge for this GPU, or for the machine's own devices. Raises `UnknownGpu`."""
        self._outlook.gpu = find_gpu(name) if name else None

    def ask(self) -> None:
        """Have predicted what is wanted, once that has stayed the same for a moment."""
        source = self._app.live.source
        if source is None or self._app.replaying:
            return
        wanted = self._wanted()
        if wanted == self._asked:
            return
        self._asked = wanted
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._app.set_timer(SETTLED_S, self._ask_now)

    def _ask_now(self) -> None:
        source, known = self._app.live.source, self._app.live.state.predictions
        if source is not None:
            source.predict([spec for spec in self._asked if needs_of(spec) not in known])

    def _wanted(self) -> tuple[CellSpec, ...]:
        """The choices' cells here and on the named GPU, then the session's."""
        chosen, of_session = self._chosen.largest, self._cells_of(self._app.live.state).largest
        everything = (*chosen, *self._outlook.asked_of(chosen), *self._outlook.asked_of(of_session), *of_session)
        return tuple({needs_of(need.spec): need.spec for need in everything}.values())
