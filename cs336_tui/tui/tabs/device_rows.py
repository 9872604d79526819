"""The devices of cells that run side by side: a row for each GPU, or for each lane on a CPU, with its cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336_tui.events.events import DeviceSampled, GpuSample
from cs336_tui.session.cell_state import CellState
from cs336_tui.session.state import LaneState, SessionState
from cs336_tui.tui import format
from cs336_tui.tui.tabs import beside, status
from cs336_tui.tui.widgets.columns import middle
from cs336_tui.tui.widgets.lines import Line, line

_FOLLOWED = "▸"
_ASIDE = "off"


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
        return gpu_of(self.sample, self.rank) if self.sample else None


def gpu_of(sample: DeviceSampled, rank: int) -> GpuSample | None:
    """The GPU of a rank of the cell that a sample is about."""
    gpus = (sample.gpu, *sample.other_gpus)
    return gpus[rank] if rank < len(gpus) else None


def sample_of(state: SessionState, cell: CellState) -> DeviceSampled | None:
    """The newest sample of a cell; of one that is over its last, as far as samples are kept."""
    if found := state.samples.get(cell.cell):
        return found
    if not cell.is_over:
        return None
    return next((sample for sample, number in reversed(state.devices) if number == cell.cell), None)


def device_rows(state: SessionState) -> list[DeviceRow]:
    """A row for each lane, of lanes in jobs for those that run a cell, then for each rank of the other cells."""
    lanes = [lane for lane in state.lanes.values() if lane.cell is not None or not state.jobs]
    return [*(_of_lane(state, lane) for lane in lanes), *_without_lanes(state)]


def _of_lane(state: SessionState, lane: LaneState) -> DeviceRow:
    _, _, index = lane.lane.device.partition(":")
    row = DeviceRow(index or str(lane.lane.lane), lane.lane.machine, is_aside=lane.set_aside is not None)
    cell = state.cells.get(-1 if lane.cell is None else lane.cell)
    if cell is None:
        return row
    rank = cell.lanes.index(lane.lane.lane) if lane.lane.lane in cell.lanes else 0
    machine = row.machine or beside.node_of(state, cell)
    return row._replace(cell=cell, rank=rank, sample=state.samples.get(cell.cell), machine=machine)


def _without_lanes(state: SessionState) -> Iterator[DeviceRow]:
    for cell in state.running_cells:
        _, _, index = cell.spec.device.partition(":")
        node = beside.node_of(state, cell) if index else ""  # a process on a CPU is named by its job
        for rank in range(0 if cell.lanes else cell.spec.ranks):
            name = str(int(index) + rank) if index else beside.job_of(state, cell)
            yield DeviceRow(name, node, cell, rank, state.samples.get(cell.cell))


class _Figure(NamedTuple):
    title: str
    texts: Sequence[str]
    rank: int = 0
    """The column of the highest rank is dropped first; 0 stays."""
    least: int = 0
    """So many characters it may have at any time: rows must not move."""

    @property
    def width(self) -> int:
        return max(len(self.title), self.least, *map(len, self.texts)) + 1


def table(rows: Sequence[DeviceRow], followed: CellState | None, width: int, height: int) -> list[Line]:
    """A heading and a row for each device, at most `height` in all; ``▸`` marks the followed cell's, ``!`` a GPU with
    lower clocks."""
    several = len({row.machine for row in rows}) > 1
    names = [f"{row.machine}:{row.name}" if several and row.machine else row.name for row in rows]
    on_gpus = any(row.gpu for row in rows)
    title = "GPU" if on_gpus else "lane" if any(row.cell is None or row.cell.lanes for row in rows) else "job"
    figures = _of_gpus(rows) if on_gpus else _of_processes(rows)
    figures.append(_Figure("cell", [_cell(row) for row in rows]))
    wanted = max(len(title) - 2, *map(len, names))  # the title stands over the marks, too
    while (room := width - 2 - sum(figure.width for figure in figures)) < wanted and any(f.rank for f in figures):
        figures.remove(max(figures, key=lambda figure: figure.rank))
    room = min(max(room, 3), wanted)
    found = [line((f"{title:<{room + 2}}" + "".join(f"{f.title:>{f.width}}" for f in figures), "muted"))]
    for at, (row, name) in enumerate(zip(rows, names, strict=True)):
        if len(found) == height - 1 and len(rows) > height - 1:
            return [*found, line((f"and {len(rows) - at} more", "muted"))]
        is_followed = followed is not None and row.cell is followed
        limited = bool(row.gpu and row.gpu.clock_reasons)
        role = "muted" if row.cell is None else "caution" if limited else "strong" if is_followed else "text"
        texts = "".join(f"{figure.texts[at]:>{figure.width}}" for figure in figures)
        mark = _FOLLOWED if is_followed else " "
        found.append(line((f"{mark}{middle(name, room):>{room}}{'!' if limited else ' '}{texts}", role)))
    return found


def _cell(row: DeviceRow) -> str:
    if row.cell is not None:
        return str(status.number(row.cell))
    return _ASIDE if row.is_aside else "–"


def _of_gpus(rows: Sequence[DeviceRow]) -> list[_Figure]:
    gpus = [row.gpu or GpuSample() for row in rows]

    def texts(values: Sequence[float | None]) -> list[str]:
        return ["–" if value is None else f"{value:.0f}" for value in values]

    used = [None if gpu.memory_used_bytes is None else gpu.memory_used_bytes / format.GB for gpu in gpus]
    busy = [None if gpu.utilisation is None else gpu.utilisation * 100 for gpu in gpus]
    return [
        _Figure("GB", ["–" if size is None else f"{size:.{int(size < 100)}f}" for size in used], 0, 4),
        _Figure("%", texts(busy), 1, 3),
        _Figure("W", texts([gpu.power_w for gpu in gpus]), 2, 3),
        _Figure("°C", texts([gpu.temperature_c for gpu in gpus]), 3, 2),
    ]


def _of_processes(rows: Sequence[DeviceRow]) -> list[_Figure]:
    hosts = [row.sample.host if row.sample else None for row in rows]
    ranks = [host.ranks[row.rank] if host and row.rank < len(host.ranks) else None
             for host, row in zip(hosts, rows, strict=True)]  # fmt: skip
    rss = [rank.rss_bytes if rank else host.child_rss_bytes if host else None
           for rank, host in zip(ranks, hosts, strict=True)]  # fmt: skip
    cores = [rank.cores if rank else host.child_cores if host else None
             for rank, host in zip(ranks, hosts, strict=True)]  # fmt: skip
    return [
        _Figure("RSS GB", ["–" if size is None else f"{size / format.GB:.2f}" for size in rss]),
        _Figure("cores", ["–" if used is None else f"{used:.2f}" for used in cores], 1),
    ]
