"""Reads reports of NVIDIA Nsight Systems: the SQLite export, and ``.nsys-rep`` by the user's own ``nsys export``.

Tables are made only where there is something to put into them, and columns differ with the version: NVIDIA, *SQLite
Export Schema Reference*. Ids of processes are in bits 24 on of a ``globalTid``; a correlation is unique in a process.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cs336_tui.config.reading import open_regular
from cs336_tui.session.recordings import recording
from cs336_tui.session.recordings.attribution import reports_of
from cs336_tui.session.recordings.recording import Damaged, DeviceFacts, Opening, Recorded, RecordingError, TooLarge
from cs336_tui.session.recordings.trace import COPY, FILL, KERNEL, MOST_ROWS, OPERATOR, USER_RANGE, Trace
from cs336_tui.stats.quantities import counted

_LONGEST_TEXT = 1 << 20
_STEPS = 20_000
"""Of SQLite's machine, between two looks at the watch."""
_AT_ONCE = 10_000


class Database:
    """One database, opened so that it can only be read: no other file, no function, no view. `tables` has the columns
    of each ordinary table. `expected` are the tables that will be read, by whose rows the watch is told of progress."""

    def __init__(self, path: Path, watch: recording.Watch, expected: Sequence[str]) -> None:
        self._watch, self._size = watch, path.stat().st_size
        self._stopped: BaseException | None = None
        self._rows = self._expected = 0
        self._base = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT)
        self._base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._base.text_factory = partial(str, encoding="utf-8", errors="replace")
        self._base.execute("PRAGMA trusted_schema = OFF")
        self._base.execute("PRAGMA query_only = ON")
        self._base.execute("PRAGMA mmap_size = 0")
        self._base.set_progress_handler(self._look, _STEPS)
        self._base.set_authorizer(_allowed)
        self.tables = self._columns()
        self._expected = sum(map(self._most_rows, expected))

    def close(self) -> None:
        self._base.close()

    def _look(self) -> int:
        """Called while SQLite works: a watch that raises stops it."""
        try:
            self._tell()
        except BaseException as error:
            self._stopped = error
            return 1
        return 0

    def _tell(self) -> None:
        """Tell the watch of the share of rows that has been read, in bytes of the file."""
        self._watch(self._size * min(self._rows, self._expected) // max(self._expected, 1), self._size)

    def _columns(self) -> dict[str, frozenset[str]]:
        """The columns of each ordinary table; a view or a virtual table may run anything."""
        found = {}
        for name, sql in self._all("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            if (
                isinstance(name, str)
                and isinstance(sql, str)
                and sql[:13].upper() == "CREATE TABLE "
                and '"' not in name
            ):
                found[name] = frozenset(str(row[1]) for row in self._all(f'PRAGMA table_info("{name}")'))
        return found

    def _all(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query, a part of them at once."""
        try:
            cursor = self._base.execute(sql)
            while rows := cursor.fetchmany(_AT_ONCE):
                self._rows += len(rows)
                if self._rows > MOST_ROWS:
                    raise TooLarge("rows")
                self._tell()
                yield from rows
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if self._stopped is not None:
                raise self._stopped from None
            if isinstance(error, UnicodeDecodeError):  # of SQLite's own message, or of a name that is none
                raise Damaged("a name in it is no text") from None
            raise

    def select(
        self, table: str, needed: Sequence[str], more: Sequence[str] = (), where: str = "TRUE"
    ) -> Iterator[tuple[Any, ...]]:
        """The named columns of a table; None for one of `more` that it lacks. Nothing without the table. Raises
        `Damaged`, `TooLarge`, `sqlite3.Error` and what the watch raises."""
        has = self.tables.get(table)
        if has is None:
            return iter(())
        if missing := [column for column in needed if column not in has]:
            raise Damaged(f"{table} has no {missing[0]}")
        columns = [f'"{column}"' if column in has else "NULL" for column in (*needed, *more)]
        return self._all(f'SELECT {", ".join(columns)} FROM "{table}" WHERE {where}')

    def _most_rows(self, table: str) -> int:
        """The last number of a row, which is quick to find."""
        if table not in self.tables:
            return 0
        found = [row[0] for row in self._all(f'SELECT rowid FROM "{table}" ORDER BY rowid DESC LIMIT 1')]
        return found[0] if found and 0 < found[0] < MOST_ROWS else 0


def _allowed(action: int, what: str | None, _more: str | None, _base: str | None, _inner: str | None) -> int:
    """SQLite's question before a statement: reading tables and their columns' names is all there is."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_PRAGMA and what == "table_info" else sqlite3.SQLITE_DENY


MAGIC = b"SQLite format 3\0"
_LARGEST = 2**61
"""No time of a trace is larger, in ns."""
_NEVER = _LARGEST
_PID = 0xFFFFFF
_MOST_STRINGS = 5_000_000
_WAIT_S = 0.1

_PUSHED = (59, 60, 70, 71)
"""Event types of ranges: push-pop and start-end, and the same from NVTX text files."""
_DOMAIN = 75
_LAUNCHES = ("Launch", "Memcpy", "Memset", "memcpy", "memset")
_COPIES = {
    0: "Unknown", 1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host", 5: "Array-to-Array",
    6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device", 9: "Host-to-Host", 10: "Peer-to-Peer",
    11: "Unified Host-to-Device", 12: "Unified Device-to-Host", 13: "Unified Device-to-Device",
}  # fmt: skip

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_OPERATIONS = ((_KERNELS, KERNEL), ("CUPTI_ACTIVITY_KIND_MEMCPY", COPY), ("CUPTI_ACTIVITY_KIND_MEMSET", FILL))
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_ALL = ("StringIds", *(table for table, _ in _OPERATIONS), *_CALLS, "NVTX_EVENTS", "NVTX_EVENTS")
"""Tables in the order of reading."""


def recognises(head: bytes) -> bool:
    """True for an SQLite database."""
    return head.startswith(MAGIC)


def read(path: Path, opening: Opening, name: str) -> tuple[Recorded, ...]:
    """A cell for each device of each process, by the report's SQLite export. Raises `RecordingError` or
    `OpeningCancelled`."""
    with open_regular(path) as file:
        head = file.read(len(MAGIC))
    if recognises(head):
        return _read_export(path, path, opening, name)
    if head.startswith(b"\x1f\x8b"):
        raise RecordingError(path, "compressed: nsys reports are opened unpacked")
    if (nsys := shutil.which("nsys")) is None:
        raise RecordingError(
            path, "needs nsys, which is not on PATH; where it is: nsys export --type sqlite, and open the .sqlite"
        )
    with tempfile.TemporaryDirectory(prefix="cs336-tui-") as folder:
        made = Path(folder) / "report.sqlite"
        _export(nsys, path, made, opening.watch)
        return _read_export(made, path, opening, name)


def _export(nsys: str, path: Path, made: Path, watch: recording.Watch) -> None:
    """Let nsys write the SQLite file `made`. It and what it starts end with the reading."""
    options = ("--type=sqlite", "--force-overwrite=true", f"--output={made}")  # long ones take “=”, as its guide says
    command = [nsys, "export", *options, str(path.absolute())]
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                watch(made.stat().st_size if made.exists() else 0, 0)
                time.sleep(_WAIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0 and made.exists():
            return
        told.seek(max(told.seek(0, 2) - 4096, 0))
        lines = told.read().decode(errors="replace").split("\n")
    why = next((line.strip() for line in reversed(lines) if line.strip()), f"status {process.returncode}")
    raise RecordingError(path, f"nsys export could not read it: {why[:300]}")


def _read_export(database: Path, path: Path, opening: Opening, name: str) -> tuple[Recorded, ...]:
    try:
        with closing(Database(database, opening.watch, _ALL)) as base:
            traces, graphs = _Export(base).traces()
    except sqlite3.Error as error:
        raise RecordingError(path, f"damaged: {error}") from None
    if traces is None:
        raise RecordingError(path, "an SQLite database, but no export of nsys: it has none of its tables")
    note = (
        f"{counted(graphs, 'launch', ',')} of CUDA graphs not taken apart; record with --cuda-graph-trace=node"
        if graphs
        else ""
    )
    found = {process: trace for process, trace in traces.items() if KERNEL in trace.kernel_kind}
    if not found:
        raise RecordingError(path, note or "no kernel of a GPU in it; record with nsys profile --trace=cuda,nvtx")
    cells = []
    for process, trace in sorted(found.items()):
        of_process = name if len(found) == 1 else f"{name}, process {process & _PID}"
        for cell in reports_of(trace, of_process, str(path), opening):
            notes = "; ".join(filter(None, (cell.report.note, note)))
            cells.append(replace(cell, report=replace(cell.report, note=notes)))
    return tuple(cells)


class _Export:
    """An export of nsys: its tables, and what they come to."""

    def __init__(self, base: Database) -> None:
        self._base = base
        self._strings: dict[int, str] = {}
        self._traces: dict[int, Trace] = {}

    def traces(self) -> tuple[dict[int, Trace] | None, int]:
        """The trace of each process by its id, None without any of nsys' tables; launches of graphs as a whole."""
        if self._base.tables.keys().isdisjoint((*_ALL[1:], _GRAPHS)):
            return None, 0
        self._read_strings()
        for table, kind in _OPERATIONS:
            self._read_operations(table, kind)
        if any(KERNEL in trace.kernel_kind for trace in self._traces.values()):
            for table in _CALLS:
                self._read_calls(table)
            self._read_ranges()
            self._read_devices()
        return self._traces, sum(1 for _ in self._base.select(_GRAPHS, ("start",)))

    def _read_strings(self) -> None:
        length = 0
        for id_, value in self._base.select("StringIds", ("id", "value")):
            if isinstance(id_, int) and isinstance(value, str):
                self._strings[id_] = value
                length += len(value)
            if len(self._strings) > _MOST_STRINGS or length > 1 << 28:
                raise TooLarge("names")

    def _text(self, *found: object) -> str:
        """The first that is a text, or the id of one."""
        for each in found:
            text = self._strings.get(each, "") if isinstance(each, int) else each
            if isinstance(text, str) and text:
                return text
        return ""

    def _read_operations(self, table: str, kind: int) -> None:
        """Kernels, copies or fills."""
        names = {KERNEL: ("demangledName", "shortName", "name", "mangledName"), COPY: ("copyKind",), FILL: ()}[kind]
        labels = self._copies() if kind == COPY else {}
        more = ("deviceId", "streamId", "correlationId", "globalPid", *names)
        for begin, end, device, stream, correlation, pid, *named in self._base.select(table, ("start", "end"), more):
            if kind == KERNEL:
                name = self._text(*named) or "(unnamed kernel)"
            else:
                name = f"[CUDA memcpy {labels.get(named[0], 'Unknown')}]" if kind == COPY else "[CUDA memset]"
            began = _time(begin)
            self._trace(pid).add_kernel(
                name, began, max(_time(end) - began, 0), device=_number(device), stream=_number(stream),
                correlation=_correlation(correlation), kind=kind,
            )  # fmt: skip

    def _copies(self) -> dict[Any, str]:
        found: dict[Any, str] = dict(_COPIES)
        for id_, label in self._base.select("ENUM_CUDA_MEMCPY_OPER", ("id",), ("label",)):
            if isinstance(label, str) and len(label) < 100:
                found[id_] = label
        return found

    def _trace(self, global_pid: object) -> Trace:
        """The trace of the process of a ``globalPid``; of 0 where the version has none."""
        process = global_pid >> 24 if isinstance(global_pid, int) else 0
        if process not in self._traces:
            if len(self._traces) >= 10_000:
                raise TooLarge("processes")
            self._traces[process] = Trace()
        return self._traces[process]

    def _read_calls(self, table: str) -> None:
        """Calls that launch something."""
        launches = {id_ for id_, name in self._strings.items() if any(each in name for each in _LAUNCHES)}
        has_names = "nameId" in self._base.tables.get(table, ())
        rows = self._base.select(table, ("start", "correlationId"), ("globalTid", "nameId"))
        for begin, correlation, tid, name in rows:
            trace, thread, _ = self._thread(tid)
            if trace is not None and isinstance(correlation, int) and (not has_names or name in launches):
                trace.add_call(_correlation(correlation), thread, _time(begin))

    def _read_ranges(self) -> None:
        """NVTX's ranges: torch's ``emit_nvtx`` names operators and autograd's nodes, all others are the user's."""
        columns = ("end", "eventType", "text", "textId", "globalTid", "domainId")
        has_kinds = "eventType" in self._base.tables.get("NVTX_EVENTS", ())
        domains = self._base.select("NVTX_EVENTS", ("start",), columns, f"eventType = {_DOMAIN}") if has_kinds else ()
        libraries = {
            (self._thread(tid)[2], domain)
            for _, _, _, text, id_, tid, domain in domains
            if domain is not None and self._text(text, id_).casefold() in recording.OF_LIBRARIES
        }
        for begin, end, kind, text, id_, tid, domain in self._base.select("NVTX_EVENTS", ("start",), columns):
            trace, thread, process = self._thread(tid)
            is_range = kind in _PUSHED or (kind is None and end is not None)
            if trace is None or not is_range or (libraries and (process, domain) in libraries):
                continue
            if name := self._text(text, id_):
                bare, of_torch, sequence, node = recording.read_range(name)
                ended = _NEVER if end is None else _time(end)  # a range that was open when recording ended
                trace.add_span(bare, thread, _time(begin), ended, OPERATOR if of_torch else USER_RANGE)
                if sequence >= 0:
                    trace.add_node(sequence, 1 if node else 0)

    def _read_devices(self) -> None:
        columns = ("name", "totalMemory", "computeMajor", "computeMinor")
        gpus = {id_: DeviceFacts.of(*facts) for id_, *facts in self._base.select("TARGET_INFO_GPU", ("id",), columns)}
        placed = {
            (pid, cuda): gpu
            for gpu, cuda, pid in self._base.select("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId"), ("pid",))
        }
        by_cuda = {cuda: gpu for (_, cuda), gpu in placed.items()}
        for process, trace in self._traces.items():
            for device in {*trace.kernel_device}:
                gpu = placed.get((process & _PID, device), by_cuda.get(device, device))
                if gpu in gpus:
                    trace.devices[device] = gpus[gpu]

    def _thread(self, global_tid: object) -> tuple[Trace | None, int, int | None]:
        """Of a ``globalTid`` the trace of its process, None if that ran no kernel, its number there, the process."""
        process = global_tid >> 24 if isinstance(global_tid, int) else None
        only = self._traces.get(0) if len(self._traces) == 1 else None  # no kernel has a process
        trace = only or (None if process is None else self._traces.get(process))
        return trace, trace.thread_id(global_tid) if trace else -1, process


def _time(value: object) -> int:
    if not isinstance(value, int) or not -_LARGEST < value < _LARGEST:
        raise Damaged("a time is no number of nanoseconds")
    return value


def _number(value: object) -> int:
    """The number of a device or stream; 0 if it is missing."""
    return value if isinstance(value, int) and 0 <= value < 2**31 else 0


def _correlation(value: object) -> int:
    """The number that joins a call and its kernel; -1 if it is missing."""
    return value if isinstance(value, int) and 0 < value < _LARGEST else -1
