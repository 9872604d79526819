"""Opens recordings that others made: knows each file by its content, writes a session with a cell for each device.

Types that all readers share: the result, its progress, its error. Names of ranges: the phases that they tell, and in
NVTX those of torch's ``emit_nvtx``, of libraries and of users.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import msgspec

from cs336_tui import __version__
from cs336_tui.config.axis import UserError
from cs336_tui.config.reading import open_regular
from cs336_tui.config.spec import CellSpec, canonical_device, recorded_spec
from cs336_tui.events import events as ev
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import MemoryReport, ReportKind
from cs336_tui.session.log import SessionLog, new_session_id
from cs336_tui.stats.quantities import named

INFLATED = 1 << 28
"""Bytes that any gzipped file may hold."""


class RecordingError(UserError):
    """A file that cannot be read as a recording: damaged, cut, too large or none at all; one line says so."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")


class TooLarge(Exception):
    """A file has more than memory should hold; the text says of what."""

    def __init__(self, what: str) -> None:
        super().__init__(f"too large to be read: more {what} than there is room for")


class Damaged(Exception):
    """A value that cannot be; the text says which."""

    def __init__(self, why: str) -> None:
        super().__init__(f"damaged: {why}")


def most_inflated(size: int, most: int) -> int:
    """The most bytes, `most` at any rate, to which a gzipped file of `size` bytes is decompressed: traces shrink to a
    tenth or so, and what shrinks to less than a 300th is made to fill memory."""
    return min(max(300 * size, INFLATED), most)


def check_time(total_ns: float) -> None:
    """Raises `Damaged` if all times together are so long that a sum of them could overflow."""
    if total_ns > 2**61:
        raise Damaged("its times together are longer than a century")


class OpeningCancelled(Exception):
    """Reading was stopped by the person who asked for it."""


Watch = Callable[[int, int], object]
"""Told of progress in bytes of the file, those that are done and all, 0 if unknown; raises `OpeningCancelled` to
stop."""


class DeviceFacts(NamedTuple):
    """Facts of one device in a recording."""

    label: str = ""
    """Such as ``NVIDIA H100 80GB HBM3``; empty if unknown."""
    memory_bytes: int | None = None
    """All memory of the device."""
    capability: str | None = None
    """CUDA compute capability, such as ``9.0``."""

    @classmethod
    def of(cls, name: object, memory: object, major: object, minor: object) -> DeviceFacts:
        """From the values of a file, which may be anything."""
        return cls(
            label=name if isinstance(name, str) else "",
            memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
            capability=f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) and major else None,
        )


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a recording: what one device of one process did."""

    report: KernelReport | MemoryReport
    """Of a spec whose `recording` is the file's name, with the rank if there is one: ``trace.json.gz, rank 1``."""
    facts: DeviceFacts = DeviceFacts()
    torch: str = ""
    host: str = ""


class Opening(NamedTuple):
    """Options for reading a file."""

    watch: Watch = lambda _done, _total: None
    phases: Mapping[str, tuple[str, ...]] = {}
    """Names of ranges, beside the usual ones, that are a phase, by the phase."""


def header(name: str, device: str, label: str, torch: str) -> dict[str, object]:
    """The fields that begin every report: its spec, its device, torch's version."""
    return {"spec": recorded_spec(name, device), "device_name": label or device, "torch": torch or "unknown"}


USUAL_PHASES: Mapping[str, tuple[str, ...]] = {
    "forward": ("forward", "fwd", "forward pass", "forward_pass", "forward step", "forward_step"),
    "loss": ("loss", "compute loss", "compute_loss"),
    "backward": ("backward", "bwd", "backward pass", "backward_pass", "backward step", "backward_step"),
    "zero_grad": ("zero_grad", "zero grad", "optimizer.zero_grad#*"),
    "optimizer": ("optimizer", "optim", "optimizer step", "optimizer_step", "optimizer.step", "optimizer.step#*"),
}  # fmt: skip
"""Names of ranges that are a phase, in the order of a step; capitals, ``#`` and ``phase/`` round them do not matter."""
OF_LIBRARIES = frozenset((
    "nccl", "cublas", "cublaslt", "cudnn", "cusolver", "cusparse", "cufft", "cccl", "cub", "thrust", "nvshmem", "dali",
))  # fmt: skip
"""Domains, in small letters, in which libraries name their own calls."""
_ADDED = (", op_id = ", ", seq = ", ", sizes = ", ", input_op_ids = ")
"""The addition of torch's ``emit_nvtx`` to a name."""
_SEQUENCE = re.compile(r", seq = (\d{1,18})\b")
_NODE = re.compile(r"autograd::engine::evaluate_function: .+|\w+Backward\d*")
_KNOWN_OPERATOR = re.compile(r"(?:aten|prims?|c10d?|torch|quantized|nccl)::\S+")


