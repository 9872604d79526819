"""Texts of the panes for a given session."""

import re

import msgspec
import pytest

from cs336_tui.events.environment import GpuProcess, GpuSample, HostSample, RankSample
from cs336_tui.events.events import CellFinished, CellsQueued, ChildOutput, DeviceSampled, Notice, StageChanged
from cs336_tui.session.state import SessionState
from cs336_tui.tui.help import help_page
from cs336_tui.tui.screen import heading
from cs336_tui.tui.tabs.cell_detail import cell_detail
from cs336_tui.tui.tabs.device import Run, device_lines
from cs336_tui.tui.tabs.live import live_lines
from cs336_tui.tui.tabs.status import status
from tests.samples import (
    START,
    a_spec,
    cell_start,
    mixed_session,
    ranks_sampled,
    ranks_session,
    session_start,
    state_of,
    steps,
)
from tests.tui.watched import demo, in_the_middle, text


def live(state: SessionState, cell: int, width: int = 60, height: int = 30) -> str:
    shown = state.cells[cell]
    return text(live_lines(state, shown, width, height))


def test_the_live_pane_shows_where_a_run_is() -> None:
    shown = live(state_of(demo(in_the_middle)), 5)
    assert "large · ctx 512 · train-step · fp32 · cuda:0" in shown
    assert "cell 6/18 · measuring 6/10 · ETA 1:52" in shown
    assert "86/270 steps" in shown
    assert "347.64 ms ± 0.76 std (n=6)" in shown
    assert "5.89k tokens/s" in shown
    for phase in ("zero_grad", "forward", "loss", "backward", "optimizer"):
        assert phase in shown


def test_a_cell_stopped_while_compiling_shows_no_step() -> None:
    events = [*session_start([a_spec()]), *cell_start(0)]
    end = CellFinished(at=START + 12, cell=0, status="cancelled", stage="compiling", error="stopped by the user")
    shown = live(state_of([*events, end]), 0)
    assert " 0/6 steps\n" in shown
    assert "✗ cancelled while compiling\n" in shown
    assert "100 %" not in shown


@pytest.mark.parametrize("width", [30, 48, 53])
def test_what_is_to_be_typed_is_never_cut_in_two(width: int) -> None:
    error = "Needs(vocab_size, d_model, widget) needs widget; give it with --model-arg widget=VALUE"
    end = CellFinished(at=START + 11, cell=0, status="failed", error=error)
    state = state_of([*session_start([a_spec()]), *cell_start(0), end])
    assert "--model-arg" in live(state, 0, width)
    assert "--model-arg" in text(cell_detail(state, state.cells[0], width))


@pytest.mark.parametrize(
    ("stage", "words"),
    [("building", "building the model"), ("warm-up", "warm-up 0/2"), ("finishing", "finishing")],
)
def test_each_stage_has_its_words(stage: str, words: str) -> None:
    events = [*session_start([a_spec()]), *cell_start(0), StageChanged(at=START + 11, cell=0, stage=stage)]
    assert words in live(state_of(events), 0)


def test_warmup_steps_are_not_called_measured() -> None:
    events = [*session_start([a_spec()]), *cell_start(0), *steps(0, (0.4, 0.2))]
    shown = live(state_of(events), 0)
    assert "latest warm-up step, not measured" in shown
    assert "std" not in shown.partition("│")[0]


def test_a_failure_says_status_stage_step_and_error() -> None:
    state = state_of(mixed_session())
    assert "out of memory during warm-up, at step 2" in live(state, 1)
    assert "tried to allocate 2 GiB" in live(state, 1)
    assert "failed while building" in live(state, 2)
    assert "SIGSEGV" in live(state, 2)
    assert "queued" in live(state, 3)


@pytest.mark.parametrize("height", range(0, 40, 3))
@pytest.mark.parametrize("width", [1, 10, 30, 80, 200])
def test_panes_fit_any_room(width: int, height: int) -> None:
    state = state_of(demo(in_the_middle))
    live(state, 5, width, height)
    device_lines(state, state.devices[-1][0], Run(START), 10.0, width, height)
    cell_detail(state, state.cells[5], width)
    help_page(width, replaying=True)
    heading(state, "", "", width)


def gpu_text(gpu: GpuSample | None, why: str | None = None) -> str:
    host = HostSample(cpu=0.47, memory_used_bytes=12 * 10**9, memory_total_bytes=64 * 10**9, load_1m=1.8, cpu_count=2)
    sample = DeviceSampled(at=START, host=host, gpu=gpu, why=why)
    return text(device_lines(state_of([sample]), sample, None, None, 28, 30))


def test_a_gpu_that_reports_nothing_is_not_available_field_by_field() -> None:
    shown = gpu_text(GpuSample())
    assert shown.count("n/a") >= 7
    assert "None" not in shown


