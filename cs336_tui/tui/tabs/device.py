"""The Device pane: figures of the GPU (from NVML) and the host, and their history during the cells."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cs336_tui.analysis.gpu_words import APPLE, Figure, Numbered, doubtful_reasons, notes, numbered
from cs336_tui.analysis.gpu_words import figures as figures_of
from cs336_tui.events.environment import GpuSample, HostSample, RankSample
from cs336_tui.events.events import DeviceSampled
from cs336_tui.export.writing.tables import known
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats import quantities
from cs336_tui.tui import format
from cs336_tui.tui.charts.bars import graph, marks, nice_ceiling, window
from cs336_tui.tui.tabs import status
from cs336_tui.tui.tabs.device_rows import device_rows, rows_round, sample_of, table, table_of_gpus
from cs336_tui.tui.widgets.lines import Line, Lines, Span, bar, labelled, line, paragraphs, wrapped

_LABEL = 9
_TWO_COLUMNS = 46
"""Columns from which on figures stand beside each other."""
_RECENT_BUCKET_S = 2
_LEAST_HISTORY = 8
"""Rows of the history that the rows of devices leave, with its heading."""
_DETAILS = ("clocks", "limited", "others")
"""Labels of figures of a GPU that its row does not have."""
_WAITING = "waiting for the first sample ..."
_LINGER_S = 120.0
"""Seconds for which a run's history stays in sight after its end."""


class Run(msgspec.Struct, frozen=True):
    """The latest run of cells, Unix seconds; `ended_at` is None while it goes on."""

    started_at: float
    ended_at: float | None = None


class DevicePane(Lines):
    """Shows the newest sample and the graphs of the latest run."""

    _chosen: str | None = None
    """The UUID of the GPU whose figures are shown; None: the benchmark's."""
    _offered: tuple[str | None, ...] = ()
    """UUIDs of the GPUs that there are figures of, the benchmark's first."""
    _energy: tuple[float, float] | None = None
    """The start of the run, and the first reading of the energy counter in it, J."""

    def show(self, state: SessionState, run: Run | None, cell: CellState | None = None) -> None:
        """Paint; `cell`: the one that is followed where several run side by side."""
        if state.side_by_side and state.running:
            self.paint(lines_of_several(state, cell, run, *self.content_size))
            return
        if not state.devices:
            told = "recorded elsewhere: no sample of the device" if state.is_recorded else _WAITING
            self.paint([(), *wrapped(told, self.content_size.width, "muted")])
            return
        sample = state.devices[-1][0]
        own = sample.gpu.uuid if sample.gpu else None
        others = (each.gpu.uuid for each in machine_gpus(state, sample) if each.gpu.uuid != own)
        self._offered = (own, *others) if sample.gpu else ()
        energy_j = self._energy_of(state, sample, run)
        self.paint(device_lines(state, sample, run, energy_j, *self.content_size, chosen=self._chosen))

    @property
    def has_several(self) -> bool:
        """True if there are figures of more than one GPU."""
        return len(self._offered) > 1

    def next_gpu(self) -> None:
        """Show the next GPU from now on; after the last the benchmark's again."""
        at = self._offered.index(self._chosen) if self._chosen in self._offered else 0
        self._chosen = (*self._offered, None)[at + 1] if self.has_several else None

    def _energy_of(self, state: SessionState, sample: DeviceSampled, run: Run | None) -> float | None:
        """The energy since the run began, J."""
        if run is None or sample.gpu is None or sample.gpu.energy_j is None:
            return None
        if self._energy is None or self._energy[0] != run.started_at:
            since = (s.gpu for s, _ in state.devices if s.at >= run.started_at and s.gpu and s.gpu.energy_j is not None)
            first = next(since, sample.gpu)
            self._energy = (run.started_at, first.energy_j or 0.0)
        return sample.gpu.energy_j - self._energy[1]


def machine_gpus(state: SessionState, sample: DeviceSampled) -> tuple[Numbered, ...]:
    """All GPUs of the machine, where there are several, each as it was read last."""
    newest: dict[str | None, GpuSample] = {
        gpu.uuid: gpu for gpu in (sample.gpu, *sample.other_gpus) if gpu and gpu.uuid
    }
    return numbered([newest.get(gpu.uuid, gpu) for gpu in state.machine_gpus])


