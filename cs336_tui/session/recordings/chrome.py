"""Reads torch profiler traces (Chrome's trace event format), plain or gzipped, in a stream; events are decoded exactly
or, where they are unusual, leniently."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec

from cs336_tui.config.reading import open_regular
from cs336_tui.session.recordings import recording
from cs336_tui.session.recordings.attribution import reports_of
from cs336_tui.session.recordings.recording import DeviceFacts, Opening, Recorded, RecordingError, Watch
from cs336_tui.session.recordings.trace import COPY, FILL, KERNEL, OPERATOR, USER_RANGE, Trace

_LONE = re.compile(r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""Escapes of surrogates: pairs are the group; one alone is no character."""
_Long = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)] | None
_Short = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments of an event that are looked at; others are skipped."""

    correlation: _Long = None
    device: _Short = None
    stream: _Long = None
    sequence: _Long = msgspec.field(default=None, name="Sequence number")
    forward: _Short = msgspec.field(default=None, name="Fwd thread id")


_NONE = Args()
_ARGS = dict(zip(Args.__struct_encode_fields__, Args.__struct_fields__, strict=True))
"""Names of arguments in the file, with those of `Args`."""


class _AnyEvent(msgspec.Struct, gc=False):
    """One event but for its time; `dur` in microseconds."""

    cat: str = ""
    ph: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    dur: float = 0.0
    args: Args = _NONE


class Event(_AnyEvent, gc=False):
    """One event; times in microseconds."""

    ts: float = 0.0


class EpochEvent(_AnyEvent, gc=False):
    """One event whose time is too large for a float: as written."""

    ts: msgspec.Raw = msgspec.Raw(b"0")


class Around(msgspec.Struct):
    """The document round the events."""

    traceEvents: list[msgspec.Raw] = []  # as the format has it
    deviceProperties: Any = None
    distributedInfo: Any = None
    host_name: Any = None
    pytorch_version: Any = None


DECODE = msgspec.json.Decoder(list[Event], strict=False)
DECODE_EPOCH = msgspec.json.Decoder(list[EpochEvent], strict=False)
DECODE_ONE = msgspec.json.Decoder(EpochEvent, strict=False)
_DECODE_TIMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
SPLIT = msgspec.json.Decoder(list[msgspec.Raw])
AROUND = msgspec.json.Decoder(Around)

OPERATORS = frozenset(("cpu_op", "Operator"))
RANGES = frozenset(("user_annotation",))
CALLS = frozenset(("cuda_runtime", "cuda_driver", "Runtime"))
ACTIVITIES = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL, "Kernel": KERNEL, "Memcpy": COPY, "Memset": FILL,
}  # fmt: skip
"""Categories of events; those with capitals are torch 1.8's to 1.11's."""
KEPT = OPERATORS | RANGES | CALLS | ACTIVITIES.keys()


def loads(text: bytes) -> Any:
    """As Python's own decoder takes it, which knows NaN; what is no character is replaced. Raises ValueError."""
    return json.loads(_LONE.sub(lambda each: each[1] or r"\ufffd", text.decode(errors="replace")), strict=False)


def exact_us(written: msgspec.Raw) -> tuple[int, int]:
    """Whole microseconds and nanoseconds of a time as written. Raises ValueError, OverflowError."""
    whole, _, part = bytes(written).strip(b'"').partition(b".")
    if b"e" in part or b"E" in part or b"e" in whole or b"E" in whole:
        return divmod(round(float(written) * 1000), 1000)
    return int(whole), int((part + b"000")[:3]) + (part[3:4] >= b"5")


def read_oddly(raw: msgspec.Raw) -> EpochEvent | None:
    """An event of which some fields have unusual types; None if it is none that can be read."""
    try:
        found = msgspec.json.decode(raw)
        if not isinstance(found, dict):
            return None
        args = found.get("args")
        named = args if isinstance(args, dict) else {}
        given = {_ARGS[key]: _whole(value) for key, value in named.items() if key in _ARGS}
        times = _DECODE_TIMES.decode(raw)
        return EpochEvent(
            cat=_text(found.get("cat")),
            ph=_text(found.get("ph")),
            name=_text(found.get("name")),
            pid=_named(found.get("pid")),
            tid=_named(found.get("tid")),
            ts=times.get("ts", msgspec.Raw(b"0")),
            dur=float(found.get("dur") or 0),
            args=Args(**given),
        )
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError):
        return None


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _named(found: object) -> int | str | None:
    return found if isinstance(found, int | str) else str(found)


def _whole(found: Any) -> int | None:
    try:
        number = int(found)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if abs(number) < 2**31 else None


WHAT = "a torch profiler trace"
MOST_DEVICES = 1000
CHUNK = 1 << 22
LONGEST_EVENT = 1 << 26
"""Bytes of one event, or of what stands round the events."""
LARGEST = 1 << 37
"""Bytes of a trace once decompressed."""
_PRECISE_US = 2.0**42
"""Below this a float of microseconds is exact to half a nanosecond."""
_EVENTS = re.compile(rb'\A\[|"traceEvents"\s*:\s*\[')
"""The place before the first event: of a bare list, else of the document's."""
_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{)")
_LONGEST_US = 1e15


