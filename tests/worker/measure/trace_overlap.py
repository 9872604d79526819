"""Communication and compute of a Chrome trace, added up for themselves, to hold a report of several ranks against."""

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def times_in_trace(path: str) -> tuple[float, float, float]:
    """Microseconds with communication, with compute, and with both: of kernels if there are any, else of gloo beside
    aten on the thread of the phases."""
    events = [each for each in json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"] if each["ph"] == "X"]
    if kernels := [each for each in events if each["cat"] == "kernel"]:
        moves = [each for each in kernels if "nccl" in each["name"].lower()]
        return _swept(moves, [each for each in kernels if "nccl" not in each["name"].lower()])
    phases = [each for each in events if each["name"].startswith("phase/")]
    first, last = min(each["ts"] for each in phases), max(each["ts"] + each["dur"] for each in phases)
    inside = [each for each in events if first <= each["ts"] <= last]
    inside = [{**each, "dur": min(each["dur"], last - each["ts"])} for each in inside]
    return _swept(
        [each for each in inside if each["name"].startswith("gloo:")],
        [each for each in inside if each["name"].startswith("aten::") and each["tid"] == phases[0]["tid"]],
    )


def _swept(moves: list[Event], computes: list[Event]) -> tuple[float, float, float]:
    """The times, by going over all begins and ends in order."""
    turns = sorted(
        turn
        for kind, events in enumerate((moves, computes))
        for each in events
        for turn in ((each["ts"], kind, 1), (each["ts"] + each["dur"], kind, -1))
    )
    running, found, before = [0, 0], [0.0, 0.0, 0.0], 0.0
    for at, kind, change in turns:
        for place, runs in enumerate((running[0], running[1], running[0] and running[1])):
            found[place] += at - before if runs else 0.0
        running[kind] += change
        before = at
    return found[0], found[1], found[2]
