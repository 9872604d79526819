"""Records the predictions of a session's cells in its log, and passes others on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsPredicted, Notice
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.prediction_cache import Capability
from cs336_tui.runner.predictor import PredictionError, Predictor, TookTooLong
from cs336_tui.session.log import SessionRecorder
from cs336_tui.session.state import SessionState

AFTERWARDS_WITHIN_S = 20.0
"""Limit of a prediction of a cell that has run, seconds."""


class SessionPredictions:
    """Gives `recorder` the predictions of a `Predictor`, whose arguments the others are."""

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
        """The session's cells, by `prediction_key`; only their predictions go into its log."""
        self._told: set[CellSpec] = set()  # those of them whose predictions are there
        self._failed: dict[CellSpec, str] = {}  # reasons of failed predictions, by `prediction_key`
        self._said: set[str] = set()  # reasons that notices have told

    def add(self, specs: Iterable[CellSpec]) -> None:
        """Add cells to the session; known predictions of them are told."""
        new = set(map(prediction_key, specs)) - self._cells
        self._cells |= new
        for key in new & self._failed.keys():
            self._recorder.record([CellsPredicted(at=time.time(), failed=(key,), why=self._failed[key])])
        self.tell(self.predictor.known(list(self._cells - self._told)))

    def restore(self, state: SessionState) -> None:
        """Go on with a session that has cells and predictions."""
        self._cells = {prediction_key(cell.spec) for cell in state.cells.values()}
        self._told = set(state.predictions)

    def tell(self, predictions: Sequence[Prediction], elsewhere: Capability | None = None) -> None:
        """Record the predictions of the session's cells; pass on others, and those for a GPU `elsewhere`."""
        if elsewhere is not None:
            there = CellsPredicted(at=time.time(), predictions=tuple(predictions), elsewhere=elsewhere)
            self._recorder.pass_on([there])
            return
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
        """Predict these and tell it; returns when all is known that can be, or nothing is `wanted` any more. A large
        model takes some seconds, a user's own code as long as a cell; `say` is given each title."""
        for spec in _each_need(specs):
            if not wanted():
                return
            say(f"predicting {spec.title}")
            try:
                self.tell(self.predictor.predict([spec]))
            except TookTooLong as error:
                self.give_up(spec, error.why)
            except PredictionError:
                pass  # the cell tells its error when it runs

    def work_out_afterwards(self, specs: Iterable[CellSpec]) -> None:
        """Predict cells that have run, in `AFTERWARDS_WITHIN_S` each; gives up code that took too long once."""
        too_long: dict[tuple[str, ...], str] = {}
        for spec in _each_need(specs):
            code = spec.own_code
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
        """Record or pass on that this cannot be predicted."""
        now, is_own = time.time(), prediction_key(spec) in self._cells
        self._failed[prediction_key(spec)] = why
        tell = self._recorder.record if is_own else self._recorder.pass_on
        tell([CellsPredicted(at=now, failed=(spec,), why=why)])
        if is_own and why not in self._said:  # others may be half typed choices
            self._said.add(why)
            text = f"{spec.title}: memory could not be predicted: {why}"
            self._recorder.pass_on([Notice(at=now, text=text)])


def _each_need(specs: Iterable[CellSpec]) -> tuple[CellSpec, ...]:
    """One of all specs that need the same."""
    return tuple({prediction_key(spec): spec for spec in specs}.values())
