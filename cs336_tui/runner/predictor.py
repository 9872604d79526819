"""Predicts what cells will need in child processes: one queue of jobs, worked off by one thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import msgspec

from cs336_tui.config.axis import UserError
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsPredicted, Notice
from cs336_tui.events.prediction import Prediction, prediction_key
from cs336_tui.runner.child import Answer, predictions
from cs336_tui.runner.launcher import Child, Launcher, StartError
from cs336_tui.runner.prediction_cache import Capability, Fingerprint, PredictionCache, fingerprint
from cs336_tui.session.log import SessionRecorder
from cs336_tui.session.state import SessionState

OWN_CODE_WITHIN_S = 60.0
"""Default limit of a prediction of a user's own code, seconds; one of 32 layers takes seconds."""
_START_WITHIN_S = 60.0
"""Least limit of the start of a process that predicts, whose server may be importing torch, if there is any limit."""


def _each_need(specs: Iterable[CellSpec]) -> tuple[CellSpec, ...]:
    """One of all specs that need the same."""
    return tuple({prediction_key(spec): spec for spec in specs}.values())


class PredictionError(UserError):
    """A prediction could not be made. The message is one line; `why` is the same without the cell's title."""

    exit_code = 1

    def __init__(self, why: str, title: str = "") -> None:
        super().__init__(f"{title}: no prediction: {why}" if title else why)
        self.why = why


class Stopped(PredictionError):
    """The caller or another thread wants no prediction any more."""


class TookTooLong(PredictionError):
    """A prediction was not there in its time."""

    def __init__(self, limit_s: float, title: str) -> None:
        super().__init__(f"not computed within {limit_s:g} s", title)


@dataclass(eq=False)
class _Job:
    """One prediction to be made. `answers` is where a caller of `predict` waits for it; None: it was asked for.
    `within_s` limits its time. `files` are the user's when the job was begun. `elsewhere`: the compute capability of a
    GPU that need not be here; None: it is for the device that the spec names."""

    spec: CellSpec
    answers: SimpleQueue[tuple[CellSpec, Prediction | PredictionError]] | None = None
    within_s: float | None = None
    files: Fingerprint = ()
    elsewhere: Capability | None = None

    @property
    def key(self) -> tuple[CellSpec, Fingerprint]:
        return prediction_key(self.spec), self.files


