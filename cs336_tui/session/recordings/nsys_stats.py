"""Reads CSV of ``nsys stats``: ``cuda_gpu_trace`` with every launch, ``cuda_gpu_kern_sum`` with totals of each kernel.

One file may hold several reports, with lines of nsys between them. Launches tell more than totals: of a file with both
the totals are left out. Units stand in the headers.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO, cast

from cs336_tui.config.reading import open_regular
from cs336_tui.events.kernel_report import KernelGroup, KernelReport, KernelSummary, kernel_kind
from cs336_tui.session.recordings import recording
from cs336_tui.session.recordings.recording import Damaged, Opening, Recorded, RecordingError, TooLarge
from cs336_tui.session.recordings.trace import COPY, FILL, KERNEL, Trace
from cs336_tui.stats.quantities import counted

MOST_BYTES = 1 << 30
_MOST_TEXT = 1 << 32
"""Characters, once decompressed."""
_MOST_LINES = 10_000_000
_TELL_EVERY = 5_000
_LONGEST_LINE = 1 << 17
_MOST_NS = 2**61
_MOST_INSTANCES = 2**40

_UNITS = {"": 1, "ns": 1, "us": 10**3, "μs": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_TITLE = re.compile(r"(?P<name>[^(\[:]*?)\s*(?:[(\[](?P<unit>[^)\]]*)[)\]])?\s*")
_DEVICE = re.compile(r"(?P<label>.*?)\s*\((?P<number>\d{1,9})\)\s*")
_ALIKE = {"average": "avg", "median": "med", "minimum": "min", "maximum": "max", "operation": "name", "strm": "stream"}
_ANY_DEVICE = "cuda:0"
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")


class _Column(NamedTuple):
    """Its place in a row, and the nanoseconds of its unit."""

    place: int
    unit: int


_Columns = Mapping[str, _Column]


def recognises(head: bytes) -> bool:
    """True if a header of one of the two reports is among the first lines."""
    text = head.decode(_encoding(head), "replace")
    if "\0" in text[:1000]:
        return False
    return any(_columns_of(line) is not None for line in text.splitlines()[:1000])


def read(path: Path, opening: Opening, name: str) -> tuple[Recorded, ...]:
    """The cells of a file. Raises `RecordingError` or `OpeningCancelled`."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise RecordingError(path, f"too large: of a CSV at most {MOST_BYTES >> 30} GiB are read")
    try:
        with _opened(path) as file:
            tables = list(_tables(_Lines(file, opening, size)))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise RecordingError(path, "damaged: its compression is cut or broken") from None
    except csv.Error as error:
        raise RecordingError(path, f"damaged: {error}") from None
    traces = [table for table in tables if isinstance(table, Trace) and KERNEL in table.kernel_kind]
    if traces:
        from cs336_tui.session.recordings.attribution import reports_of

        return tuple(cell for trace in traces for cell in reports_of(trace, name, str(path), opening))
    totals = [table for table in tables if isinstance(table, list) and table]
    if not totals:
        raise RecordingError(path, "no kernel of a GPU in it; nsys stats --report cuda_gpu_trace --format csv has them")
    return tuple(_recorded(groups, name, path) for groups in totals)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """The file's text, decompressed if it is gzip."""
    with open_regular(path) as file, gzip.open(file) as inflated:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        source = cast(BinaryIO, inflated if packed else file)
        encoding = _encoding(source.read(2))
        source.seek(0)
        yield io.TextIOWrapper(source, encoding, errors="replace", newline="")


def _encoding(head: bytes) -> str:
    """That of nsys, or of a shell of Windows that wrote UTF-16."""
    return "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def _columns_of(line: str) -> _Columns | None:
    """The columns of a header of launches or of totals, in small letters; None for any other line."""
    if len(line) > _LONGEST_LINE or not re.search("name|operation", line, re.IGNORECASE):
        return None
    found: dict[str, _Column] = {}
    for place, title in enumerate(next(csv.reader([line], delimiter=_delimiter(line)), [])):
        told = _TITLE.fullmatch(title)
        if told and told["name"]:
            key = told["name"].strip().lower()
            unit = (told["unit"] or "").removesuffix("ec")
            found.setdefault(_ALIKE.get(key, key), _Column(place, _UNITS.get(unit, 0)))
    launches, totals = {"start", "duration", "name"}, {"total time", "instances", "name"}
    return found if launches <= found.keys() or totals <= found.keys() else None


def _delimiter(line: str) -> str:
    return "\t" if "\t" in line else ","


def _tables(lines: _Lines) -> Iterator[Trace | list[KernelGroup]]:
    """Each report of the file: from its header to an empty line or the next header."""
    for line in lines:
        columns = _columns_of(line)
        if columns is None:
            continue
        rows = (row for row in csv.reader(lines.block(), delimiter=_delimiter(line)) if not _is_message(row, columns))
        if "duration" in columns:
            trace = Trace()
            for row in rows:
                _add_launch(trace, row, columns)
            yield trace
        else:
            yield [_totals(row, columns) for row in rows]