def test_other_users_of_the_gpu_are_named_with_a_sign() -> None:
    others = (GpuProcess(pid=1, memory_bytes=2 * 10**9), GpuProcess(pid=2))
    assert "! 2 processes, 2.00 GB" in " ".join(gpu_text(GpuSample(other_processes=others)).split())
    assert "none" in gpu_text(GpuSample(other_processes=()))


def test_reasons_for_lower_clocks_are_said() -> None:
    assert "limited  power cap" in gpu_text(GpuSample(clock_reasons=("power cap",)))
    assert "limited  no" in gpu_text(GpuSample(clock_reasons=()))


def test_without_a_gpu_the_host_comes_first_and_the_reason_is_told() -> None:
    shown = gpu_text(None, why="no NVML: the driver's library was not found")
    assert shown.index("47 %") < shown.index("no NVML")
    assert "12.0/64.0 GB" in shown
    assert "1.8 on 2 CPUs" in shown
    assert "CPU 0–100 %" in shown


def test_a_lost_gpu_leaves_no_old_value_behind() -> None:
    host = HostSample(cpu=0.1)
    old = DeviceSampled(at=START, host=host, gpu=GpuSample(utilisation=0.99, power_w=640.0))
    lost = DeviceSampled(at=START + 1, host=host, why="the GPU is lost")
    shown = text(device_lines(state_of([old, lost]), lost, None, None, 28, 30))
    assert "the GPU is lost" in shown
    assert "99 %" not in shown
    assert "640" not in shown


def test_every_status_differs_by_more_than_colour() -> None:
    state = state_of(mixed_session())
    seen = {status(cell).text for cell in state.cells.values()}
    assert seen == {"✓ ok", "▲ OOM", "✗ failed", "· queued"}


def test_the_detail_of_a_cell_has_all_of_it() -> None:
    state = state_of(mixed_session())
    shown = text(cell_detail(state, state.cells[0], 80))
    for part in ("412.3", "153.70", "sample, n-1, n=4", "peak reserved   4.00 GB", "float32", "4 × 128 = 512 tokens"):
        assert part in shown
    assert shown.index("Warm-up steps") < shown.index("Measured steps")
    crashed = text(cell_detail(state, state.cells[2], 80))
    assert "Segmentation fault" in crashed
    assert "\x1b" not in crashed


def test_the_heading_names_session_and_machine_as_they_fit() -> None:
    state = state_of(demo(in_the_middle))
    full = text([heading(state, "", "replay ×2", 120)])
    assert full.startswith("cs336-tui · session 2026-11-20 14:03 · replay ×2")
    assert full.endswith("NVIDIA H100 80GB HBM3 · driver 580.65.06 · torch 2.13.0")
    assert "reading this machine" in text([heading(SessionState(), "2026-11-20T14-03-42-x", "", 100)])
    assert "torch 2.13.0" in text([heading(state, "", "", 90)])
    long = text([heading(SessionState(), "h100-bert-small-inference.trace.json.gz", "opened, b goes back", 80)])
    assert "session h100-bert-small-inf…ence.trace.json.gz · opened, b goes back" in long
    assert len(long) <= 80


def test_a_session_with_output_of_no_cell_and_unknown_cells_is_shown() -> None:
    events = [
        CellsQueued(at=START, first=3, specs=(a_spec(),)),
        ChildOutput(at=START, cell=None, text="x"),
        ChildOutput(at=START, cell=77, text="y"),
        Notice(at=START, text="z"),
        CellFinished(at=START, cell=3, status="killed", error="the kernel ended it"),
    ]
    state = state_of(events)
    assert "process killed" in live(state, 3)
    assert "the kernel ended it" in text(cell_detail(state, state.cells[3], 60))
    assert msgspec.structs.asdict(events[-1])["status"] == "killed"


@pytest.mark.parametrize(("width", "height"), [(51, 21), (53, 24), (78, 20), (133, 37)])
@pytest.mark.parametrize("is_over", [False, True])
def test_the_live_pane_has_a_strip_a_rank_in_every_usual_terminal(width: int, height: int, is_over: bool) -> None:
    shown = live(state_of(ranks_session(8, is_over=is_over)), 1, width, height)
    what, slowest = ("mean", "▸7 110") if is_over else ("last step", "▸7 117")
    assert f"ranks, {what} ms · slowest ▸7 · mean skew 10.3" in shown
    assert slowest in shown
    assert all(re.search(rf"[ ▸]{rank} 1[01]\d", shown) for rank in range(8))
    assert "sync" in shown
    assert "measured" in shown


def test_before_the_first_measured_step_ranks_show_the_warm_up() -> None:
    events = [event for event in ranks_session(2, is_over=False) if getattr(event, "kind", "") != "measured"]
    shown = live(state_of(events), 1)
    assert "ranks, last warm-up step ms · slowest ▸1\n" in shown