def device_lines(
    state: SessionState,
    sample: DeviceSampled,
    run: Run | None,
    energy_j: float | None,
    width: int,
    height: int,
    *,
    chosen: str | None = None,
) -> list[Line]:
    """The pane's rows: all GPUs of the machine, figures of the benchmark's or the `chosen` one (UUID), then as much
    history as fits."""
    machine = machine_gpus(state, sample) if sample.gpu else ()
    own = sample.gpu.uuid if sample.gpu else None
    by_uuid: dict[str | None, Numbered] = {each.gpu.uuid: each for each in machine}
    shown = by_uuid.get(chosen) or by_uuid.get(own)
    gpu = shown.gpu if shown else sample.gpu
    is_own = gpu is not None and gpu.uuid == own
    figures = [*(_gpu(gpu, energy_j if is_own else None, width, _title(state, gpu, shown)) if gpu else [])]
    figures += _host(sample, width)
    why = _why(state, sample, gpu, width)
    if sample.gpu and sample.other_gpus:
        figures += _gpus((sample.gpu, *sample.other_gpus), height - len(figures) - len(why))
    elif sample.host.ranks:
        figures += _ranks(sample.host.ranks, height - len(figures) - len(why))
    figures += why
    if shown and not sample.other_gpus:
        most = max(height - len(figures) - 2, 2)
        figures = [*table_of_gpus(machine, shown.gpu.uuid, own, width, most), (), *figures]
    readings = [(each.at, _of_uuid(each, gpu.uuid if gpu else None), each.host) for each, _ in state.devices]
    readings = [reading for reading in readings if reading[1] or not gpu]
    starts = [(cell.started_at, status.number(cell)) for cell in state.cells.values() if cell.started_at]
    history = _history(readings, starts, sample, run, width, height - len(figures) - 1)
    return [*figures, *([(), *history] if history else [])]


def lines_of_several(
    state: SessionState, followed: CellState | None, run: Run | None, width: int, height: int
) -> list[Line]:
    """The pane's rows where several cells run: a row for each device, then figures and history of the followed one's
    first."""
    sample = sample_of(state, followed) if followed else None
    least = _LEAST_HISTORY if sample else 0
    every = device_rows(state)
    at = next((n for n, row in enumerate(every) if followed and row.cell is followed), 0)
    rows = rows_round(at, every, max(height - 3 - least, 3))
    names = {row.gpu.name for row in rows if row.gpu and row.gpu.name}
    in_lanes = any(row.cell is None or row.cell.lanes for row in rows)
    count = format.plural(len(every), "GPU" if names else "lane" if in_lanes else "job")
    title = line((f"{count}: {', '.join(sorted(names))}" if names else count, "title"))
    lines = [title, *table(rows, followed, width, len(every) - len(rows))]
    if sample is None or followed is None:
        return [*lines, (), line((_WAITING, "muted"))]
    lines.append(line(("host ", "muted"), f"CPU {format.percent(sample.host.cpu)}, load {_load(sample.host)}"))
    about = [line((f"cell {status.number(followed)}, {status.where(state, followed)}", "title"))]
    if sample.gpu and height - len(lines) > least + len(_DETAILS):
        about += [found for found in _gpu(sample.gpu, None, width) if found[0].text.strip() in _DETAILS]
    uuid = sample.gpu.uuid if sample.gpu else None
    readings = [
        (each.at, each.gpu, each.host)
        for each, number in state.devices
        if (each.gpu is not None and each.gpu.uuid == uuid if uuid else _in_its_lane(state, number, followed))
    ]
    starts = [
        (cell.started_at, status.number(cell))
        for cell in (state.cells.values() if followed.lanes else (followed,))
        if cell.started_at and _in_its_lane(state, cell.cell, followed)
    ]
    history = _history(readings, starts, sample, run, width, height - len(lines) - len(about) - 1)
    return [*lines, *([(), *about, *history] if history else [])]


