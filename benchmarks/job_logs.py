"""Counts results in the logs of a session of killed jobs and lanes, by their JSON lines alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
Step = tuple[str, int, float]
"""Kind, number and time of a step."""


@dataclass
class Attempt:
    """A start of a cell and what followed."""

    pid: int | None
    steps: list[Step] = field(default_factory=list)
    end: str | None = None
    """Its status, if it is a result: no cancellation, and no end that stands for that of its job."""

    def gaps(self, warmup: int, steps: int) -> str:
        """One line on steps that are lost or not its own; empty if there are none."""
        wanted = [("warm-up", number) for number in range(warmup)] + [("measured", number) for number in range(steps)]
        found = [(kind, number) for kind, number, _ in self.steps]
        if self.end == "ok":
            return "" if found == wanted else f"{len(found)} steps of {len(wanted)}, or out of order"
        return "" if found == wanted[: len(found)] else "steps are lost or out of order"


def lines_of(log: Path) -> Iterator[Line]:
    """The whole lines of a log; one that a kill has torn is passed over."""
    data = log.read_bytes() if log.exists() else b""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def queued_in(log: Path) -> int:
    """The number of cells of a session."""
    return sum(len(line["specs"]) for line in lines_of(log) if line["type"] == "CellsQueued")


def attempts_in(log: Path) -> Mapping[int, list[Attempt]]:
    """All attempts at each cell. An end without a start is an attempt too, if it is a result."""
    found: dict[int, list[Attempt]] = {}
    for line in lines_of(log):
        if (cell := line.get("cell")) is None:
            continue
        of_cell = found.setdefault(cell, [])
        if line["type"] == "CellStarted":
            of_cell.append(Attempt(line.get("pid")))
        elif line["type"] == "StepsTimed":
            numbered = enumerate(line["times_s"], line["first"])
            of_cell[-1].steps += [(line["kind"], number, time_s) for number, time_s in numbered]
        elif line["type"] == "CellFinished" and line["status"] != "cancelled" and not line.get("job_over"):
            if not of_cell or of_cell[-1].end is not None:
                of_cell.append(Attempt(None))
            of_cell[-1].end = line["status"]
    return found


@dataclass
class Account:
    """Results of the cells of a session."""

    cells: int = 0
    results: int = 0
    """Cells with one good result, whose steps are whole."""
    twice: int = 0
    """Cells with more than one good result, or begun anew though they had one."""
    again: int = 0
    """Cells that two jobs have run to their end; the session has the result of one."""
    lost: int = 0
    """Cells without a result, or with one whose steps are not whole or not those of the process that made it."""
    why: list[str] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """Cells without a result."""
    not_ok: list[int] = field(default_factory=list)
    """Cells that failed or were killed."""


def account_of(log: Path, warmup: int, steps: int) -> Account:
    """The account of a session with this log and those of its jobs beside it."""
    account = Account(cells=queued_in(log))
    found = attempts_in(log)
    of_jobs = [attempts_in(path) for path in sorted(log.with_suffix(".jobs").glob("*.jsonl"))]
    for cell in range(account.cells):
        attempts = found.get(cell, [])
        last = attempts[-1] if attempts else Attempt(None)
        good = [number for number, attempt in enumerate(attempts) if attempt.end == "ok"]
        told = [attempt for job in of_jobs for attempt in job.get(cell, [])]
        problems = [
            f"attempt {number + 1}: {gap}" for number, each in enumerate(attempts) if (gap := each.gaps(warmup, steps))
        ]
        if of_jobs and last.pid and [each.steps for each in told if each.pid == last.pid][-1:] != [last.steps]:
            problems.append("its steps are not those of its job's log")
        by_jobs = sum(attempt.end == "ok" for attempt in told)
        if last.end is None:
            account.left.append(cell)
        elif last.end != "ok":
            account.not_ok.append(cell)
        if len(good) > 1 or (good and good[0] < len(attempts) - 1):
            account.twice += 1
            account.why.append(f"cell {cell}: {Counter(each.end for each in attempts)}")
        account.again += by_jobs > 1
        if last.end != "ok" or problems:
            account.lost += 1
            account.why += [f"cell {cell}: {last.end}"] if last.end != "ok" else []
            account.why += [f"cell {cell}: {problem}" for problem in problems]
        elif len(good) == 1:
            account.results += 1
    return account
