"""Writes and reads events: msgpack on a child's pipe, in a log JSON lines, which `from_line` checks."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

from cs336_tui.events.events import CellFinished, DeviceSampled, Event, StepsTimed

LATEST = 253_370_764_800.0
"""The latest time, Unix seconds: the beginning of the year 9999, as calendars end with it."""
LARGEST = 1e30
"""The largest number of a log, so that squares and products of numbers are finite."""
SHORTEST_S, LONGEST_S = 1e-12, 1e9
"""The range of the time of a step or of its part, unless it is 0."""
_PACK = msgspec.msgpack.Encoder()
_JSON = msgspec.json.Encoder()


@cache
def _unpacker() -> msgspec.msgpack.Decoder[Event]:
    return msgspec.msgpack.Decoder(Event)


@cache
def _reader() -> msgspec.json.Decoder[Event]:
    return msgspec.json.Decoder(Event)


def pack(event: Event) -> bytes:
    """The event for the pipe: msgpack, or JSON if a number does not fit msgpack's 64 bits."""
    try:
        return _PACK.encode(event)
    except OverflowError:
        return _JSON.encode(event)
    except UnicodeEncodeError:
        return pack(_encodable(event))


def unpack(data: bytes) -> Event:
    """Inverse of `pack`. Raises `msgspec.MsgspecError`."""
    return (_reader() if data.startswith(b"{") else _unpacker()).decode(data)  # no msgpack object begins so


def to_line(event: Event) -> bytes:
    """The event as one line of the log, newline included."""
    try:
        return _JSON.encode(event) + b"\n"
    except UnicodeEncodeError:
        return to_line(_encodable(event))


def _encodable(event: Event) -> Event:
    """The event with lone surrogates, which UTF-8 cannot encode, written out as ``\\udc80``."""
    encodable: Event = msgspec.convert(_without_surrogates(msgspec.to_builtins(event)), Event)
    return encodable


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(each) for each in value]
    return value


def from_line(line: bytes) -> Event:
    """Inverse of `to_line`, within the limits above. Raises `msgspec.MsgspecError` or `UnicodeDecodeError`."""
    try:
        event = _reader().decode(line)
        problem = _problem(event, line)
    except RecursionError:
        problem = "nested too deeply"
    if problem:
        raise msgspec.ValidationError(problem)
    return event


_PERHAPS_LARGE = re.compile(rb"[0-9](?:[eE]\+?[0-9]{2}|[0-9]{18})")
"""Is in every line that has a number beyond `LARGEST`, and in few others. It begins with one set of bytes, for which
`re` is quick."""


_UNEQUAL = "times of steps, of phases, of ranks and of the host differ in number"


def _problem(event: Event, line: bytes) -> str | None:
    """The reason why the event of this line is out of limits; None if it is not."""
    if not 0 <= event.at <= LATEST:
        return f"at {event.at}: expected Unix seconds"
    if isinstance(event, StepsTimed):
        several = (event.times_s, *event.phases_s.values(), *event.rank_times_s, *event.rank_sync_s)
        number, all_s = len(event.times_s), [*event.host_s]
        if all_s and len(all_s) != number:
            return _UNEQUAL
        for times_s in several:
            if len(times_s) != number:
                return _UNEQUAL
            all_s += times_s
        # Two calls for all of them: a log has a million lines. Only odd ones are looked at one by one.
        is_odd = all_s and (min(all_s) < SHORTEST_S or max(all_s) > LONGEST_S)
        return _impossible_time(all_s) if is_odd else None
    if isinstance(event, CellFinished) and (summary := event.summary):
        quantiles = (summary.median_s, summary.p95_s, summary.p20_s, summary.p80_s)
        known = (summary.mean_s, summary.min_s, summary.max_s, *quantiles)
        if problem := _impossible_time(time_s for time_s in known if time_s is not None):
            return problem
    if _PERHAPS_LARGE.search(line) and any(abs(number) > LARGEST for number in _numbers(msgspec.json.decode(line))):
        return f"a number larger than {LARGEST:g}"
    return None


def _impossible_time(times_s: Iterable[float]) -> str | None:
    for time_s in times_s:
        if time_s and not SHORTEST_S <= time_s <= LONGEST_S:
            return f"a time of {time_s} s: expected {SHORTEST_S:g} to {LONGEST_S:g}, or 0"
    return None


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value


def coalesce(events: Iterable[Event]) -> list[Event]:
    """The events with adjoining `StepsTimed` of one cell and kind merged. Device samples do not part them: they come
    before the steps that they were taken among."""
    merged: list[Event] = []
    pending: list[StepsTimed] = []
    for event in events:
        if isinstance(event, StepsTimed):
            if pending and not _adjoin(pending[-1], event):
                merged += _merged(pending)
                pending = []
            pending.append(event)
        else:
            if pending and not isinstance(event, DeviceSampled):
                merged += _merged(pending)
                pending = []
            merged.append(event)
    return merged + _merged(pending)


def _merged(steps: Sequence[StepsTimed]) -> list[Event]:
    if len(steps) < 2:
        return [*steps]
    whole = msgspec.structs.replace(
        steps[-1],
        first=steps[0].first,
        times_s=_joined(each.times_s for each in steps),
        phases_s={name: _joined(each.phases_s[name] for each in steps) for name in steps[0].phases_s},
        host_s=_joined(each.host_s for each in steps),
        host_phases_s={name: _joined(each.host_phases_s[name] for each in steps) for name in steps[0].host_phases_s},
        rank_times_s=_end_to_end([each.rank_times_s for each in steps]),
        rank_sync_s=_end_to_end([each.rank_sync_s for each in steps]),
    )
    return [whole]


def _joined(several: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(itertools.chain.from_iterable(several))


def _end_to_end(several: Sequence[tuple[tuple[float, ...], ...]]) -> tuple[tuple[float, ...], ...]:
    """The lists of each rank joined."""
    return tuple(tuple(itertools.chain(*of_rank)) for of_rank in zip(*several, strict=True)) if several[0] else ()


def _adjoin(earlier: StepsTimed, later: StepsTimed) -> bool:
    return (
        (earlier.cell, earlier.kind) == (later.cell, later.kind)
        and earlier.first + len(earlier.times_s) == later.first
        and earlier.phases_s.keys() == later.phases_s.keys()
        and bool(earlier.host_s) == bool(later.host_s)
        and earlier.host_phases_s.keys() == later.host_phases_s.keys()
        and len(earlier.rank_times_s) == len(later.rank_times_s)
        and len(earlier.rank_sync_s) == len(later.rank_sync_s)
    )
