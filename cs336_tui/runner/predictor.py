"""Predictions from a child process: kept once known, and never worked out while a cell is timed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import msgspec
import platformdirs

import cs336_tui
from cs336_tui.config.reading import UNREADABLE, read_small
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import Prediction, predicted_for, prediction_key
from cs336_tui.runner.child import PredictionAnswer
from cs336_tui.runner.launcher import Child, Launcher, StartError
from cs336_tui.runner.prediction_cache import Fingerprint, fingerprint

Capability = tuple[int, int]
"""Of a CUDA device, as (9, 0)."""

OWN_CODE_WITHIN_S = 60.0
"""How long a prediction of a user's own code may take where nobody says; one of 32 layers takes seconds."""


class PredictionError(Exception):
    """A prediction could not be made; one line says why, `why` the same without the cell's title."""

    def __init__(self, why: str, title: str = "") -> None:
        super().__init__(f"{title}: no prediction: {why}" if title else why)
        self.why = why


class TookTooLong(PredictionError):
    """It was not there in the time that it was given."""


class PredictionCache:
    """Predictions in memory and as small files, valid for one torch and one source of the workload and the rules.

    A folder that cannot be written or read only means that they are worked out again. What is predicted of a user's own
    code is kept in memory alone, for as long as its files do not change.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or platformdirs.user_cache_path("cs336-tui", appauthor=False) / "predictions"
        self._known: dict[tuple[CellSpec, Capability | None, Fingerprint], Prediction] = {}
        self._version: str | None = None

    def get(self, spec: CellSpec, capability: Capability | None = None) -> Prediction | None:
        """The prediction of a spec that needs the same, as one of this spec."""
        key = _asked(spec)
        found = self._known.get((key[0], capability, key[1]))
        if found is None and not spec.brings_own_code:
            with contextlib.suppress(*UNREADABLE):
                found = msgspec.json.decode(read_small(self._path(key[0], capability), 1 << 24), type=Prediction)
                self._known[key[0], capability, key[1]] = found
        return predicted_for(spec, found) if found else None

    def put(
        self, prediction: Prediction, capability: Capability | None = None, files: Fingerprint | None = None
    ) -> None:
        """`files` are the user's as they were when it was begun; None: as they are now."""
        key, now = _asked(prediction.spec)
        self._known[key, capability, now if files is None else files] = prediction
        if prediction.spec.brings_own_code:
            return
        path = self._path(key, capability)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(f".{threading.get_ident()}.tmp")
            draft.write_bytes(msgspec.json.encode(prediction))
            draft.replace(path)

    def _path(self, spec: CellSpec, capability: Capability | None) -> Path:
        if self._version is None:
            self._version = _version()
        asked = msgspec.json.encode((self._version, spec, capability))
        name = hashlib.sha256(asked).hexdigest()[:32]
        return self._folder / f"{name}.json"


def _asked(spec: CellSpec) -> tuple[CellSpec, Fingerprint]:
    """What a prediction is of: specs that need the same, and the user's files as they are now."""
    return prediction_key(spec), fingerprint(spec)


