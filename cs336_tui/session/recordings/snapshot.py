"""Reads a CUDA memory snapshot (``torch.cuda.memory._dump_snapshot``) as one memory report a device.

A snapshot holds each device's `segments` at its end and the trace of allocations and frees before. Its timeline begins
with what lived before the recording and ends with the segments' allocated blocks. Phases come from the user's
annotations and from stacks. A category is told by a block's life within them; what cannot be told is ``unknown``.
"""

from __future__ import annotations

import gzip
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import count, groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cs336_tui.config.reading import open_regular
from cs336_tui.events.prediction import WORKSPACE_OP, Allocation, Category, Site, TrackedTimeline
from cs336_tui.events.reports import MemoryReport
from cs336_tui.session.recordings import recording, safe_pickle, snapshot_blocks
from cs336_tui.session.recordings.recording import Opening, Recorded, RecordingError
from cs336_tui.session.recordings.snapshot_blocks import History, MemoryEvent, SnapshotBlock, SnapshotError
from cs336_tui.session.recordings.snapshot_frames import Phase, Stack, Stacks, plain
from cs336_tui.stats.quantities import counted

WHOLE = "recording"
"""The phase of what no phase is known of."""
_MOST_DEVICES = 1024
_MOST_PHASES = 5_000
_MOST_TEXT = 200
_MOST_LIVE = 2**53
"""Bytes that live at once, at most, so that no sum of them overflows."""
_DEEPEST = 64
"""Annotations within each other; deeper ones are left out."""
_USUAL_WORKSPACES = (8_519_680, 33_554_432)
"""Bytes of cuBLAS's workspaces that it chooses itself (Ampere, Hopper); a stack of Python alone does not name them."""


def recognises(head: bytes) -> bool:
    """True for a pickle of protocol 2 or later."""
    return head[:1] == b"\x80" and 2 <= head[1] <= 5 if len(head) > 1 else False


def read(path: Path, opening: Opening, name: str) -> tuple[Recorded, ...]:
    """A cell for each device that the snapshot tells of. Raises `RecordingError` or `OpeningCancelled`."""
    size = path.stat().st_size
    if size > safe_pickle.MOST_BYTES:
        raise RecordingError(
            path, f"too large: of a memory snapshot at most {safe_pickle.MOST_BYTES >> 30} GiB are read"
        )
    try:
        opening.watch(0, size)
        found = safe_pickle.load(_content(path), lambda done: opening.watch(done, size))
        return _recorded(found, path, name, opening, lambda: opening.watch(size, size))
    except safe_pickle.PickleRefused as error:
        raise RecordingError(path, f"no memory snapshot that can be read: {error}") from error
    except SnapshotError as error:
        raise RecordingError(path, f"no memory snapshot of torch: {error}") from error


def _content(path: Path) -> bytes:
    """The file's bytes, decompressed if it is gzip; one more than are read at most."""
    with open_regular(path) as file:
        head = file.read(2)
    if head != b"\x1f\x8b":
        return path.read_bytes()
    try:
        with gzip.open(path) as inflated:
            most = recording.most_inflated(path.stat().st_size, safe_pickle.MOST_BYTES)
            found = inflated.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SnapshotError("its compression is damaged") from error
    if len(found) > most:
        raise SnapshotError(f"it holds more than {most >> 20:,} MB once decompressed")
    return found


