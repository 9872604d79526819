"""Predictions in the course of a session: those of its cells go into its log, others are for the eye only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsPredicted, Notice
from cs336_tui.events.reports import Prediction, prediction_key
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.prediction_cache import Capability
from cs336_tui.runner.predictor import PredictionError, Predictor, TookTooLong
from cs336_tui.session.recorder import SessionRecorder
from cs336_tui.session.state import SessionState

AFTERWARDS_WITHIN_S = 20.0
"""How long it may take to work out what a cell needed that has run."""


class SessionPredictions:
    """Tells `recorder` what cells will need. `capability_of` a spec is that of the CUDA device that it is for."""

    def __init__(
        self,
        launcher: Launcher,
        recorder: SessionRecorder,
        capability_of: Callable[[CellSpec], Capability | None],
        own_code_within_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self.predictor = Predictor(
            launcher, self.tell, self.give_up, capability_of=capability_of, own_code_within_s=own_code_within_s
        )
        self._cells: set[CellSpec] = set()
        """What the session's cells need, by `prediction_key`; only their predictions go into its log."""
        self._said: set[str] = set()
        """Why predictions of the session's cells failed, as far as it was told."""
        self._told: set[CellSpec] = set()
        """Of those, the ones whose predictions are there."""
        self._failed: dict[CellSpec, str] = {}
        """For what predictions failed and why, by `prediction_key`."""

    def add(self, specs: Iterable[CellSpec]) -> None:
        """These are the session's from now on; what is known of them is told."""
        new = set(map(prediction_key, specs)) - self._cells
        self._cells |= new
        for key in new & self._failed.keys():
            self._recorder.record([CellsPredicted(at=time.time(), failed=(key,), why=self._failed[key])])
        self.tell(self.predictor.known(list(self._cells - self._told)))

    def restore(self, state: SessionState) -> None:
        """Go on with a session that has cells and predictions."""
        self._cells = {prediction_key(cell.spec) for cell in state.cells.values()}
        self._told = set(state.predictions)

    def tell(self, predictions: Sequence[Prediction]) -> None:
        """These are known now."""
        own = [found for found in predictions if prediction_key(found.spec) in self._cells]
        others = [found for found in predictions if prediction_key(found.spec) not in self._cells]
        self._told |= {prediction_key(found.spec) for found in own}
        for found in predictions:
            self._failed.pop(prediction_key(found.spec), None)
        for tell, told in ((self._recorder.record, own), (self._recorder.pass_on, others)):
            if told:
                tell([CellsPredicted(at=time.time(), predictions=tuple(told))])

    def work_out(
        self, specs: Iterable[CellSpec], wanted: Callable[[], bool], say: Callable[[str], object] = lambda _: None
    ) -> None:
        """Work out what these need and tell it; returns when all is known that can be, or nothing is `wanted` any more.

        For some seconds a large model; `say` is told which. One of a user's own code may take as long as a cell, and
        what took too long is told.
        """
        for spec in _each_need(specs):
            if not wanted():
                return
            say(f"predicting {spec.title}")
            try:
                self.tell(self.predictor.predict([spec]))
            except TookTooLong as error:
                self.give_up(spec, error.why)
            except PredictionError:
                pass  # what is wrong with the cell it says itself when it runs

    def work_out_afterwards(self, specs: Iterable[CellSpec]) -> None:
        """Work out what cells that have run needed; returns when all is known or given up, after `AFTERWARDS_WITHIN_S`
        at most for each.

        Why one was given up is told, and after one that took too long others of the same code are, too.
        """
        too_long: dict[tuple[str, ...], str] = {}
        for spec in _each_need(specs):
            code = (spec.model, spec.attention, spec.optimizer, spec.loss)
            if code in too_long:
                self.give_up(spec, too_long[code])
                continue
            try:
                self.tell(self.predictor.predict([spec], within_s=AFTERWARDS_WITHIN_S))
            except PredictionError as error:
                self.give_up(spec, error.why)
                if isinstance(error, TookTooLong):
                    too_long[code] = f"not tried, as {spec.title} was {error.why}"

    def give_up(self, spec: CellSpec, why: str) -> None:
        """What this needs will not be known."""
        now, is_own = time.time(), prediction_key(spec) in self._cells
        self._failed[prediction_key(spec)] = why
        tell = self._recorder.record if is_own else self._recorder.pass_on
        tell([CellsPredicted(at=now, failed=(spec,), why=why)])
        if is_own and why not in self._said:  # others are choices, perhaps half typed
            self._said.add(why)
            text = f"{spec.title}: what it needs could not be predicted: {why}"
            self._recorder.pass_on([Notice(at=now, text=text)])


def _each_need(specs: Iterable[CellSpec]) -> tuple[CellSpec, ...]:
    """One of all that need the same."""
    return tuple({prediction_key(spec): spec for spec in specs}.values())