def test_a_cell_of_one_rank_has_no_strips() -> None:
    assert "slowest" not in live(state_of(ranks_session()), 0)


def test_the_detail_of_a_cell_has_each_ranks_mean_and_peak() -> None:
    state = state_of(ranks_session(4))
    shown = text(cell_detail(state, state.cells[1], 80))
    assert re.search(r"rank 0 +100\.0+ ms mean, 1\.00 GB peak RSS", shown)
    assert "rank 3          106.3 ms mean, 1.03 GB peak RSS" in shown
    assert "skew            6.3 ms mean ± 5.8 std" in shown
    assert "rank 0" not in text(cell_detail(state, state.cells[0], 80))


@pytest.mark.parametrize(("ranks", "height", "rows"), [(2, 30, 2), (8, 21, 8), (16, 21, 11)])
def test_the_device_pane_lists_the_process_of_each_rank(ranks: int, height: int, rows: int) -> None:
    several = tuple(RankSample(pid=21_000 + rank, rss_bytes=10**9 + rank * 10**7, cores=0.5) for rank in range(ranks))
    host = HostSample(cpu=0.47, load_1m=1.8, cpu_count=2, child_rss_bytes=1_070_000_000, ranks=several)
    sample = DeviceSampled(at=START, host=host, why="no NVML: the driver's library was not found")
    shown = text(device_lines(state_of([sample]), sample, None, None, 28, height)).splitlines()
    assert len(shown) <= height
    assert sum(" 210" in row for row in shown) == rows
    assert any(row.split() == ["1", "21001", "1.01", "GB", "0.50"] for row in shown)
    assert any(f"and {ranks - rows} more" in row for row in shown) == (rows < ranks)
    assert any("no NVML" in row for row in shown)
    assert not any("cell RSS" in row for row in shown)


def test_the_process_of_a_rank_that_has_gone_is_not_available() -> None:
    host = HostSample(ranks=(RankSample(pid=1), RankSample(pid=2, rss_bytes=10**9, cores=1.0)))
    sample = DeviceSampled(at=START, host=host)
    rows = [row.split() for row in text(device_lines(state_of([sample]), sample, None, None, 28, 30)).splitlines()]
    assert ["0", "1", "n/a", "n/a"] in rows


def test_the_device_pane_lists_the_gpu_of_each_rank() -> None:
    gpus = [
        GpuSample(memory_used_bytes=61 * 10**9, memory_total_bytes=85 * 10**9, utilisation=0.99, power_w=512.0),
        GpuSample(memory_used_bytes=60 * 10**9, memory_total_bytes=85 * 10**9, clock_reasons=("power cap",)),
        GpuSample(uuid="GPU-c"),
    ]
    host = HostSample(child_rss_bytes=10**9, ranks=(RankSample(pid=1), RankSample(pid=2), RankSample(pid=3)))
    sample = DeviceSampled(at=START, host=host, gpu=gpus[0], other_gpus=tuple(gpus[1:]))
    shown = text(device_lines(state_of([sample]), sample, None, None, 27, 40)).splitlines()
    assert " 0   61.0 GB  99 %  512 W" in shown
    assert " 1!  60.0 GB   n/a    n/a" in shown
    assert any(row.split() == ["2", "n/a", "n/a", "n/a"] for row in shown)
    assert "cell RSS 1.00 GB at most" in shown
    assert all(len(row) <= 27 for row in shown)


@pytest.mark.parametrize(("ranks", "rows"), [(2, 2), (8, 8), (16, 7)])
def test_the_gpus_of_many_ranks_fit_beside_the_first_ones_figures(ranks: int, rows: int) -> None:
    sample = ranks_sampled(ranks, on_gpus=True)
    shown = text(device_lines(state_of([sample]), sample, None, None, 27, 21)).splitlines()
    assert len(shown) <= 21
    assert sum(row.endswith(" W") and "/" not in row for row in shown) == rows
    assert ("and 9 more" in shown) == (ranks > rows)


def test_phases_have_bars_beside_many_ranks_if_strips_side_by_side_make_room() -> None:
    shown = live(state_of(ranks_session(8, is_over=False)), 1, width=50, height=25).splitlines()
    assert len(shown) <= 25
    assert any(row.startswith("gradient sync ") and row.endswith(" %") for row in shown)
    assert any(re.search(r"0 100 .+ 3 103", row) for row in shown)


def test_no_phase_is_cut_where_there_is_no_room_for_bars() -> None:
    shown = live(state_of(ranks_session(8, is_over=False)), 1, width=50, height=16)
    assert re.search(r"zero 18.39 +fwd 18.39 +loss 18.39 +bwd 18.39\s+sync 18.39 +opt 18.39 +ms", shown)