def _version() -> str:
    """Differs when a prediction may: another torch, another model, other rules."""
    package = Path(cs336_tui.__file__).parent
    sources = [
        *sorted(package.glob("worker/estimate/*.py")),
        *sorted(package.glob("worker/workload/**/*.py")),
        package / "events" / "reports.py",
        package / "config" / "flops.py",
    ]
    digest = hashlib.sha256(importlib.metadata.version("torch").encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


class Predictor:
    """Predicts what cells will need.

    `deliver` gets what `ask` was asked for, from a thread of this object's; `give_up` is told what cannot be predicted
    and why.

    `launcher` starts the child processes; `capability_of` a spec is that of the CUDA device that it is for;
    `own_code_within_s` tells how long one of a user's own code may take, None for `OWN_CODE_WITHIN_S`.
    Call `close` at the end.
    """

    def __init__(
        self,
        launcher: Launcher,
        deliver: Callable[[Sequence[Prediction]], object] = lambda _: None,
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
        self._wanted: dict[CellSpec, CellSpec] = {}
        """Specs that are to be predicted, by what they need."""
        self._hopeless: set[tuple[CellSpec, Fingerprint]] = set()
        self._fresh = False
        """Whether something was asked for that nobody has looked at."""
        self._holds = self._interrupts = 0
        self._child: Child | None = None
        """Of those that may be interrupted, the one that may be killed now."""
        self._busy = False
        """Whether such a child is being started, works, or is being cleared away."""
        self._stops = 0
        self._stoppable: list[Child] = []
        """Those that somebody waits for, in `predict`."""
        self._too_long: dict[tuple[CellSpec, Fingerprint], float] = {}
        """What was not worked out within so many seconds."""
        self._thread: threading.Thread | None = None
        self._closed = False

    def known(self, specs: Iterable[CellSpec]) -> tuple[Prediction, ...]:
        """The predictions of these that are known already."""
        return tuple(found for spec in specs if (found := self._known(spec)))

    def _known(self, spec: CellSpec) -> Prediction | None:
        return self._cache.get(spec, self._capability_of(spec))

    def predict(
        self,
        specs: Sequence[CellSpec],
        on_each: Callable[[Prediction], object] = lambda _: None,
        *,
        within_s: float | None = None,
    ) -> tuple[Prediction, ...]:
        """The prediction of each spec; blocks, and calls `on_each` as they become known. Raises `PredictionError`.

        `within_s` is how long a child process may take: all specs of ours have one, each of a user's own code has one,
        which has a limit in any case.
        """
        stops = self._stops
        wanted = {prediction_key(spec): spec for spec in specs}
        missing = [spec for spec in wanted.values() if self._known(spec) is None]
        for found in self.known(wanted.values()):
            on_each(found)
        if missing:
            for answer in self._answers(missing, stops=stops, within_s=within_s):
                if answer.prediction is None:
                    raise PredictionError(answer.error or "", answer.spec.title)
                on_each(answer.prediction)
        return self.known(specs)

    def ask(self, specs: Iterable[CellSpec]) -> None:
        """Have these predicted instead of what was asked before; returns at once."""
        wanted = {prediction_key(spec): spec for spec in specs}
        with self._changed:
            self._wanted, self._fresh = wanted, True
            self._interrupt()
            if self._thread is None and wanted and not self._closed:
                self._thread = threading.Thread(target=self._work, name="cs336-predict", daemon=True)
                self._thread.start()

    def hold(self) -> None:
        """Work nothing out until `go_on`; returns when nothing is being worked out."""
        with self._changed:
            self._holds += 1
            self._interrupt()
            self._changed.wait_for(lambda: not self._busy)

    def go_on(self) -> None:
        """The opposite of `hold`."""
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()

    def stop(self) -> None:
        """End what `predict` is at on other threads, which then raises `PredictionError`."""
        with self._changed:
            self._stops += 1
            for child in self._stoppable:
                child.kill()

    def close(self) -> None:
        """End the child processes and the thread. Safe to call twice."""
        self.stop()
        with self._changed:
            self._closed = True
            self._interrupt()
        if self._thread is not None:
            self._thread.join()

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._child is not None:
            self._child.kill()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._fresh or (self._wanted and not self._holds))
                if self._closed:
                    return
                wanted, fresh, self._fresh = dict(self._wanted), self._fresh, False
            try:
                if fresh and (known := self.known(wanted.values())):
                    self._deliver(known)
                self._settle(key for key, spec in wanted.items() if _asked(spec) in self._hopeless or self._known(spec))
                self._predict_wanted()
            except Exception as error:  # what is asked for later must not fare worse for it
                for key, spec in wanted.items():
                    self._abandon(spec, _asked(spec), f"{type(error).__name__}: {error}")
                    self._settle([key])

    def _settle(self, keys: Iterable[CellSpec]) -> None:
        """These are wanted no more."""
        with self._changed:
            for key in keys:
                self._wanted.pop(key, None)

    def _predict_wanted(self) -> None:
        with self._changed:
            specs, interrupts = list(self._wanted.values()), self._interrupts
            if not specs or self._holds or self._closed:
                return
        left = [(spec, _asked(spec)) for spec in specs]
        try:
            for answer in self._answers(specs):
                _, asked = left.pop(0)
                if answer.prediction is None:
                    self._abandon(answer.spec, asked, answer.error or "")
                else:
                    self._deliver([answer.prediction])
                self._settle([asked[0]])
        except PredictionError as error:
            if interrupts == self._interrupts and left:
                self._abandon(*left[0], error.why)  # the one that the child died of; the others are tried again
                self._settle([left[0][1][0]])

    def _abandon(self, spec: CellSpec, asked: tuple[CellSpec, Fingerprint], why: str) -> None:
        """For as long as the user's files are as they were when it was `asked` for."""
        self._hopeless.add(asked)
        self._give_up(spec, why)

    def _answers(
        self, specs: Sequence[CellSpec], *, stops: int | None = None, within_s: float | None = None
    ) -> Iterator[PredictionAnswer]:
        """The answer to each as it comes from a child. Raises `PredictionError` when that ends before the last.

        A child is given up at a stop after the first `stops`; None: whenever somebody asks, holds or closes. What
        brings a user's own code has a child of its own: what that does to torch must touch no other prediction.
        """
        for number, alike in itertools.groupby(
            enumerate(specs, 1), lambda each: each[0] if each[1].brings_own_code else 0
        ):
            limit_s = within_s
            if number and within_s is None:
                limit_s = self._own_code_within_s() or OWN_CODE_WITHIN_S
            yield from self._answers_of_one([spec for _, spec in alike], stops, limit_s)

    def _answers_of_one(
        self, specs: Sequence[CellSpec], stops: int | None, within_s: float | None
    ) -> Iterator[PredictionAnswer]:
        files = {spec: fingerprint(spec) for spec in specs}
        first = (prediction_key(specs[0]), files[specs[0]])
        if within_s is not None and within_s <= self._too_long.get(first, 0.0):
            raise TookTooLong(_too_long(within_s), specs[0].title)
        child = self._start_interruptible(specs) if stops is None else self._start_stoppable(specs, stops)
        answered = 0
        try:
            for payload in _told_by(child, within_s):
                answer = msgspec.json.decode(payload, type=PredictionAnswer)
                answered += 1
                if answer.prediction is not None:
                    capability = self._capability_of(answer.spec)
                    self._cache.put(answer.prediction, capability, files.get(answer.spec))
                yield answer
            if answered < len(specs):
                stopped = stops is not None and stops != self._stops
                raise PredictionError("stopped" if stopped else "the process that predicts ended early")
        except TimeoutError:
            assert within_s is not None
            if specs[0].brings_own_code:
                self._too_long[first] = within_s
            raise TookTooLong(_too_long(within_s), specs[answered].title) from None
        finally:
            if stops is None:
                self._clear_away(child)
            else:
                with self._changed:
                    self._stoppable.remove(child)
                child.close()

    def _start_stoppable(self, specs: Sequence[CellSpec], stops: int) -> Child:
        """As `_start`, for somebody who waits and may be told to `stop`."""
        child = self._start(specs)
        with self._changed:
            self._stoppable.append(child)
            if stops != self._stops:
                child.kill()
        return child

    def _start(self, specs: Sequence[CellSpec]) -> Child:
        try:
            return self._launcher.start_predictions([(spec, self._capability_of(spec)) for spec in specs])
        except StartError as error:
            raise PredictionError(str(error)) from None

    def _start_interruptible(self, specs: Sequence[CellSpec]) -> Child:
        """As `_start`, which may take seconds, while nobody who asks, holds or closes has to wait for a lock."""
        with self._changed:
            if self._holds or self._closed:
                raise PredictionError("stopped")
            self._busy, interrupts = True, self._interrupts
        child: Child | None = None
        try:
            child = self._start(specs)
        finally:
            with self._changed:
                self._child = child if interrupts == self._interrupts else None
                wanted = self._child is not None
            if not wanted:
                self._clear_away(child)
        if not wanted:
            raise PredictionError("stopped")
        return child

    def _clear_away(self, child: Child | None) -> None:
        with self._changed:
            self._child = None  # whoever interrupts from here on finds nothing to kill
        if child is not None:
            child.close()
        with self._changed:
            self._busy = False
            self._changed.notify_all()


def _told_by(child: Child, within_s: float | None) -> Iterator[bytes]:
    """What it sends, until it is gone: its pipe may be held open by what it started. Raises `TimeoutError`."""
    frames, sentinel, gone = child.frames(), child.process.sentinel, False
    end_at = None if within_s is None else time.monotonic() + within_s
    while not (gone or frames.at_end):
        ready = wait([child.events, sentinel], None if end_at is None else max(0.0, end_at - time.monotonic()))
        if not ready:
            raise TimeoutError
        gone = sentinel in ready
        while not frames.at_end and child.events.poll():
            yield from frames.read()


def _too_long(within_s: float) -> str:
    return f"not worked out within {within_s:g} s"
