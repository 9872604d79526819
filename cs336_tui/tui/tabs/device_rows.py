"""A row for each GPU of the machine, or where cells run side by side for each of their GPUs or lanes, with its cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from cs336_tui.analysis.gpu_words import Numbered, doubtful_reasons
from cs336_tui.events.environment import GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState, LaneState
from cs336_tui.tui import format
from cs336_tui.tui.tabs import status
from cs336_tui.tui.widgets.columns import middle
from cs336_tui.tui.widgets.lines import Line, line

T = TypeVar("T")
_FOLLOWED = "▸"
_ASIDE = "off"
_ROOMY = 36
"""Columns from which on headings are whole words."""


class DeviceRow(NamedTuple):
    """A GPU or a lane, with the cell that it runs and that cell's newest sample."""

    name: str
    machine: str
    cell: CellState | None = None
    rank: int = 0
    sample: DeviceSampled | None = None
    is_aside: bool = False

    @property
    def gpu(self) -> GpuSample | None:
        """The GPU of this rank of the cell."""
        gpus = (self.sample.gpu, *self.sample.other_gpus) if self.sample else ()
        return gpus[self.rank] if self.rank < len(gpus) else None


def sample_of(state: SessionState, cell: CellState) -> DeviceSampled | None:
    """The newest sample of a cell; of one that is over its last, as far as samples are kept."""
    if found := state.samples.get(cell.cell):
        return found
    if not cell.is_over:
        return None
    return next((sample for sample, number in reversed(state.devices) if number == cell.cell), None)


def device_rows(state: SessionState) -> list[DeviceRow]:
    """A row for each lane, of lanes in jobs for those that run a cell, then for each rank of the other cells."""
    lanes = [_of_lane(state, lane) for lane in state.lanes.values() if lane.cell is not None or not state.jobs]
    alone = (state.cells[number] for number in state.running if not state.cells[number].lanes)
    return [*lanes, *(_of_rank(state, cell, rank) for cell in alone for rank in range(cell.spec.ranks))]