def _recorded(
    found: object, path: Path, name: str, opening: Opening, go_on: Callable[[], object]
) -> tuple[Recorded, ...]:
    if isinstance(found, list) and found:  # of torch.cuda.memory_snapshot: the segments alone
        found = {"segments": found}
    if not isinstance(found, dict) or not isinstance(found.get("segments"), list):
        raise SnapshotError("it has no “segments”")
    segments: dict[int, list[Mapping[str, Any]]] = {}
    for segment in found["segments"]:
        if not isinstance(segment, dict):
            raise SnapshotError("a segment is no dict")
        segments.setdefault(_number(segment.get("device"), 0), []).append(segment)
    traces = found.get("device_traces", [])
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise SnapshotError("“device_traces” is no list of lists")
    if len(traces) > _MOST_DEVICES:
        raise SnapshotError(f"it has {counted(len(traces), 'device', ',')}")
    devices = sorted({*segments, *(device for device, trace in enumerate(traces) if trace)})
    if not devices:
        raise RecordingError(path, "the memory snapshot is empty: no segment and no event")
    stacks = Stacks()
    phase_of = recording.phase_finder(opening.phases)
    recorded = []
    for device in devices:
        trace = traces[device] if 0 <= device < len(traces) else []
        settings = found.get("allocator_settings")
        history = snapshot_blocks.history_of(device, trace, segments.get(device, []), settings, go_on)
        annotations = _Annotations.of(found.get("external_annotations"), device, phase_of)
        go_on()
        report = _Report(history, stacks, annotations).made(name, f"cuda:{device}", str(path), segments.get(device, []))
        recorded.append(Recorded(report=report))
    return tuple(recorded)


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and 0 <= value < _MOST_DEVICES else otherwise


class _Annotations(NamedTuple):
    """The user's annotations of one device by time: from each of `times` on, phase and range are as in `places`."""

    times: list[int]
    places: list[tuple[str, str]]
    phase_of: Callable[[str], str]

    @classmethod
    def of(cls, found: object, device: int, phase_of: Callable[[str], str]) -> _Annotations:
        times, places = [-1], [("", "")]
        open_: list[str] = []
        given = found if isinstance(found, list) else []
        entries = [each for each in given if isinstance(each, dict) and _number(each.get("device"), device) == device]
        for entry in sorted(entries, key=_time_of):
            name = entry.get("name")
            if not isinstance(name, str):
                continue
            if entry.get("stage") == "START":
                if len(open_) < _DEEPEST:
                    open_.append(plain(name))
            elif plain(name) in open_:
                del open_[len(open_) - 1 - open_[::-1].index(plain(name))]
            phase = next((phase for each in reversed(open_) if (phase := phase_of(each))), "")
            ranges = [each for each in open_ if not phase_of(each) and not re.match("ProfilerStep", each)]
            times.append(_time_of(entry))
            places.append((phase, ranges[-1] if ranges else ""))
        return cls(times, places, phase_of)

    def at(self, event: MemoryEvent) -> tuple[str, str]:
        """The phase and the range of an event, by its metadata or by its time; empty if none is known."""
        if isinstance(event.metadata, str) and event.metadata:
            name = plain(event.metadata)
            return (phase, "") if (phase := self.phase_of(name)) else ("", name[:_MOST_TEXT])
        if event.time_us is None or len(self.times) == 1:
            return "", ""
        return self.places[bisect_right(self.times, event.time_us) - 1]


def _time_of(entry: Mapping[str, Any]) -> int:
    time = entry.get("time_us")
    return time if isinstance(time, int) else 0