class PhaseError(UserError, ValueError):
    """A range that should be a phase, not written as PHASE=RANGE."""


def phases_of(given: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The ranges of each phase, from ``PHASE=RANGE``. Raises `PhaseError`."""
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        phase, _, range_ = text.partition("=")
        if not phase or not range_:
            raise PhaseError(f"--phase {text}: expected PHASE=RANGE, such as forward=model_fwd")
        found[phase] = (*found.get(phase, ()), range_)
    return found


def phase_finder(more: Mapping[str, tuple[str, ...]]) -> Callable[[str], str]:
    """Tells the phase that a range's name says, empty if none."""
    patterns = [
        (phase, pattern.casefold())
        for phase in dict.fromkeys((*more, *USUAL_PHASES))
        for pattern in (*more.get(phase, ()), *USUAL_PHASES.get(phase, ()))
    ]

    @cache
    def phase_of(name: str) -> str:
        bare = name.casefold().removeprefix("phase/")
        texts = (bare, bare.strip("# :-=<>[]"))
        return next((p for p, pattern in patterns if any(fnmatchcase(t, pattern) for t in texts)), "")

    return phase_of


def read_range(text: str) -> tuple[str, bool, int, bool]:
    """The name without what torch adds, True for one of torch, autograd's sequence or -1, True for a node."""
    at = text.find(", ")
    while at >= 0 and not text.startswith(_ADDED, at):
        at = text.find(", ", at + 1)
    bare = text if at < 0 else text[:at]
    of_torch, node = _of_torch(bare)
    sequence = _SEQUENCE.search(text, at) if of_torch and at >= 0 else None
    return bare, of_torch, int(sequence[1]) if sequence else -1, node


@lru_cache(maxsize=4096)
def _of_torch(name: str) -> tuple[bool, bool]:
    """True for an operator or a node of autograd, and for a node."""
    node = _NODE.fullmatch(name) is not None
    return node or _KNOWN_OPERATOR.fullmatch(name) is not None, node


_HEAD = 1 << 16


class _Format(NamedTuple):
    """A kind of file that can be opened. The module of this folder has `read`, which also raises `TooLarge` and
    `Damaged`, and `recognises` a beginning; a name that ends so does, too."""

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
        log.write(_events(session, named([path.name for path in paths], most=1), _told_apart(cells)))
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
    except (TooLarge, Damaged) as error:
        raise RecordingError(path, str(error)) from None
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


def _told_apart(cells: Sequence[Recorded]) -> list[Recorded]:
    """The cells, each once by name, device and kind of report: of equal ones the later gets a number."""
    taken: Counter[tuple[CellSpec, type]] = Counter()
    found = []
    for cell in cells:
        spec = cell.report.spec
        key = spec, type(cell.report)
        taken[key] += 1
        if taken[key] > 1:
            spec = msgspec.structs.replace(spec, recording=f"{spec.recording} ({taken[key]})")
            cell = msgspec.structs.replace(cell, report=msgspec.structs.replace(cell.report, spec=spec))
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
        kind: ReportKind = "kernels" if isinstance(cell.report, KernelReport) else "memory"
        yield ev.ReportStarted(at=at, report=number, kind=kind, spec=cell.report.spec, cell=place)
        yield ev.ReportFinished(at=at, report=number, status="ok", content=cell.report)
    yield ev.SessionEnded(at=at, reason="finished")


def _environment(spec: CellSpec, cells: Sequence[Recorded]) -> Environment:
    """The machine of a cell as far as its recording tells."""
    facts = next((cell.facts for cell in cells if cell.facts.label), DeviceFacts())
    device = DeviceInfo(name=canonical_device(spec.device), precisions=(), **facts._asdict())
    return Environment(
        host=next((cell.host for cell in cells if cell.host), ""),
        os="",
        cpu="",
        cpu_count=0,
        memory_bytes=0,
        python="",
        app=__version__,
        torch=next((cell.torch for cell in cells if cell.torch), None),
        devices=(device,) if facts.label else (),
    )