class Predictor:
    """Predicts what cells will need. Jobs that a caller waits for (`predict`) come first and are never held back. Those
    that were asked for (`ask`) pause while somebody holds; their results go to `deliver`, with the compute capability
    of a GPU elsewhere, or the reason to `give_up`, on a thread of its own. `capability_of` a spec is that of its CUDA
    device; `own_code_within_s` limits a prediction of a user's own code, None for `OWN_CODE_WITHIN_S`. Call `close` at
    the end."""

    def __init__(
        self,
        launcher: Launcher,
        deliver: Callable[[Sequence[Prediction], Capability | None], object] = lambda _found, _elsewhere: None,
        give_up: Callable[[CellSpec, str], object] = lambda _spec, _why: None,
        *,
        cache: PredictionCache | None = None,
        capability_of: Callable[[CellSpec], Capability | None] = lambda _: None,
        own_code_within_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._launcher, self._deliver, self._give_up = launcher, deliver, give_up
        self._capability_of, self._own_code_within_s = capability_of, own_code_within_s
        self._cache = cache or PredictionCache()
        self._changed = threading.Condition()
        self._awaited: list[_Job] = []
        self._asked: list[_Job] = []
        self._new: list[_Job] = []  # jobs just asked for: those that are known are delivered at once, even while held
        self._holds = 0
        self._running: list[_Job] = []
        """The jobs of the child process that is being started, works or is being cleared away."""
        self._interrupted = False  # True if that child is to end; its unanswered jobs stay in the queue
        self._child: Child | None = None  # that child while it may be killed
        self._hopeless: set[tuple[CellSpec, Fingerprint]] = set()
        self._too_long: dict[tuple[CellSpec, Fingerprint], float] = {}
        """Seconds within which a prediction of a user's own code was not made."""
        self._thread: threading.Thread | None = None
        self._closed = False

    def known(self, specs: Iterable[CellSpec]) -> tuple[Prediction, ...]:
        """The predictions of these that are known already."""
        return tuple(found for spec in specs if (found := self._known(spec)))

    def _known(self, spec: CellSpec, elsewhere: Capability | None = None) -> Prediction | None:
        return self._cache.get(spec, elsewhere or self._capability_of(spec))

    def predict(
        self,
        specs: Sequence[CellSpec],
        on_each: Callable[[Prediction], object] = lambda _: None,
        *,
        within_s: float | None = None,
        give_up: Callable[[CellSpec, PredictionError], object] | None = None,
    ) -> tuple[Prediction, ...]:
        """The prediction of each spec; blocks, and calls `on_each` with each. The first that fails raises
        `PredictionError`; with `give_up`, which is told its spec and why, the others go on and are returned. `within_s`
        limits each prediction, in seconds; one of a user's own code is always limited."""
        wanted = _each_need(specs)
        answers: SimpleQueue[tuple[CellSpec, Prediction | PredictionError]] = SimpleQueue()
        jobs = [_Job(spec, answers, within_s) for spec in wanted if self._known(spec) is None]
        for found in self.known(wanted):
            on_each(found)
        if jobs:
            with self._changed:
                if self._closed:
                    raise Stopped("stopped")
                self._awaited += jobs
                self._interrupt(awaited=False)
                self._wake()
            try:
                for _ in jobs:
                    spec, answer = answers.get()
                    if not isinstance(answer, PredictionError):
                        on_each(answer)
                    elif give_up is None or isinstance(answer, Stopped):
                        raise answer
                    else:
                        give_up(spec, answer)
            finally:
                self._forget(jobs)
        return self.known(specs)

    def ask(
        self, specs: Iterable[CellSpec], elsewhere: Iterable[CellSpec] = (), capability: Capability | None = None
    ) -> None:
        """Have these predicted instead of what was asked before, first those for a GPU `elsewhere` of this compute
        capability; returns at once."""
        with self._changed:
            there = [_Job(spec, elsewhere=capability) for spec in _each_need(elsewhere)]
            self._asked = [*there, *map(_Job, _each_need(specs))]
            self._new = list(self._asked)
            self._interrupt(awaited=False)
            self._wake()

    def hold(self) -> None:
        """Work off nothing that was asked for until `go_on`; returns when nothing of it is being worked off."""
        with self._changed:
            self._holds += 1
            self._interrupt(awaited=False)
            self._changed.wait_for(lambda: not self._are_asked)

    def go_on(self) -> None:
        """The opposite of `hold`."""
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """End what `predict` is at on other threads, which then raises `PredictionError`."""
        with self._changed:
            stopped, self._awaited = self._awaited, []
            self._interrupt(awaited=True)
        for job in stopped:
            self._tell(job, Stopped("stopped"))

    def close(self) -> None:
        """End the child process and the thread. Safe to call twice."""
        with self._changed:
            self._closed = True
            self._interrupt(awaited=False)
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        if self._thread is None and (self._awaited or self._asked) and not self._closed:
            self._thread = threading.Thread(target=self._work, name="cs336-predict", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    @property
    def _are_asked(self) -> bool:
        """True if the jobs of the child process were asked for, and nobody waits for them."""
        return any(job.answers is None for job in self._running)

    def _interrupt(self, *, awaited: bool) -> None:
        """End the child process if its jobs are of this sort."""
        if self._running and self._are_asked != awaited:
            self._interrupted = True
            if self._child is not None:
                self._child.kill()
        self._changed.notify_all()

    def _forget(self, jobs: Sequence[_Job]) -> None:
        """Take these out of the queue; returns when none of them is being worked off."""
        with self._changed:
            unanswered = [job for job in jobs if job in self._awaited]
            self._awaited = [job for job in self._awaited if job not in unanswered]
            if any(job in self._running for job in unanswered):
                self._interrupt(awaited=True)
            self._changed.wait_for(lambda: not any(job in self._running for job in jobs))

    def _next(self) -> list[_Job]:
        """The jobs of one child, awaited ones first. A user's own code has one of its own: it may change torch."""
        queue = self._awaited or ([] if self._holds else self._asked)
        if queue and queue[0].spec.brings_own_code:
            return queue[:1]
        alike = itertools.takewhile(lambda job: job.answers is queue[0].answers and not job.spec.brings_own_code, queue)
        return list(alike)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._new or self._next())
                if self._closed:
                    return
                new, self._new = self._new, []
                jobs = self._running = [] if new else self._next()
                self._interrupted = False
            try:
                known: dict[Capability | None, list[Prediction]] = {}
                for job in new:
                    if found := self._known(job.spec, job.elsewhere):
                        known.setdefault(job.elsewhere, []).append(found)
                for elsewhere, told in known.items():
                    self._deliver(told, elsewhere)
                self._work_off(jobs)
            except Exception as error:  # what is asked for later must not fare worse for it
                for job in [*new, *jobs]:
                    with suppress(Exception):
                        self._settle(job, PredictionError(f"{type(error).__name__}: {error}"))
            with self._changed:
                self._running = []
                self._changed.notify_all()

    def _work_off(self, jobs: Sequence[_Job]) -> None:
        """Predict in one child process. If it dies, the job that it was at fails; the later ones stay in the queue."""
        left: list[_Job] = []
        for job in jobs:
            job.files = fingerprint(job.spec)
            if job.answers or not (job.key in self._hopeless or self._known(job.spec, job.elsewhere)):
                left.append(job)
            else:
                self._remove(job)
        if not left:
            return
        unanswered = iter(left)
        try:
            with closing(self._answers(left)) as answers:
                for answer in answers:
                    job = next(unanswered)
                    self._settle(job, answer.found or PredictionError(answer.error or "", job.spec.title))
        except PredictionError as error:
            if not self._interrupted and (died_of := next(unanswered, None)):
                self._settle(died_of, error)

    def _settle(self, job: _Job, found: Prediction | PredictionError) -> None:
        """Take a job out of the queue and tell its result, unless that was done."""
        if self._remove(job):
            self._tell(job, found)

    def _remove(self, job: _Job) -> bool:
        """Take a job out of the queue; False if it was in none."""
        with self._changed:
            for queue in (self._awaited, self._asked):
                if job in queue:
                    queue.remove(job)
                    return True
        return False

    def _tell(self, job: _Job, found: Prediction | PredictionError) -> None:
        if job.answers is not None:
            job.answers.put((job.spec, found))
        elif isinstance(found, Prediction):
            self._deliver([found], job.elsewhere)
        else:
            self._hopeless.add(job.key)  # for as long as the user's files are as they were
            self._give_up(job.spec, found.why)

    def _answers(self, jobs: Sequence[_Job]) -> Generator[Answer[Prediction], None, None]:
        """The answer to each as it comes from a child. Raises `PredictionError` when that ends before the last."""
        first, limit_s = jobs[0], jobs[0].within_s
        if first.spec.brings_own_code and limit_s is None:
            limit_s = self._own_code_within_s() or OWN_CODE_WITHIN_S
        if limit_s is not None and limit_s <= self._too_long.get(first.key, 0.0):
            raise TookTooLong(limit_s, first.spec.title)
        try:
            asked = tuple((job.spec, job.elsewhere or self._capability_of(job.spec)) for job in jobs)
            specs = [spec for spec, _ in asked]
            child = self._launcher.start_answers("predictions", partial(predictions, asked), specs)
        except StartError as error:
            raise PredictionError(str(error)) from None
        answered = 0
        try:
            with self._changed:  # nobody waits for this lock while a process is slow to start
                self._child = child
                if self._interrupted:
                    child.kill()
            first_s = None if limit_s is None else max(limit_s, _START_WITHIN_S)
            for payload in child.messages(limit_s, first_within_s=first_s):
                answer = msgspec.json.decode(payload, type=Answer[Prediction])
                if answer == Answer():
                    continue
                if answer.found is not None:
                    self._cache.put(answer.found, asked[answered][1], jobs[answered].files)
                answered += 1
                yield answer
            if answered < len(jobs):
                raise PredictionError("the process that predicts ended early")
        except TimeoutError:
            assert limit_s is not None
            if first.spec.brings_own_code:
                self._too_long[first.key] = limit_s
            raise TookTooLong(limit_s, jobs[answered].spec.title) from None
        finally:
            with self._changed:
                self._child = None  # whoever interrupts from here on finds nothing to kill
            child.close()


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
        by_key = {prediction_key(found.spec): found for found in predictions}
        own = by_key.keys() & self._cells
        self._told |= own
        for key in by_key:
            self._failed.pop(key, None)
        for tell, keys in ((self._recorder.record, own), (self._recorder.pass_on, by_key.keys() - own)):
            if told := tuple(found for key, found in by_key.items() if key in keys):
                tell([CellsPredicted(at=time.time(), predictions=told)])

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


def predictions_of(
    predictor: Predictor,
    specs: Sequence[CellSpec],
    until: float | None = None,
    on_each: Callable[[object], object] = lambda _: None,
) -> dict[CellSpec, Prediction]:
    """The predictions of those of these specs that can be predicted, `until` then by `time.monotonic`; `on_each` is
    called for each that was tried."""
    failed: set[CellSpec] = set()

    def give_up(spec: CellSpec, _why: PredictionError) -> None:
        failed.add(prediction_key(spec))
        on_each(spec)

    predictions: list[Prediction] = []
    if until is None:
        predictions += predictor.predict(specs, on_each, give_up=give_up) if specs else ()
    else:
        for spec in specs:
            left_s = until - time.monotonic()
            if left_s > 0 and prediction_key(spec) not in failed:
                predictions += predictor.predict([spec], on_each, within_s=left_s, give_up=give_up)
    return {each.spec: each for each in predictions}
