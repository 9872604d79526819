"""The Device pane, and the screen of a session whose cells run side by side, in lanes or in jobs."""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cs336_tui.config.sweep import Sweep
from cs336_tui.events.environment import DeviceInfo, GpuProcess, GpuSample, HostSample, RankSample
from cs336_tui.events.events import CellFinished, CellStarted, DeviceSampled, EnvironmentRead, Event, Lane, StageChanged
from cs336_tui.runner.queue import WaitingCell
from cs336_tui.session.state import SessionState
from cs336_tui.tui.app import Cs336App
from cs336_tui.tui.configure.form import Form, entries_of, read
from cs336_tui.tui.configure.preview import CellChoices, cells_of
from cs336_tui.tui.session import Session, read_session
from cs336_tui.tui.tabs.device import DevicePane, Run, device_lines, lines_of_several
from cs336_tui.tui.tabs.device_rows import device_rows, table
from cs336_tui.tui.tabs.queue import QueuePane
from tests.samples import (
    ENVIRONMENT,
    START,
    a_gpu,
    a_spec,
    cell_start,
    jobs_session,
    lanes_session,
    machine_of_gpus,
    ranks_sampled,
    session_start,
    state_of,
)
from tests.tui.watched import SMALL, WIDE, Benches, ScriptedBench, log_of, on_screen, press, replaying, text, until

HOST = HostSample(cpu=0.47, memory_used_bytes=12 * 10**9, memory_total_bytes=64 * 10**9, load_1m=1.8, cpu_count=2)


def gpus(count: int) -> tuple[GpuSample, ...]:
    return tuple(a_gpu(f"GPU-gpu-box-{n}", busy=n / count) for n in range(count))


def samples(count: int, used: int = 1, **changes: object) -> list[Event]:
    """Two samples of the `used` GPU; the first tells of all."""
    all_of_them = gpus(count)
    own = msgspec.structs.replace(all_of_them[used], **changes)
    return [
        EnvironmentRead(at=START, environment=machine_of_gpus(count)),
        DeviceSampled(at=START + 1, host=HOST, gpu=own, machine_gpus=all_of_them),
        DeviceSampled(at=START + 2, host=HOST, gpu=msgspec.structs.replace(own, utilisation=0.93)),
    ]


def shown(state: SessionState, width: int = 28, height: int = 23, chosen: str | None = None) -> list[str]:
    return text(device_lines(state, state.devices[-1][0], Run(START), None, width, height, chosen=chosen)).splitlines()


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("width", "height"), [(27, 23), (36, 23), (50, 33)])
def test_each_gpu_has_a_row_of_six_figures_and_nothing_is_cut(count: int, width: int, height: int) -> None:
    rows = shown(state_of(samples(count)), width, height)
    assert rows[0].split() == ["GPU", "GB", "%", "W", "°C", "MHz", "processes" if width > 30 else "pr"]
    listed = [row.strip("▸ ").split() for row in rows[1 : count + 1]]
    assert [row[0] for row in listed] == [str(n) for n in range(count)]
    assert all(len(row) == 7 for row in listed)
    assert listed[1][2] == "93", "the benchmark's GPU has its newest sample"
    assert rows[2].startswith("▸1")
    assert f"GPU 1 of {count} · cuda:1" in " ".join(" ".join(rows).split())
    assert "NVIDIA H100 80GB HBM3" in " ".join(" ".join(rows).split())
    assert not any("…" in row for row in rows)
    assert all(len(row) <= width for row in rows)
    assert len(rows) <= height


def test_many_gpus_leave_room_and_are_counted() -> None:
    rows = shown(state_of(samples(8, used=6)), height=16)
    assert len(rows) <= 16
    assert any(row.startswith("and ") and row.endswith(" more") for row in rows)
    assert any(row.startswith("▸6") for row in rows)


def test_another_gpu_may_be_looked_at() -> None:
    state = state_of(samples(4))
    rows = " ".join(" ".join(shown(state, 50, 33, chosen="GPU-gpu-box-3")).split())
    assert "GPU 3 of 4 · cuda:3 · NVIDIA H100" in rows
    assert "util 75 %" in rows
    assert "GPU 1 of 4" in " ".join(shown(state, chosen="GPU-that-is-gone"))