def _is_message(row: Sequence[str], columns: _Columns) -> bool:
    """True for a line of nsys' own words. Raises `Damaged` if it is a row that was cut off."""
    if len(row) > max(column.place for column in columns.values()):
        return False
    if len(row) == 1 and not row[0].strip().isdigit():
        return True
    raise Damaged(f"a line has {counted(len(row), 'column')}, its header more")


class _Lines:
    """The lines of a file of `size` bytes, with progress."""

    def __init__(self, file: TextIO, opening: Opening, size: int) -> None:
        self._file, self._opening, self._size = file, opening, size
        self._most = recording.most_inflated(size, _MOST_TEXT)
        self._number = self._read = 0
        self._header = ""
        """A header that ended a block, to be given next."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._header:
            line, self._header = self._header, ""
            return line
        line = self._file.readline(_LONGEST_LINE)
        if not line:
            raise StopIteration
        self._number += 1
        self._read += len(line)
        if self._number > _MOST_LINES or self._read > self._most:
            raise TooLarge("lines")
        if not self._number % _TELL_EVERY:
            self._opening.watch(min(self._read, self._size), self._size)
        return line

    def block(self) -> Iterator[str]:
        """Lines up to an empty one, or to a header."""
        for line in self:
            if not line.strip():
                return
            if _columns_of(line) is not None:
                self._header = line
                return
            yield line


def _add_launch(trace: Trace, row: Sequence[str], columns: _Columns) -> None:
    name = _text(row, columns, "name") or "(unnamed kernel)"
    kind = COPY if name.startswith("[CUDA memcpy") else FILL if name.startswith("[CUDA memset") else KERNEL
    number = 0
    if device := _text(row, columns, "device"):
        told = _DEVICE.fullmatch(device)
        number = int(told["number"]) if told else int(device) if device.isdecimal() and len(device) < 9 else 0
        if told and number < 2**31:
            trace.devices.setdefault(number, recording.DeviceFacts(label=told["label"]))
    stream, correlation = (_text(row, columns, key) for key in ("stream", "corrid"))
    trace.add_kernel(
        name,
        _whole(_time(row, columns, "start")),
        _whole(_time(row, columns, "duration")),
        device=number,
        stream=int(stream) if stream.isdecimal() and len(stream) < 9 else 0,
        correlation=int(correlation) if correlation.isdecimal() and len(correlation) < 18 else -1,
        kind=kind,
    )


def _totals(row: Sequence[str], columns: _Columns) -> KernelGroup:
    def some(key: str) -> Decimal | None:
        return _time(row, columns, key) if key in columns and _text(row, columns, key) else None

    def real(key: str) -> float | None:
        return None if (found := some(key)) is None else float(found)

    def whole(key: str) -> int | None:
        return None if (found := some(key)) is None else _whole(found)

    name = _text(row, columns, "name") or "(unnamed kernel)"
    instances = _whole(_number(_text(row, columns, "instances")))
    if instances > _MOST_INSTANCES:
        raise Damaged(f"{instances} is no number of launches")
    summary = KernelSummary(
        instances=instances,
        total_ns=_whole(_time(row, columns, "total time")),
        avg_ns=real("avg"),
        med_ns=real("med"),
        min_ns=whole("min"),
        max_ns=whole("max"),
        std_ns=real("stddev"),
    )
    return KernelGroup(name, kernel_kind(name), "", "", False, (), summary=summary)


def _text(row: Sequence[str], columns: _Columns, key: str) -> str:
    return row[columns[key].place].strip() if key in columns else ""


def _time(row: Sequence[str], columns: _Columns, key: str) -> Decimal:
    """Nanoseconds."""
    if not columns[key].unit:
        raise Damaged(f"the unit of “{key}” is not known")
    return _number(_text(row, columns, key)) * columns[key].unit


def _number(text: str) -> Decimal:
    try:
        found = Decimal(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
    except InvalidOperation:
        raise Damaged(f"“{text[:40]}” is no number") from None
    if not found.is_finite() or not 0 <= found < _MOST_NS:
        raise Damaged(f"“{text[:40]}” is no time and no count")
    return found


def _whole(found: Decimal) -> int:
    return int(found.to_integral_value())


def _recorded(groups: Sequence[KernelGroup], name: str, path: Path) -> Recorded:
    """A cell of totals alone: without times of launches there is no span, no idle time and no phase."""
    kernels = tuple(group for group in groups if not group.name.startswith("[CUDA mem"))
    if not kernels:
        raise RecordingError(path, "copies and fills alone, no kernel of a GPU")
    recording.check_time(sum(group.total_ns for group in groups))
    report = KernelReport(
        **recording.header(name, _ANY_DEVICE, "unknown GPU", ""),  # type: ignore[arg-type]
        activity="kernels",
        groups=kernels,
        copies=tuple(group for group in groups if group.name.startswith("[CUDA mem")),
        total_ns=sum(group.total_ns for group in kernels),
        launches=sum(group.instances for group in kernels),
        span_ns=0,
        busy_ns=0,
        phase_spans_ns={"": 0},
        trace=str(path),
        note="totals as nsys stats counted them, no single launches: nothing tells when the GPU was idle",
    )
    return Recorded(report=report)