def recognises(head: bytes) -> bool:
    """True if a file that begins so, once decompressed, may be a trace."""
    bare = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if bare.startswith(b"["):
        return bare[1:].lstrip()[:1] in (b"{", b"")
    return bare.startswith(b"{") and b'"' in bare


def read(path: Path, opening: Opening, name: str) -> tuple[Recorded, ...]:
    """The cells of a trace, named `name` and its rank. Raises `RecordingError`, `OpeningCancelled`, OSError."""
    with open_regular(path) as file:
        trace = _Reader(path, file, opening.watch).read()
    if not len(trace.kernel_name) and OPERATOR not in trace.span_kind:
        raise RecordingError(path, "no kernel and no operator in it")
    ranked = name if trace.rank is None else f"{name}, rank {trace.rank}"
    return reports_of(trace, ranked, str(path.absolute()), opening)


class _Reader:
    """Reads one file piece by piece, each of whole events."""

    def __init__(self, path: Path, file: BinaryIO, watch: Watch) -> None:
        self._path, self._file, self._watch = path, file, watch
        self._total = file.seek(0, 2)
        file.seek(0)
        self.trace = Trace()
        self._epoch = False
        self._base: int | None = None
        """Whole microseconds that are taken off every time; None before the first."""

    def read(self) -> Trace:
        try:
            self._read()
        except zlib.error:
            raise self._error("damaged: not gzip to its end") from None
        except RecursionError:
            raise self._error("nested too deeply for a trace") from None
        if self.trace.rows == 0 and self.trace.unread:
            raise self._error(f"not {WHAT}: none of its events can be read")
        return self.trace

    def _error(self, why: str) -> RecordingError:
        return RecordingError(self._path, why)

    def _read(self) -> None:
        pieces = self._pieces()
        buffer = next(pieces, b"").lstrip(b"\xef\xbb\xbf \t\r\n")
        while not (begin := _EVENTS.search(buffer)):
            if len(buffer) > LONGEST_EVENT:
                raise self._error(f"not {WHAT}: no traceEvents in its first {LONGEST_EVENT >> 20} MB")
            if not (more := next(pieces, b"")):
                raise self._error(f"not {WHAT}: it has no traceEvents" if buffer else "empty")
            buffer += more
        head, buffer = buffer[: begin.end()], buffer[begin.end() :]
        for more in pieces:
            buffer += more
            buffer = buffer[self._take_whole(buffer) :]
            if len(buffer) > LONGEST_EVENT:
                raise self._error(f"damaged: no end of an event within {LONGEST_EVENT >> 20} MB")
        self._take_end(head, buffer)

    def _pieces(self) -> Iterator[bytes]:
        """The file's bytes, decompressed."""
        inflate = None
        done, most = 0, recording.most_inflated(self._total, LARGEST)
        while data := self._file.read(CHUNK):
            if done == 0 and inflate is None and data.startswith(b"\x1f\x8b"):
                inflate = zlib.decompressobj(31)
            while data:
                self._watch(self._file.tell() - len(data), self._total)
                if inflate is None:
                    piece, data = data, b""
                else:
                    piece = inflate.decompress(data, CHUNK)
                    data = inflate.unconsumed_tail
                    if inflate.eof and (rest := (data or inflate.unused_data).lstrip(b"\0")):
                        inflate, data = zlib.decompressobj(31), rest  # another member
                done += len(piece)
                if done > most:
                    raise self._error(f"too large to be read: more than {done >> 20:,} MB decompressed")
                if piece:
                    yield piece
        self._watch(self._total, self._total)
        if inflate is not None and not inflate.eof:
            raise self._error("cut: the file ends before its gzip does")

    def _take_whole(self, buffer: bytes) -> int:
        """Take the events that are whole in the buffer; the number of bytes that they took. A place between two objects
        is one between two events if what is before it can be decoded."""
        tried = 0
        reach = len(buffer)
        for window in (1 << 14, 1 << 18, reach):
            begin = max(0, len(buffer) - window)
            for found in reversed([*_BOUNDARY.finditer(buffer, begin, reach)]):
                tried += 1
                if self._take(buffer[: found.start() + 1]):
                    return found.end()
                if tried > 64:
                    return 0
            if begin == 0:
                break
            reach = min(reach, begin + 64)
        return 0

    def _take_end(self, head: bytes, rest: bytes) -> None:
        """Take the last events, and what stands round all of them."""
        if head == b"[" and not rest.rstrip().endswith(b"]"):  # a list may lack its end
            rest = rest.rstrip().rstrip(b",") + b"]"
        text = b'{"traceEvents":[' + rest + b"}" if head == b"[" else head + rest
        try:
            around = AROUND.decode(text)
        except msgspec.ValidationError:
            raise self._error(f"not {WHAT}: its events are no list of objects") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            around = self._leniently(text)
        self._take_facts(around)
        if around.traceEvents and not self._take(b",".join(map(bytes, around.traceEvents))):
            raise self._error(f"not {WHAT}: its events cannot be read")

    def _leniently(self, text: bytes) -> Around:
        """As Python's own decoder takes it, which knows NaN."""
        try:
            found = loads(text)
        except ValueError:
            raise self._error("cut or damaged: it is not JSON to its end") from None
        if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
            raise self._error(f"not {WHAT}: it has no traceEvents")
        events = [msgspec.Raw(msgspec.json.encode(each)) for each in found.pop("traceEvents")]
        known = {key: found[key] for key in Around.__struct_fields__ if key in found}
        return Around(traceEvents=events, **known)

    def _take(self, text: bytes) -> bool:
        """Take these events; False if they are not whole."""
        listed = b"[" + text + b"]"
        try:
            if self._epoch or not self._take_events(DECODE.decode(listed)):
                self._take_epoch(DECODE_EPOCH.decode(listed))
        except msgspec.ValidationError:
            self._take_one_by_one(listed)
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                found = loads(listed)  # with NaN or bytes that are no UTF-8
            except ValueError:
                return False
            self._take_one_by_one(msgspec.json.encode(found))
        return True

    def _take_one_by_one(self, listed: bytes) -> None:
        """Take the events of which some are not as expected: numbers as texts, arguments of any type."""
        taken: list[EpochEvent] = []
        for raw in SPLIT.decode(listed):
            try:
                taken.append(DECODE_ONE.decode(raw))
            except msgspec.ValidationError:
                if (event := read_oddly(raw)) is not None:
                    taken.append(event)
                else:
                    self.trace.unread += 1
        self._take_epoch(taken)

    def _take_events(self, events: list[Event]) -> bool:
        """Take these events if floats are exact enough for their times, else none from now on."""
        times = [event.ts for event in events if event.ts]
        if times and self._base is None:
            self._base = int(times[0])
        if times and max(times) >= _PRECISE_US:
            self._epoch = True
            return False
        base = self._base or 0
        for event in events:
            if event.cat in KEPT and event.ph == "X":
                self._add(event, round((event.ts - base) * 1000))
        self.trace.check_room()
        return True

    def _take_epoch(self, events: list[EpochEvent]) -> None:
        for event in events:
            if event.cat not in KEPT or event.ph != "X":
                continue
            try:
                us, ns = exact_us(event.ts)
            except (ValueError, OverflowError):
                self.trace.unread += 1
                continue
            if self._base is None:
                self._base = us
            self._add(event, (us - self._base) * 1000 + ns)
        self.trace.check_room()

    def _add(self, event: Event | EpochEvent, begin: int) -> None:
        """Add one event of the kinds that are looked at."""
        cat, trace = event.cat, self.trace
        if not 0 <= event.dur < _LONGEST_US or abs(begin) >= _LONGEST_US * 1000:
            trace.unread += 1
            return
        args = event.args
        if cat in OPERATORS or cat in RANGES:
            kind = OPERATOR if cat in OPERATORS else USER_RANGE
            thread = trace.thread_id((event.pid, event.tid))
            trace.add_span(event.name, thread, begin, begin + round(event.dur * 1000), kind)
            if args.sequence is not None and args.sequence >= 0:
                trace.add_node(args.sequence, args.forward or 0)
        elif cat in CALLS:
            if args.correlation is not None:
                trace.add_call(args.correlation, trace.thread_id((event.pid, event.tid)), begin)
        elif (activity := ACTIVITIES.get(cat)) is not None:
            trace.add_kernel(
                event.name,
                begin,
                round(event.dur * 1000),
                device=_or(args.device, event.pid) % MOST_DEVICES,
                stream=_or(args.stream, event.tid),
                correlation=-1 if args.correlation is None else args.correlation,
                kind=activity,
            )

    def _take_facts(self, around: Around) -> None:
        trace = self.trace
        listed = around.deviceProperties if isinstance(around.deviceProperties, list) else []
        for place, each in enumerate(each for each in listed if isinstance(each, dict)):
            number = each.get("id", place)
            if isinstance(number, int) and isinstance(each.get("name"), str):
                facts = map(each.get, ("name", "totalGlobalMem", "computeMajor", "computeMinor"))
                trace.devices[number] = DeviceFacts.of(*facts)
        info = around.distributedInfo
        rank = info.get("rank") if isinstance(info, dict) else None
        trace.rank = rank if isinstance(rank, int) and rank >= 0 else None
        trace.torch = around.pytorch_version if isinstance(around.pytorch_version, str) else ""
        trace.host = around.host_name if isinstance(around.host_name, str) else ""


def _or(*found: object) -> int:
    """The first whole number."""
    return next((each for each in found if isinstance(each, int)), 0)