def rows_round(at: int, rows: Sequence[T], most: int) -> Sequence[T]:
    """The rows; if there are more than so many those round a place, one fewer, which leaves a line to count the
    others."""
    room = len(rows) if len(rows) <= most else max(most - 1, 1)
    first = min(max(at - room // 2, 0), len(rows) - room)
    return rows[first : first + room]


def _of_lane(state: SessionState, place: LaneState) -> DeviceRow:
    lane, cell = place.lane, state.cells.get(-1 if place.cell is None else place.cell)
    _, _, index = lane.device.partition(":")
    machine = lane.machine or (status.node_of(state, cell) if cell else "")
    rank = cell.lanes.index(lane.lane) if cell and lane.lane in cell.lanes else 0
    sample = state.samples.get(cell.cell) if cell else None
    return DeviceRow(index or str(lane.lane), machine, cell, rank, sample, place.set_aside is not None)


def _of_rank(state: SessionState, cell: CellState, rank: int) -> DeviceRow:
    _, _, index = cell.spec.device.partition(":")
    node = status.node_of(state, cell) if index else ""  # a process on a CPU is named by its job
    name = str(int(index) + rank) if index else status.job_of(state, cell)
    return DeviceRow(name, node, cell, rank, state.samples.get(cell.cell))


class _Figure(msgspec.Struct, frozen=True):
    title: str
    texts: Sequence[str]
    rank: int = 0
    """The column of the highest rank is dropped first; 0 stays."""
    least: int = 0
    """So many characters it may have at any time: rows must not move."""

    @property
    def width(self) -> int:
        return max(len(self.title), self.least, *map(len, self.texts)) + 1


def table(rows: Sequence[DeviceRow], followed: CellState | None, width: int, more: int = 0) -> list[Line]:
    """A heading, a row for each device, and how many `more` there are; ``▸`` marks the followed cell's, ``!`` a GPU
    with lower clocks."""
    several = len({row.machine for row in rows}) > 1
    names = [f"{row.machine}:{row.name}" if several and row.machine else row.name for row in rows]
    on_gpus = any(row.gpu for row in rows)
    title = "GPU" if on_gpus else "lane" if any(row.cell is None or row.cell.lanes for row in rows) else "job"
    figures = _of_gpus([row.gpu or GpuSample() for row in rows]) if on_gpus else _of_processes(rows)
    figures.append(_Figure("cell", [_cell(row) for row in rows]))
    looks: list[_Look] = []
    for row, name in zip(rows, names, strict=True):
        is_followed = followed is not None and row.cell is followed
        limited = bool(row.gpu and doubtful_reasons(row.gpu))
        role = "muted" if row.cell is None else "caution" if limited else "strong" if is_followed else "text"
        looks.append(_Look(name, role, is_followed, limited))
    return _laid_out(title, looks, figures, width, more)


def table_of_gpus(gpus: Sequence[Numbered], shown: str | None, used: str | None, width: int, most: int) -> list[Line]:
    """A heading and a row for each GPU of the machine, at most so many; ``▸`` marks the shown one's, ``!`` one whose
    clocks are lower than they should be. `shown` and `used`, by the benchmark, are UUIDs; processes are others'."""
    at = next((n for n, each in enumerate(gpus) if each.gpu.uuid == shown), 0)
    rows, looks = rows_round(at, gpus, most), list[_Look]()
    for number, _, gpu in rows:
        limited = bool(doubtful_reasons(gpu))
        role = "caution" if limited else "strong" if gpu.uuid == used else "text"
        looks.append(_Look(number, role, gpu.uuid == shown, limited))
    found = [each.gpu for each in rows]
    others = [None if gpu.other_processes is None else len(gpu.other_processes) for gpu in found]
    figures = [
        *_of_gpus(found),
        _Figure("MHz", _whole([gpu.sm_clock_mhz for gpu in found]), 4, 4),
        _Figure("processes" if width >= _ROOMY else "pr", _whole(others), 5),
    ]
    return _laid_out("GPU", looks, figures, width, len(gpus) - len(rows))


class _Look(NamedTuple):
    """The beginning of a row, and its role."""

    name: str
    role: str
    is_marked: bool
    is_doubtful: bool


def _laid_out(title: str, rows: Sequence[_Look], figures: list[_Figure], width: int, more: int) -> list[Line]:
    wanted = max(len(title) - 2, *(len(row.name) for row in rows))  # the title stands over the marks, too
    while (room := width - 2 - sum(figure.width for figure in figures)) < wanted and any(f.rank for f in figures):
        figures.remove(max(figures, key=lambda figure: figure.rank))
    room = min(max(room, 3), wanted)
    found = [line((f"{title:<{room + 2}}" + "".join(f"{f.title:>{f.width}}" for f in figures), "muted"))]
    for at, (name, role, is_marked, is_doubtful) in enumerate(rows):
        texts = "".join(f"{figure.texts[at]:>{figure.width}}" for figure in figures)
        mark, doubt = _FOLLOWED if is_marked else " ", "!" if is_doubtful else " "
        found.append(line((f"{mark}{middle(name, room):>{room}}{doubt}{texts}", role)))
    return [*found, *([line((f"and {more} more", "muted"))] if more else [])]


def _cell(row: DeviceRow) -> str:
    if row.cell is not None:
        return str(status.number(row.cell))
    return _ASIDE if row.is_aside else "–"


def _whole(values: Sequence[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:.0f}" for value in values]


def _of_gpus(gpus: Sequence[GpuSample]) -> list[_Figure]:
    used = [None if gpu.memory_used_bytes is None else gpu.memory_used_bytes / format.GB for gpu in gpus]
    busy = [None if gpu.utilisation is None else gpu.utilisation * 100 for gpu in gpus]
    return [
        _Figure("GB", ["–" if size is None else f"{size:.{int(size < 100)}f}" for size in used], 0, 4),
        _Figure("%", _whole(busy), 1, 3),
        _Figure("W", _whole([gpu.power_w for gpu in gpus]), 2, 3),
        _Figure("°C", _whole([gpu.temperature_c for gpu in gpus]), 3, 2),
    ]


def _of_processes(rows: Sequence[DeviceRow]) -> list[_Figure]:
    sizes, cores = list[str](), list[str]()
    for row in rows:
        host = row.sample.host if row.sample else HostSample()
        rank = host.ranks[row.rank] if row.rank < len(host.ranks) else None
        size, used = (rank.rss_bytes, rank.cores) if rank else (host.child_rss_bytes, host.child_cores)
        sizes.append("–" if size is None else f"{size / format.GB:.2f}")
        cores.append("–" if used is None else f"{used:.2f}")
    return [_Figure("RSS GB", sizes), _Figure("cores", cores, 1)]