def _in_its_lane(state: SessionState, number: int | None, followed: CellState) -> bool:
    cell = state.cells.get(-1 if number is None else number)
    return cell is not None and (cell is followed or (bool(cell.lanes) and cell.lanes[0] in followed.lanes))


def _of_uuid(sample: DeviceSampled, uuid: str | None) -> GpuSample | None:
    """The GPU with this UUID in a sample; the benchmark's without one."""
    if uuid is None or (sample.gpu and sample.gpu.uuid == uuid):
        return sample.gpu
    return next((gpu for gpu in (*sample.other_gpus, *sample.machine_gpus) if gpu.uuid == uuid), None)


def _title(state: SessionState, gpu: GpuSample, place: Numbered | None) -> str:
    """``GPU 1 of 4 · cuda:0 · NVIDIA H100 80GB HBM3``; the name alone where there is one GPU."""
    devices = state.environment.devices if state.environment else ()
    cuda = next((info.name for info in devices if gpu.uuid and info.uuid == gpu.uuid), "")
    name = gpu.name or ("" if place else "GPU")
    return " · ".join(filter(None, (place.title, cuda, name) if place else (name,)))


def _why(state: SessionState, sample: DeviceSampled, gpu: GpuSample | None, width: int) -> list[Line]:
    """Why figures are missing or mean something else."""
    devices = state.environment.devices if state.environment else ()
    apple = next((info for info in devices if info.name == "mps"), None)
    if apple is not None and gpu is None:
        said = [f"{apple.label}: {APPLE}"]
    else:
        said = [*([sample.why] if sample.why else []), *(notes(gpu) if gpu else [])]
    return [(), *paragraphs(said, width, "muted")] if said else []


def _row(label: str, value: str, role: str = "text") -> Line:
    return labelled(label, value, label_width=_LABEL, role=role)[0]


def _gpu(gpu: GpuSample, energy_j: float | None, width: int, title: str = "") -> list[Line]:
    share = gpu.memory_used_bytes / gpu.memory_total_bytes if gpu.memory_used_bytes and gpu.memory_total_bytes else None
    memory, *rest = figures_of(gpu)
    if energy_j is not None:
        energy = f"{energy_j / 1e3:.1f} kJ" if energy_j >= 1e3 else f"{energy_j:.0f} J"
        rest.append(Figure("energy", f"{energy} this run"))
    return [
        *wrapped(title or gpu.name or "GPU", width, "title"),
        _row(memory.label, memory.text),
        *([(Span(bar(share, width), "memory"),)] if share is not None else []),
        *_in_columns(rest, width),
    ]


def _in_columns(figures: Sequence[Figure], width: int) -> list[Line]:
    """A row for each figure, or for two where both fit; a long text is wrapped."""
    half = width // 2
    lines: list[Line] = []
    alone = 0
    """Columns that a figure without a neighbour takes; 0: the last row is full."""
    for label, text, is_doubt in figures:
        role, taken = "caution" if is_doubt else "text", _LABEL + len(text)
        if alone and taken <= width - half:
            lines[-1] = (*lines[-1], Span(" " * (half - alone)), *_row(label, text, role))
            alone = 0
            continue
        lines += labelled(label, text, width, _LABEL, role)
        alone = taken if width >= _TWO_COLUMNS and taken < half else 0
    return lines


def _host(sample: DeviceSampled, width: int) -> list[Line]:
    """The host's figures; beside a GPU only those that affect a run."""
    host = sample.host
    most = " at most" if host.ranks else ""
    listed = host.ranks and not sample.other_gpus
    rss = [] if listed else [_row("cell RSS", format.size(host.child_rss_bytes) + most)]
    if sample.gpu:
        return [*labelled("host", f"CPU {format.percent(host.cpu)}, load {_load(host)}", width, _LABEL), *rss]
    cores = f" on {host.cpu_count} CPUs" if host.cpu_count else ""
    return [
        line(("Host", "title")),
        _row("CPU", format.percent(host.cpu)),
        _row("memory", format.used_of(host.memory_used_bytes, host.memory_total_bytes)),
        *rss,
        _row("load", _load(host) + cores),
    ]