@pytest.mark.parametrize(("reason", "role"), [("software power cap", "text"), ("hardware thermal", "caution")])
def test_a_power_cap_has_no_warning_colour_and_heat_has_one(reason: str, role: str) -> None:
    state = state_of(samples(2, clock_reasons=(reason,)))
    lines = device_lines(state, state.devices[-1][0], None, None, 50, 33)
    roles = {span.text: span.role for line in lines for span in line}
    assert roles[reason] == role
    row = next(span for line in lines for span in line if span.text.startswith("▸1"))
    assert (row.role == "caution", "!" in row.text) == (role == "caution", role == "caution")


def test_a_long_reason_is_wrapped_and_not_cut() -> None:
    reasons = ("software power cap", "application clocks", "sync boost")
    assert ", ".join(reasons) in " ".join(" ".join(sampled(gpu=a_gpu("GPU-a", clock_reasons=reasons))).split())


def test_a_mig_instance_says_so_and_why() -> None:
    instance = GpuSample(uuid="MIG-a", name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", memory_used_bytes=10**9)
    rows = " ".join(" ".join(sampled(36, gpu=instance, machine_gpus=(a_gpu("GPU-a"), instance))).split())
    for seen in ("GPU 0 of 1, MIG 0 of 1", "MIG instance: NVML tells utilisation", "0/0"):
        assert seen in rows


def test_an_apple_gpu_says_whose_memory_it_has() -> None:
    apple = DeviceInfo(name="mps", label="Apple M3 Pro", precisions=("fp32",))
    machine = msgspec.structs.replace(ENVIRONMENT, devices=(ENVIRONMENT.devices[0], apple))
    why = "no NVIDIA driver library (NVML) on this machine"
    events = [EnvironmentRead(at=START, environment=machine), DeviceSampled(at=START + 1, host=HOST, why=why)]
    rows = " ".join(" ".join(shown(state_of(events))).split())
    assert "Apple M3 Pro: unified memory: GPU and CPU share the host's memory" in rows
    assert "NVML" not in rows


def sampled(width: int = 28, height: int = 30, **sample: Any) -> list[str]:
    """The rows of the pane, of one sample alone."""
    return shown(state_of([DeviceSampled(**{"at": START, "host": HOST} | sample)]), width, height)


def gpu_text(gpu: GpuSample | None, why: str | None = None) -> str:
    return "\n".join(sampled(gpu=gpu, why=why))


def test_a_gpu_that_reports_nothing_is_not_available_field_by_field() -> None:
    shown = gpu_text(GpuSample())
    assert shown.count("n/a") >= 7
    assert "None" not in shown


def test_other_users_of_the_gpu_are_named_with_a_sign_and_reasons_for_lower_clocks_said() -> None:
    others = (GpuProcess(pid=1, memory_bytes=2 * 10**9), GpuProcess(pid=2))
    assert "! 2 processes, 2.00 GB" in " ".join(gpu_text(GpuSample(other_processes=others)).split())
    assert "none" in gpu_text(GpuSample(other_processes=()))
    assert "limited  power cap" in gpu_text(GpuSample(clock_reasons=("power cap",)))
    assert "limited  no" in gpu_text(GpuSample(clock_reasons=()))


def test_without_a_gpu_the_host_comes_first_and_the_reason_is_told() -> None:
    shown = gpu_text(None, why="no NVML: the driver's library was not found")
    assert shown.index("47 %") < shown.index("no NVML")
    for seen in ("12.0/64.0 GB", "1.8 on 2 CPUs", "CPU 0–100 %"):
        assert seen in shown


def test_a_lost_gpu_leaves_no_old_value_behind() -> None:
    host = HostSample(cpu=0.1)
    old = DeviceSampled(at=START, host=host, gpu=GpuSample(utilisation=0.99, power_w=640.0))
    lost = DeviceSampled(at=START + 1, host=host, why="the GPU is lost")
    shown = text(device_lines(state_of([old, lost]), lost, None, None, 28, 30))
    assert "the GPU is lost" in shown
    assert "99 %" not in shown
    assert "640" not in shown


@pytest.mark.parametrize(("ranks", "height", "rows"), [(2, 30, 2), (8, 21, 8), (16, 21, 11)])
def test_the_device_pane_lists_the_process_of_each_rank(ranks: int, height: int, rows: int) -> None:
    several = tuple(RankSample(pid=21_000 + rank, rss_bytes=10**9 + rank * 10**7, cores=0.5) for rank in range(ranks))
    host = msgspec.structs.replace(HOST, child_rss_bytes=1_070_000_000, ranks=several)
    shown = sampled(height=height, host=host, why="no NVML: the driver's library was not found")
    assert len(shown) <= height
    assert sum(" 210" in row for row in shown) == rows
    assert any(row.split() == ["1", "21001", "1.01", "GB", "0.50"] for row in shown)
    assert any(f"and {ranks - rows} more" in row for row in shown) == (rows < ranks)
    assert any("no NVML" in row for row in shown)
    assert not any("cell RSS" in row for row in shown)


def test_the_process_of_a_rank_that_has_gone_is_not_available() -> None:
    host = HostSample(ranks=(RankSample(pid=1), RankSample(pid=2, rss_bytes=10**9, cores=1.0)))
    assert ["0", "1", "n/a", "n/a"] in [row.split() for row in sampled(host=host)]


def test_the_device_pane_lists_the_gpu_of_each_rank() -> None:
    first = GpuSample(memory_used_bytes=61 * 10**9, memory_total_bytes=85 * 10**9, utilisation=0.99, power_w=512.0)
    limited = GpuSample(memory_used_bytes=60 * 10**9, memory_total_bytes=85 * 10**9, clock_reasons=("power cap",))
    others = (limited, GpuSample(uuid="GPU-c"))
    host = HostSample(child_rss_bytes=10**9, ranks=(RankSample(pid=1), RankSample(pid=2), RankSample(pid=3)))
    shown = sampled(27, 40, host=host, gpu=first, other_gpus=others)
    assert " 0   61.0 GB  99 %  512 W" in shown
    assert " 1!  60.0 GB   n/a    n/a" in shown
    assert any(row.split() == ["2", "n/a", "n/a", "n/a"] for row in shown)
    assert "cell RSS 1.00 GB at most" in shown
    assert all(len(row) <= 27 for row in shown)


@pytest.mark.parametrize(("ranks", "rows"), [(2, 2), (8, 8), (16, 7)])
def test_the_gpus_of_many_ranks_fit_beside_the_first_ones_figures(ranks: int, rows: int) -> None:
    seen = shown(state_of([ranks_sampled(ranks, on_gpus=True)]), 27, 21)
    assert len(seen) <= 21
    assert sum(row.endswith(" W") and "/" not in row for row in seen) == rows
    assert ("and 9 more" in seen) == (ranks > rows)


async def test_a_key_goes_through_the_gpus(tmp_path: Path) -> None:
    events = [*session_start([a_spec()], environment=machine_of_gpus(4)), *cell_start(0), *samples(4)[1:]]
    async with on_screen(replaying(events, tmp_path, session_dir=tmp_path), "GPU 1 of 4") as (app, pilot):
        seen = []
        for _ in range(5):
            await pilot.press("g")
            pane = app.main.query_one(DevicePane).text
            seen.append(next(number for number in range(4) if f"GPU {number} of 4" in pane))
        assert seen == [0, 2, 3, 1, 0]


LATER = START + 100


def followed(events: list[Event]) -> Session:
    session = Session()
    session.fold(events)
    return session


def number_of(session: Session) -> int | None:
    return session.cell.cell if session.cell else None


def test_live_stays_with_a_cell_until_it_ends_and_goes_on_with_one_that_measures() -> None:
    session = followed(lanes_session())
    first = number_of(session)
    assert first in session.state.running
    session.fold([CellStarted(at=LATER, cell=16, lanes=(0,))])
    assert number_of(session) == first, "a cell that starts does not take its place"
    session.fold([StageChanged(at=LATER, cell=15, stage="finishing")])
    session.fold([CellFinished(at=LATER, cell=first or 0, status="ok")])
    measuring = [cell.cell for cell in session.state.running_cells if cell.stage == "measuring"]
    assert number_of(session) == measuring[-1]


def test_a_cell_that_was_chosen_is_followed_until_it_ends_and_one_that_waits_is_not() -> None:
    session = followed(lanes_session())
    cells = session.state.cells
    assert session.follow(cells[10])
    session.fold([StageChanged(at=LATER, cell=10, stage="finishing")])
    assert number_of(session) == 10
    assert not session.follow(cells[19])
    assert number_of(session) == 10
    session.fold([CellFinished(at=LATER, cell=10, status="ok")])
    assert number_of(session) in session.state.running
    assert session.follow(cells[0])
    session.fold([CellFinished(at=LATER, cell=11, status="ok")])
    assert number_of(session) == 0, "one that is over stays as long as nobody goes on"
    session.follow_next(1)
    assert number_of(session) in session.state.running


def test_a_log_that_is_read_at_once_is_like_one_that_came_event_by_event(tmp_path: Path) -> None:
    events = lanes_session()
    read, came = read_session(log_of(events, tmp_path)), followed(events)
    assert read.state.samples == came.state.samples
    assert len(came.state.samples) == 8
    one, other = ([cell.surroundings.samples for cell in each.state.cells.values()] for each in (read, came))
    assert one == other
    assert read.cell.cell in read.state.running


def test_eight_gpus_have_a_row_each_with_all_figures_where_the_pane_is_25_columns_wide() -> None:
    state = state_of(lanes_session())
    shown = text(table(device_rows(state), state.cells[10], 25)).splitlines()
    assert shown[0].split() == ["GPU", "GB", "%", "W", "°C", "cell"]
    assert [row.split()[-1] for row in shown[1:]] == [str(cell + 1) for cell in range(8, 16)]
    assert shown[3].split() == ["▸2", "37.2", "88", "536", "59", "11"]
    assert all(len(row) <= 25 for row in shown)


@pytest.mark.parametrize("height", [6, 10, 21, 40])
def test_the_devices_keep_to_the_pane_and_say_how_many_more_there_are(height: int) -> None:
    state = state_of(lanes_session())
    lines = lines_of_several(state, state.cells[12], None, 26, height)
    shown = text(lines)
    assert len(lines) <= height
    assert ("more" in shown) == (height < 20)
    assert ("utilisation" in shown) == (height > 12)


def test_a_cell_of_several_ranks_has_a_row_for_each_of_its_gpus_which_are_named_by_their_node() -> None:
    shown = text(table(device_rows(state_of(lanes_session(ranks=2, set_aside=3, cells=24))), None, 40)).splitlines()
    assert [row.split()[-1] for row in shown[1:]] == ["9", "9", "10", "off", "11", "12", "13", "14"]
    of_nodes = text(table(device_rows(state_of(jobs_session())), None, 40))
    assert "n1:0" in of_nodes
    assert "n2:0" in of_nodes


@pytest.mark.parametrize("size", [SMALL, WIDE])
async def test_cursor_and_key_say_which_cell_live_is_about(size: tuple[int, int], tmp_path: Path) -> None:
    async with on_screen(replaying(lanes_session(), tmp_path), "", size=size) as (app, pilot):
        shown = await until(pilot, "at its end")
        for seen in ("lane 7, cuda:7", "] shows 7 others", "8 × NVIDIA H100"):
            assert seen in shown
        await press(pilot, "right_square_bracket", seen="lane 0, cuda:0")
        await press(pilot, "left_square_bracket", "left_square_bracket", seen="lane 6, cuda:6")
        await press(pilot, "6", seen=lambda _: app.query_one(QueuePane).has_focus)
        await press(pilot, "home", "down", "down", "2", seen="lane 2, cuda:2")
        await press(pilot, "4", "home", "2", seen=lambda text: "cell 1/20 · ! ok" in text)


def form_of(lanes: str, gpus: int = 4, **entries: object) -> Form:
    filled = msgspec.structs.replace(entries_of(Sweep(devices=("auto",))), lanes=lanes, **entries)
    return read(filled, machine_of_gpus(gpus))


def test_the_form_takes_a_number_of_lanes_or_auto_and_says_so() -> None:
    assert form_of("1").sweep == Sweep(devices=("auto",))
    assert form_of("auto").sweep == Sweep(devices=("auto",), lanes="auto")
    assert form_of(" 3 ").sweep == Sweep(devices=("auto",), lanes=3)
    assert "in 3 lanes" in form_of("3").summary
    assert entries_of(Sweep(lanes="auto")).lanes == "auto"


@pytest.mark.parametrize(
    ("lanes", "why"),
    [
        ("5", "lanes 5: a lane needs a device of its own: cuda:0, cuda:1, cuda:2, cuda:3"),
        ("0", "at least 1, or auto"),
        ("many", "lanes many: expected a whole number, at least 1, or auto"),
        ("", "(empty)"),
    ],
)
def test_the_form_refuses_lanes_that_cannot_be(lanes: str, why: str) -> None:
    (problem,) = map(str, form_of(lanes).problems)
    assert why in problem
    (problem,) = map(str, form_of("2", device=("cpu", "cuda:0")).problems)
    assert "lanes share devices of one kind" in problem


def test_run_would_add_each_cell_once_and_the_longest_first() -> None:
    sweep = Sweep(sizes=("small",), contexts=(128, 256), passes=("forward",), devices=("auto",), lanes="auto")
    found = cells_of(CellChoices(sweep, 1, machine_of_gpus(4)))
    assert [spec.context_length for spec, _ in found.cells] == [256, 128]
    assert found.lanes == 4


class _BenchOfLanes(ScriptedBench):
    """A scripted bench that runs its cells in two lanes, each until `finish_one`."""

    def lanes_of(self, sweep: Sweep) -> tuple[Lane, ...]:
        return tuple(Lane(lane=n, device=f"cuda:{n}") for n in range(int(sweep.lanes)))

    def add(self, cells: Any, *more: Any, lanes: Sequence[Lane] = (), **named: Any) -> None:
        self.queue.use(lanes)
        super().add(cells, *more, **named)

    def work(self) -> None:
        if self.queue.claim():
            while (taken := self.queue.take()) is not None:
                lanes = tuple(lane.lane for lane in taken.lanes)
                self.sink([CellStarted(at=START + 1, cell=taken.cell, lanes=lanes, device=taken.lanes[0].device)])
                threading.Thread(target=self._run, args=(taken,), daemon=True).start()

    def _run(self, taken: WaitingCell) -> None:
        while not (self._stop.is_set() or self._permits.acquire(timeout=0.005)):
            pass
        self.sink([CellFinished(at=START + 3, cell=taken.cell, status="cancelled" if self._stop.is_set() else "ok")])
        self.queue.over(taken)


async def test_cells_in_lanes_are_moved_skipped_held_and_stopped_by_key() -> None:
    bench = Benches(partial(_BenchOfLanes, environment=machine_of_gpus(2)))
    sweep = Sweep(sizes=("small",), contexts=(64, 128, 256, 512, 1024), passes=("forward",), devices=("auto",), lanes=2)
    async with on_screen(Cs336App(bench, initial=sweep), "NVIDIA", size=SMALL) as (app, pilot):
        await press(pilot, "r", seen=lambda _: list(app.state.running) == [0, 1])
        await press(pilot, "6", seen=lambda _: app.query_one(QueuePane).has_focus)
        await pilot.press("home", "x")
        assert list(app.state.running) == [0, 1], "a running cell is not skipped"
        await press(pilot, "down", "down", "J", seen=lambda _: list(app.state.waiting) == [3, 2, 4])
        await press(pilot, "x", seen=lambda _: list(app.state.waiting) == [3, 4])
        await press(pilot, "P", seen="paused (P goes on)")
        bench.finish_one()
        await until(pilot, "1 run · 2 wait · 1 ok")
        await press(pilot, "P", seen="2 run · 1 wait · 1 ok")
        assert {lane.cell is not None for lane in app.state.lanes.values()} == {True}
        await press(pilot, "q", seen="the 2 running")
        await press(pilot, "escape", "s", seen=lambda _: not app.run_in_progress)
        assert [cell.status for cell in app.state.cells.values()].count("cancelled") == 3
