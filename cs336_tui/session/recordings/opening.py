"""Opens recordings that others made: knows each file by its content, writes a session with a cell for each device."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from cs336_tui import __version__
from cs336_tui.config.reading import open_regular
from cs336_tui.config.spec import CellSpec, canonical_device
from cs336_tui.events import events as ev
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.reports import REPORTS, ReportKind
from cs336_tui.session.log import SessionLog, new_session_id
from cs336_tui.session.recordings.recording import Opening, Recorded, RecordingError

_HEAD = 1 << 16


class _Format(NamedTuple):
    """A kind of file that can be opened. The module of this folder has `read`, and `recognises` a beginning; a name
    that ends so does, too."""

    module: str
    what: str
    endings: tuple[str, ...] = ()


FORMATS: tuple[_Format, ...] = (
    _Format("snapshot", "CUDA memory snapshots (.pickle)"),
    _Format("nsys", "nsys reports (.nsys-rep, .sqlite)", (".nsys-rep", ".qdrep")),
    _Format("nsys_stats", "CSV of nsys stats (cuda_gpu_trace, cuda_gpu_kern_sum)"),
    _Format("chrome", "torch profiler traces (.json, .json.gz)"),
)
"""In the order in which they are tried."""


def open_recordings(paths: Sequence[Path], session_dir: Path, opening: Opening) -> Path:
    """Read the files and write a session of theirs into the folder; its log. Raises `RecordingError`, `LogError`,
    `OpeningCancelled`; then there is no new session."""
    cells = [cell for path, name in zip(paths, names_of(paths), strict=True) for cell in read(path, name, opening)]
    size = sum(path.stat().st_size for path in paths)
    opening.watch(size, size)  # the last moment to stop
    session = new_session_id()
    with closing(SessionLog(session_dir / f"{session}.jsonl")) as log:
        log.write(_events(session, named(paths), _told_apart(cells)))
        return log.path


def read(path: Path, name: str, opening: Opening) -> tuple[Recorded, ...]:
    """The cells of one file. Raises `RecordingError` or `OpeningCancelled`."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
        if not head:
            raise RecordingError(path, "empty")
        plain = _inflated(head)
        for format_ in FORMATS:
            module = import_module(f"cs336_tui.session.recordings.{format_.module}")
            if module.recognises(plain) or path.name.lower().endswith(format_.endings or ("\0",)):
                found: tuple[Recorded, ...] = module.read(path, opening, name)
                return found
    except OSError as error:
        raise RecordingError(path, (error.strerror or str(error)).lower()) from None
    raise RecordingError(path, f"no recording; what can be opened: {', '.join(each.what for each in FORMATS)}")


def _inflated(head: bytes) -> bytes:
    """The beginning of a file, decompressed if it is gzip; empty if it is broken gzip."""
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        return zlib.decompressobj(31).decompress(head, _HEAD)
    except zlib.error:
        return b""


def names_of(paths: Sequence[Path]) -> list[str]:
    """The files' names, with so much of their folders that each differs from the others."""
    names = [path.name for path in paths]
    depth = 1
    while len({*names}) < len({*map(str, paths)}) and depth < max(len(path.absolute().parts) for path in paths):
        depth += 1
        names = ["/".join(path.absolute().parts[-depth:]) for path in paths]
    return names


def named(paths: Sequence[Path]) -> str:
    """The name of a session of these files."""
    more = len(paths) - 1
    return paths[0].name + (f" and {more} more" if more else "")


def _told_apart(cells: Sequence[Recorded]) -> list[Recorded]:
    """The cells, each once by name, device and kind of report: of equal ones the later gets a number."""
    import msgspec

    taken: dict[tuple[str, str, type], int] = {}
    found = []
    for cell in cells:
        key = cell.name, cell.device, type(cell.report)
        taken[key] = taken.get(key, 0) + 1
        if taken[key] > 1:
            name = f"{cell.name} ({taken[key]})"
            spec = msgspec.structs.replace(cell.report.spec, recording=name)
            cell = msgspec.structs.replace(cell, name=name, report=msgspec.structs.replace(cell.report, spec=spec))
        found.append(cell)
    return found


def _events(session: str, name: str, cells: Sequence[Recorded]) -> Iterator[ev.Event]:
    at = time.time()
    by_spec: dict[CellSpec, list[Recorded]] = {}
    for cell in cells:
        by_spec.setdefault(cell.report.spec, []).append(cell)
    places = {spec: number for number, spec in enumerate(by_spec)}
    yield ev.SessionStarted(at=at, schema=ev.SCHEMA, session=session, app=__version__)
    yield ev.SessionAnnotated(at=at, name=name)
    for spec, number in places.items():
        yield ev.EnvironmentRead(at=at, environment=_environment(spec, by_spec[spec]))
        yield ev.CellsQueued(at=at, first=number, specs=(spec,))
        yield ev.CellStarted(at=at, cell=number)
        yield ev.CellFinished(at=at, cell=number, status="ok")
    for number, cell in enumerate(cells):
        place = places[cell.report.spec]
        yield ev.ReportStarted(at=at, report=number, kind=_kind(cell), spec=cell.report.spec, cell=place)
        yield ev.ReportFinished(at=at, report=number, status="ok", content=cell.report)
    yield ev.SessionEnded(at=at, reason="finished")


def _kind(cell: Recorded) -> ReportKind:
    kinds: list[ReportKind] = ["kernels", "memory"]
    return next(kind for kind in kinds if isinstance(cell.report, REPORTS[kind].content or ()))


def _environment(spec: CellSpec, cells: Sequence[Recorded]) -> Environment:
    """The machine of a cell as far as its recording tells."""

    def first(read: Callable[[Recorded], str | None]) -> str | None:
        return next(filter(None, map(read, cells)), None)

    label = first(lambda each: each.device_label)
    device = DeviceInfo(
        name=canonical_device(spec.device),
        label=label or "",
        precisions=(),
        memory_bytes=next((each.memory_bytes for each in cells if each.memory_bytes), None),
        capability=first(lambda each: each.capability),
    )
    return Environment(
        host=first(lambda each: each.host) or "",
        os="",
        cpu="",
        cpu_count=0,
        memory_bytes=0,
        python="",
        app=__version__,
        torch=first(lambda each: each.torch),
        devices=(device,) if label else (),
    )