def _load(host: HostSample) -> str:
    return format.NOT_AVAILABLE if host.load_1m is None else f"{host.load_1m:.1f}"


def _gpus(gpus: Sequence[GpuSample], height: int) -> list[Line]:
    """A row for each rank's GPU; ``!`` marks lower clocks."""
    rows: list[Line] = []
    for rank, gpu in enumerate(gpus):
        mark, role = ("!", "caution") if doubtful_reasons(gpu) else (" ", "text")
        memory = format.size(gpu.memory_used_bytes, format.NOT_AVAILABLE)
        figures = f"{memory:>9}{format.percent(gpu.utilisation):>6}{format.number(gpu.power_w, ' W'):>7}"
        rows.append(line((f"{rank:>2}", "muted"), (mark, role), (figures, role)))
    return _listed(f"Ranks{'memory':>7}{'util':>6}{'power':>7}", rows, height)


def _ranks(ranks: Sequence[RankSample], height: int) -> list[Line]:
    """A row for each rank's process."""
    number_width = len(str(len(ranks) - 1))
    rows = [
        line(
            (f"{rank:>{number_width}} ", "muted"),
            f"{each.pid:>8}{format.size(each.rss_bytes, format.NOT_AVAILABLE):>9}{known('{:.2f}')(each.cores):>6}",
        )
        for rank, each in enumerate(ranks)
    ]
    return _listed(f"{'Ranks':<{number_width + 6}}pid{'RSS':>9}{'cores':>6}", rows, height)


def _listed(heading: str, rows: list[Line], height: int) -> list[Line]:
    """Rows under a heading; the last says how many more there are, if the height does not do for all."""
    room = max(height - 2, 1)
    if len(rows) > room:
        rows[room - 1 :] = [line((f"and {len(rows) - room + 1} more", "muted"))]
    return [(), line((heading, "muted")), *rows]


def _history(
    readings: Sequence[tuple[float, GpuSample | None, HostSample]],
    starts: Sequence[tuple[float, int]],
    sample: DeviceSampled,
    run: Run | None,
    width: int,
    height: int,
) -> list[Line]:
    """Two graphs, each under its name and range, then the numbers of cells under the columns in which they began."""
    rows = min((height - 3) // 2, 4)
    if rows < 1 or width < 8:
        return []
    lingers = run and (run.ended_at is None or sample.at - run.ended_at < _LINGER_S)
    since = run.started_at if run and lingers else sample.at - (width - 1) * _RECENT_BUCKET_S
    view = window(since, sample.at, width)
    shown = [(at, gpu, host) for at, gpu, host in readings if view.column_of(at) >= 0]
    if sample.gpu:
        gpus = [(at, gpu) for at, gpu, _ in shown if gpu]
        memory = [(at, gpu.memory_used_bytes / format.GB) for at, gpu in gpus if gpu.memory_used_bytes is not None]
        share = [(at, gpu.utilisation) for at, gpu in gpus if gpu.utilisation is not None]
        memory_name, share_name = "memory", "utilisation"
        top = (sample.gpu.memory_total_bytes or 0) / format.GB
    else:
        memory = [(at, host.child_rss_bytes / format.GB) for at, _, host in shown if host.child_rss_bytes]
        share = [(at, host.cpu) for at, _, host in shown if host.cpu is not None]
        memory_name, share_name = "largest rank's RSS" if sample.host.ranks else "cell RSS", "CPU"
        top = 0.0
    top = top or nice_ceiling(max((value for _, value in memory), default=1.0))
    lines = [
        line((f"{share_name} 0–100 %", "muted")),
        *graph(share, view, top=1.0, height=rows, role="utilisation"),
        line((f"{memory_name} 0–{top:.3g} GB", "muted")),
        *graph(memory, view, top=top, height=rows, role="memory"),
    ]
    axis = marks(starts, view)
    if not any(span.text.strip() for span in axis):
        axis = line((f"last {quantities.duration(view.bucket_s * view.width)}", "muted"))
    return [*lines, axis]
