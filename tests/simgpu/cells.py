"""Cells of `bench` on simulated GPUs, beside the simulation's own record of what ran when (`SIMGPU_TRUTH`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TINY_MODEL = "--d-model 64 --d-ff 128 --num-layers 2 --num-heads 2 --vocab-size 128 --batch 2 --context 16".split()
"""A model whose launches take the host a few milliseconds."""
TINY = [*TINY_MODEL, *"--warmup 1 --steps 3 --order as-given".split()]
"""Cells of it; later words count."""
PATIENCE_S = 300


class Work(NamedTuple):
    """A kernel, copy or fill of a simulated device; its launch ended at `launched_ns` on the host."""

    device: int
    stream: int
    launched_ns: int
    begin_ns: int
    end_ns: int
    name: str

    @property
    def ns(self) -> int:
        return self.end_ns - self.begin_ns


def covered_ns(work: Iterable[Work]) -> int:
    """The time in which any of it ran."""
    total = reached = 0
    for each in sorted(work, key=lambda each: each.begin_ns):
        total += max(0, each.end_ns - max(each.begin_ns, reached))
        reached = max(reached, each.end_ns)
    return total


class Window(NamedTuple):
    """What a process launched between two waits for the whole device. The first of them returned at `after_ns`; the
    second began at `began_ns` and returned at `returned_ns`, which is not known of a process's last. `within` are the
    waits for a stream or an event between: how much was launched before, and when each returned. `events_ns` are the
    moments at which the host recorded an event."""

    work: tuple[Work, ...]
    after_ns: int
    began_ns: int
    returned_ns: int | None
    within: tuple[tuple[int, int], ...] = ()
    events_ns: tuple[int, ...] = ()


class Bench(NamedTuple):
    """The runs of a bench as its JSON has them, the events of its log, and what each cell's process did."""

    runs: Sequence[dict[str, Any]]
    events: Sequence[dict[str, Any]]
    windows: dict[int, list[Window]]


def command(folder: Path, *words: str, **knobs: object) -> subprocess.CompletedProcess[str]:
    """Run a command of ours where the simulation has these knobs, and its board and truth lie in the folder."""
    own = {"BOARD": folder / "board", "TRUTH": folder / "truth"} | knobs
    variables = os.environ | {f"SIMGPU_{name}": str(value) for name, value in own.items()}
    begin = [sys.executable, "-m", "cs336_tui", *words]
    return subprocess.run(begin, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def bench(folder: Path, *words: str, **knobs: object) -> Bench:
    """Run `bench`, all of whose cells must end well. Tokens stay the same and nothing is checked, so that
    windows are those of steps alone."""
    flags = [
        "--inputs",
        "fixed",
        "--check",
        "off",
        "--device",
        "cuda:0",
        "--session-dir",
        str(folder / "sessions"),
        "--format",
        "json",
        "--timeout",
        "120",
    ]
    done = command(folder, "bench", *flags, *words, **knobs)
    assert done.returncode == 0, done.stderr[-4000:]
    events = _events(folder)
    cells = {event["pid"]: event["cell"] for event in events if event["type"] == "CellStarted"}
    windows = {cells[pid]: found for pid, found in truth(folder / "truth").items() if pid in cells}
    return Bench(json.loads(done.stdout)["runs"], events, windows)


def _events(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "sessions").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


FEW = 20
"""Pieces of work: a step has more, a barrier less."""


class Profiled(NamedTuple):
    """A kernel report and, of each rank that made it, the window of the profiled step."""

    report: dict[str, Any]
    steps: list[Window]


def profile(folder: Path, *words: str, **knobs: object) -> list[Profiled]:
    """Run `kernels`. Reports are made one after another, each in as many new processes as it has ranks."""
    done = command(folder, "kernels", "--session-dir", str(folder / "sessions"), *words, **knobs)
    assert done.returncode == 0, done.stderr[-4000:]
    reports = [event["content"] for event in _events(folder) if event["type"] == "ReportFinished"]
    found = ([each for each in windows if len(each.work) > FEW] for windows in truth(folder / "truth").values())
    steps = iter([windows[-1] for windows in found if windows])  # the process that asks for devices runs no step
    by_rank = [sorted((next(steps) for _ in range(each["spec"]["ranks"])), key=_device) for each in reports]
    return [*map(Profiled, reports, by_rank)]


def _device(window: Window) -> int:
    return window.work[0].device


def truth(path: Path) -> dict[int, list[Window]]:
    """The windows of each process, in order."""
    processes = defaultdict(list)
    for line in path.read_text().splitlines():
        words = line.split(" ", 7)
        processes[int(words[1])].append(words)
    return {pid: list(_windows(lines)) for pid, lines in processes.items()}


def _windows(lines: Sequence[list[str]]) -> Iterator[Window]:
    work: list[Work] = []
    within: list[tuple[int, int]] = []
    events_ns: list[int] = []
    whole: Window | None = None
    after_ns = waited = 0
    for kind, _, *rest in lines:
        if kind == "work":
            work.append(Work(*map(int, rest[:5]), rest[5]))
            continue
        if kind == "event":
            events_ns.append(int(rest[0]))
            continue
        began_ns, returned_before_ns, what = int(rest[0]), int(rest[1]), rest[2]
        if whole:
            yield whole._replace(returned_ns=returned_before_ns)
            after_ns, whole = returned_before_ns, None
        elif returned_before_ns > after_ns:
            within.append((waited, returned_before_ns))
        waited = len(work)
        if what == "device":
            whole = Window(tuple(work), after_ns, began_ns, None, tuple(within), tuple(events_ns))
            work, within, events_ns, waited = [], [], [], 0
    if whole:
        yield whole