class _Report:
    """Makes one device's report: stacks tell sites and phases, phases tell categories."""

    def __init__(self, history: History, stacks: Stacks, annotations: _Annotations) -> None:
        self._history, self._stacks, self._annotations = history, stacks, annotations
        self._stack_of: list[Stack] = [stacks.of(event.frames) for event in history.events]
        known = {
            event.allocates for event, stack in zip(history.events, self._stack_of, strict=True) if not stack.empty
        }
        self.knows_stacks = bool(known)
        self._in_python = set() if stacks.names_cpp else known
        """Kinds of events that have stacks, of Python alone."""
        self._begins = self._phases()
        self._firsts = [first for _, first in self._begins]
        backward = (place for place, (phase, _) in enumerate(self._begins) if phase == Phase.BACKWARD)
        self._last_backward = max(backward, default=-1)

    def _phases(self) -> list[tuple[str, int]]:
        """Each phase with its first event, from event 1 on."""
        names: list[str] = []
        last = ""
        for event, stack in zip(self._history.events, self._stack_of, strict=True):
            in_backward = stack.empty and event.allocates in self._in_python
            by_stack = Phase.BACKWARD if in_backward else stack.phase
            last = self._annotations.at(event)[0] or by_stack or last
            names.append(last or WHOLE)
        begins = [next(run) for _, run in groupby(zip(names, count(1), strict=False), itemgetter(0))]
        return begins if len(begins) <= _MOST_PHASES else [(WHOLE, 1)]

    def made(self, name: str, device: str, path: str, segments: Sequence[Mapping[str, Any]]) -> MemoryReport:
        history = self._history
        allocations = []
        for block in sorted(history.blocks, key=attrgetter("born")):
            site, stack = self._site(block)
            died = block.died if block.died >= 0 else None
            allocations.append(Allocation(block.bytes, site, block.born, died, self._category(block, site, stack)))
        timeline = TrackedTimeline(allocations, len(history.events) + 1, self._begins)
        if max(timeline.totals) > _MOST_LIVE:
            raise SnapshotError("its blocks together are larger than any memory")
        return MemoryReport(
            **recording.header(name, device, "", ""),  # type: ignore[arg-type]
            recorder="CUDA allocator history",
            snapshot=path,
            note=self._note(timeline.totals[0], segments),
            **timeline.fields(),
        )

    def _site(self, block: SnapshotBlock) -> tuple[Site, Stack]:
        stack = self._stack_of[block.born - 1] if block.born else self._stacks.of(block.frames)
        site = stack.site
        if not block.born:
            return site, stack
        phase = self._phase_at(block.born)
        range_ = self._annotations.at(self._history.events[block.born - 1])[1]
        return msgspec.structs.replace(site, phase=phase, range=range_, backward=phase == Phase.BACKWARD), stack

    def _place(self, event: int) -> int:
        """The span of an event, from event 1 on."""
        return bisect_right(self._firsts, event) - 1

    def _phase_at(self, event: int) -> str:
        return self._begins[self._place(event)][0]

    def _category(self, block: SnapshotBlock, site: Site, stack: Stack) -> Category:
        """A use that the block's life tells for sure, else ``unknown``."""
        died_in = self._phase_at(block.died) if block.died > 0 else ""
        if site.op == WORKSPACE_OP:
            return "temporary"
        if stack.state:
            return "optimizer_state"
        if died_in == Phase.ZERO_GRAD and site.phase != Phase.ZERO_GRAD:
            return "gradients"
        if not block.born or site.phase == WHOLE:
            return "unknown"
        if block.died > 0 and self._place(block.died) == self._place(block.born):
            return "temporary"
        if block.died < 0 and block.bytes in _USUAL_WORKSPACES and not stack.op:
            return "unknown"
        if site.phase in (Phase.FORWARD, Phase.LOSS):
            return "activations" if self._place(block.born) < self._last_backward else "unknown"
        uses: dict[str, Category] = {Phase.BACKWARD: "gradients", Phase.OPTIMIZER: "optimizer_state"}
        return uses.get(site.phase, "unknown")

    def _note(self, before: int, segments: Sequence[Mapping[str, Any]]) -> str:
        history = self._history
        old = sum(1 for block in history.blocks if not block.born)
        found = [f"{counted(old, 'block', ',')}, {before / 1e9:.3f} GB, lived before the recording began"]
        if not history.events:
            found.append("no trace of allocations and frees: what is shown is the moment of the snapshot")
        elif not self.knows_stacks:
            found.append("no stacks were recorded")
        blocks = (block for segment in segments for block in snapshot_blocks.blocks_of(segment))
        waiting = sum(size for _, size, state, _ in blocks if state in _WAITING)
        if most := max(history.waiting_bytes, waiting):
            found.append(f"up to {most / 1e6:.3f} MB more were freed and waited for another stream")
        if history.vanished:
            found.append(f"in no segment at the end: {counted(history.vanished, 'block', ',')} of the trace")
        if history.no_memory:
            asked, free = history.no_memory[-1]
            times = f"{len(history.no_memory):,} times, at last" if len(history.no_memory) > 1 else "once,"
            found.append(f"memory ran out {times} as {asked / 1e6:.3f} MB were asked for and {free / 1e6:.3f} MB free")
        return "; ".join(found)


_WAITING = ("active_pending_free", "active_awaiting_free")
