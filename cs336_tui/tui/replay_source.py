"""Plays the log of a session again, on a thread of its own; talks to the app by messages only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from textual.message import Message

from cs336_tui.config.spec import CUSTOM_SIZE, CellSpec
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.variants import is_imported, short
from cs336_tui.session.load import Pace, replay
from cs336_tui.session.log import LogError
from cs336_tui.tui.live_source import Post, RunEnded, Sink, thread
from cs336_tui.tui.session import Session, read_session

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Speeds of a replay that the keys go through."""


class Replayed(Message):
    """A replay that does not wait is at its end: all that its log holds."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session


class ReplaySource:
    """Plays a session log; its pace can be changed while it plays."""

    def __init__(self, path: Path, sink: Sink, post: Post, speed: float) -> None:
        self.path, self.pace = path, Pace(speed)
        self._sink, self._post = sink, post
        self._stop = threading.Event()
        self._at_end = False

    @property
    def mode(self) -> str:
        """How the replay goes, in words."""
        if self._at_end:
            return "replay, at its end"
        return "replay paused" if self.pace.paused else f"replay ×{self.pace.speed:g}"

    def begin(self) -> None:
        thread("replay", self._play)

    def close(self) -> None:
        self._stop.set()

    def change_speed(self, by: int) -> None:
        """The next faster (1) or slower (-1) speed."""
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - self.pace.speed))
        self.pace.speed = SPEEDS[min(max(nearest + by, 0), len(SPEEDS) - 1)]

    def _play(self) -> None:
        error: str | None = None
        try:
            if self.pace.speed or self.pace.paused:
                replay(self.path, self._sink, stop=self._stop, pace=self.pace)
            else:
                session = read_session(self.path)
                error = session.problem
                self._post(Replayed(session))
        except LogError as unreadable:
            error = str(unreadable)
        self._at_end = True
        if not self._stop.is_set():
            self._post(RunEnded(error))


def sweep_of(specs: Sequence[CellSpec]) -> Sweep:
    """The choices whose product these cells are, to show what a replayed run was about."""

    def each(read: Callable[[CellSpec], Any]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(map(read, specs)))

    first = specs[0]
    alone = first.workload == "attention"
    return Sweep(
        workload=first.workload,
        head_dims=each(lambda spec: spec.d_model) if alone else Sweep().head_dims,
        causal=first.causal,
        models=each(lambda spec: spec.model),
        model_args=_arguments(specs),
        model_path=first.model_path,
        annotations=first.annotations,
        attentions=each(lambda spec: spec.attention),
        checkpoints=each(lambda spec: spec.checkpoint),
        optimizers=each(lambda spec: spec.optimizer),
        loss=first.loss,
        compiles=each(lambda spec: spec.compile),
        cuda_graphs=each(lambda spec: spec.cuda_graph),
        sizes=Sweep().sizes if alone else each(lambda spec: spec.size),
        dims=first.dims if first.size == CUSTOM_SIZE else None,
        vocab_size=Sweep().vocab_size if alone else first.vocab_size,
        contexts=each(lambda spec: spec.context_length),
        batches=each(lambda spec: spec.batch_size),
        passes=each(lambda spec: spec.pass_),
        precisions=each(lambda spec: spec.precision),
        devices=each(lambda spec: spec.device),
        warmups=(first.warmup_steps,) if first.warmup_auto else each(lambda spec: spec.warmup_steps),
        warmup_auto=first.warmup_auto,
        steps=first.measure_steps,
        steps_auto=first.steps_auto,
        edition=first.edition,
        arch=first.arch,
        sync=first.sync,
        seed=first.seed,
        threads=first.threads,
    )


def _arguments(specs: Sequence[CellSpec]) -> tuple[tuple[str, str], ...]:
    """The arguments of a person's own models; where these were given different ones, each for its model alone."""
    given = dict.fromkeys((spec.model, spec.model_args) for spec in specs if is_imported(spec.model))
    if len({arguments for _, arguments in given}) <= 1:
        return next((arguments for _, arguments in given), ())
    return tuple((f"{short(model)}.{name}", value) for model, arguments in given for name, value in arguments)
