"""The accounts of a cell's measured window: where its time went, which threads worked, and whether the clocks are those
that the timer began with. Loaded before a user's code, so that it compares with what was there first."""

from __future__ import annotations

import threading
import time as clocks  # the module as a user's code may have changed it
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import median
from time import perf_counter, process_time, sleep
from types import FunctionType
from typing import NamedTuple

import torch
import torch.nn.functional as F

from cs336_tui.events.audit import AFTER_S, Books
from cs336_tui.worker.measure import timing
from cs336_tui.worker.measure.process import threads_ran_ns
from cs336_tui.worker.measure.reporter import CellReporter
from cs336_tui.worker.measure.timing import EventStamp, HostStamp, StepTimer
from cs336_tui.worker.workload.compile_and_capture import CapturedStep
from cs336_tui.worker.workload.passes import Step

_PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "softmax")
_METHODS = FunctionType | property


class _Bound(NamedTuple):
    name: str
    read: Callable[[], object]
    first: object


def _bound() -> Iterator[_Bound]:
    """The functions that a time rests on, and those that cell and reference share, as they are now."""
    kinds = (kind for kind in vars(torch.nn).values() if isinstance(kind, type) and issubclass(kind, torch.nn.Module))
    owners: list[tuple[str, object, Iterable[str]]] = [
        ("time", clocks, ("perf_counter", "perf_counter_ns", "time", "time_ns", "monotonic", "process_time", "sleep")),
        ("torch.cuda", torch.cuda, ("synchronize", "current_stream", "Event")),
        ("torch.cuda.Event", torch.cuda.Event, ("record", "elapsed_time", "synchronize", "query", "wait")),
        ("torch.mps", torch.mps, ("synchronize", "Event")),
        ("torch", torch, ("randint", *_PRODUCTS)),
        ("torch.Tensor", torch.Tensor, ("__matmul__", "__add__", "__mul__", "__truediv__")),
        ("torch.autograd", torch.autograd, ("grad", "backward")),
        ("torch.nn.Module", torch.nn.Module, ("__call__", "zero_grad", "parameters", "named_parameters")),
        ("torch.Tensor", torch.Tensor, [name for name in dir(torch.Tensor) if name[:1] != "_"]),
        ("torch.nn.functional", F, [name for name, value in vars(F).items() if callable(value)]),
        *((f"torch.nn.{kind.__name__}", kind, ("forward",)) for kind in kinds),
        ("the timer's", timing, [name for name, value in vars(timing).items() if callable(value) and name[:2] != "__"]),
        *(
            (kind.__name__, kind, [name for name, value in vars(kind).items() if isinstance(value, _METHODS)])
            for kind in (StepTimer, HostStamp, EventStamp, Step, CapturedStep, CellReporter)
        ),
    ]
    for owner, holder, attributes in owners:
        for attribute in attributes:
            read = partial(getattr, holder, attribute, None)
            yield _Bound(f"{owner}.{attribute}".replace("'s.", "'s "), read, read())


_BOUND = tuple(_bound())


def replaced() -> tuple[str, ...]:
    """The functions that are others now than when this module was loaded."""
    return tuple(bound.name for bound in _BOUND if bound.read() is not bound.first)


class Bookkeeper:
    """Keeps the accounts of one window; made when it begins. `tools_threads` are not the workload's."""

    def __init__(self, tools_threads: frozenset[threading.Thread]) -> None:
        self._tools_threads = tools_threads
        self._processor_s, self._ran_ns = process_time(), threads_ran_ns()
        self._began = perf_counter()

    def close(self, times_s: list[float], between_s: list[float], *, prepares: bool = False) -> Books:
        """The accounts at the end of the window: of its steps and what lay between them. With `prepares` work that is
        not timed belongs between two steps."""
        window_s = perf_counter() - self._began
        processor_s, ran_ns = process_time() - self._processor_s, threads_ran_ns()
        alive_s = sum(ns - self._ran_ns.get(task, 0) for task, ns in ran_ns.items()) / 1e9
        # Threads that ended are in the process's time and in no thread's.
        ended_s = max(processor_s - alive_s, 0.0) if ran_ns and self._ran_ns else 0.0
        python_s = self._python_s(ran_ns, self._ran_ns)
        steps_s = sum(times_s)
        known_s = max(window_s - steps_s - sum(between_s), 0.0) if between_s or prepares else 0.0
        return Books(
            window_s=window_s,
            steps_s=steps_s,
            known_s=known_s,
            between_s=median(between_s) if between_s else 0.0,
            step_s=median(times_s) if times_s else 0.0,
            threads_s=ended_s + python_s,
            after_s=self._after_s(),
            replaced=replaced(),
        )

    def _python_s(self, after: dict[str, int], before: dict[str, int]) -> float:
        """Processor time between two looks of the Python threads that the workload started."""
        threads = (thread for thread in threading.enumerate() if thread not in self._tools_threads)
        own = {str(thread.native_id) for thread in threads if not isinstance(thread, threading._DummyThread)}
        return sum(ns - before.get(task, 0) for task, ns in after.items() if task in own) / 1e9

    def _after_s(self) -> float:
        """The same while this thread sleeps. A library's threads may spin for long before they do."""
        before = threads_ran_ns()
        sleep(AFTER_S)
        return self._python_s(threads_ran_ns(), before)
