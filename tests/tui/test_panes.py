"""Live, the heading, and everything known of a cell: their texts for a given session."""

import re
from pathlib import Path

import numpy as np
import pytest

from cs336_tui.analysis.verdicts import judge
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.peaks import PeakCache
from cs336_tui.session.state import SessionState
from cs336_tui.tui.format import title_rows
from cs336_tui.tui.help import help_page
from cs336_tui.tui.judging import assess
from cs336_tui.tui.screen import heading
from cs336_tui.tui.tabs.cell_detail import cell_detail
from cs336_tui.tui.tabs.device import DevicePane, Run, device_lines
from cs336_tui.tui.tabs.live import LivePane, live_lines
from cs336_tui.tui.tabs.status import status
from cs336_tui.worker.measure.timing import why_stopped
from tests.analysis.judging import a_cell
from tests.made_memory import a_memory_report
from tests.samples import (
    START,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    ranks_session,
    report_events,
    session_start,
    state_of,
    steps,
)
from tests.session.made import Cell, session_of
from tests.tui.watched import WIDE, demo, in_the_middle, on_screen, replaying, text, until


def live_of(spec: CellSpec, *events: ev.Event, width: int = 60) -> str:
    """The pane of a cell that has started, after these events."""
    return live(state_of([*session_start([spec]), *cell_start(0), *events]), 0, width)


def live(state: SessionState, cell: int, width: int = 60, height: int = 30) -> str:
    return text(live_lines(state, state.cells[cell], width, height))


def test_a_cell_stopped_while_compiling_shows_no_step() -> None:
    end = ev.CellFinished(at=START + 12, cell=0, status="cancelled", stage="compiling", error="stopped by the user")
    shown = live_of(a_spec(), end)
    assert " 0/6 steps\n" in shown
    assert "✗ cancelled while compiling\n" in shown
    assert "100 %" not in shown


@pytest.mark.parametrize("width", [30, 48, 53])
def test_what_is_to_be_typed_is_never_cut_in_two(width: int) -> None:
    error = "Needs(vocab_size, d_model, widget) needs widget; give it with --model-arg widget=VALUE"
    end = ev.CellFinished(at=START + 11, cell=0, status="failed", error=error)
    state = state_of([*session_start([a_spec()]), *cell_start(0), end])
    assert "--model-arg" in live(state, 0, width)
    assert "--model-arg" in text(cell_detail(state, state.cells[0], width))


def test_progress_is_the_share_of_the_time_until_nothing_waits() -> None:
    assert " 14 % of the time · 86/270 steps" in live(state_of(demo(in_the_middle)), 5), "a third of the steps"
    assert "100 % · 270/270 steps" in live(state_of(demo()), 0)
    assert " 50 % · 3/6 steps" in live_of(a_spec(), *steps(0, [0.2, 0.1], [0.1]), cell_end(0, "cancelled"))


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


def test_every_status_differs_by_more_than_colour() -> None:
    state = state_of(mixed_session())
    assert {status(cell).text for cell in state.cells.values()} == {"✓ ok", "▲ OOM", "✗ failed", "· queued"}


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
        ev.CellsQueued(at=START, first=3, specs=(a_spec(),)),
        ev.ChildOutput(at=START, cell=None, text="x"),
        ev.ChildOutput(at=START, cell=77, text="y"),
        ev.Notice(at=START, text="z"),
        ev.CellFinished(at=START, cell=3, status="killed", error="the kernel ended it"),
    ]
    state = state_of(events)
    assert "process killed" in live(state, 3)
    assert "the kernel ended it" in text(cell_detail(state, state.cells[3], 60))


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
    assert "ranks, last warm-up step ms · slowest ▸1\n" in live(state_of(events), 1)


def test_the_detail_of_a_cell_has_each_ranks_mean_and_peak() -> None:
    state = state_of(ranks_session(4))
    shown = text(cell_detail(state, state.cells[1], 80))
    assert re.search(r"rank 0 +100\.0+ ms mean, 1\.00 GB peak RSS", shown)
    assert "rank 3          106.3 ms mean, 1.03 GB peak RSS" in shown
    assert "skew            6.3 ms mean ± 5.8 std" in shown
    assert "rank 0" not in text(cell_detail(state, state.cells[0], 80))


def test_phases_have_bars_beside_many_ranks_if_strips_side_by_side_make_room() -> None:
    shown = live(state_of(ranks_session(8, is_over=False)), 1, width=50, height=25).splitlines()
    assert len(shown) <= 25
    assert any(row.startswith("gradient sync ") and row.endswith(" %") for row in shown)
    assert any(re.search(r"0 100 .+ 3 103", row) for row in shown)


def test_no_phase_is_cut_where_there_is_no_room_for_bars() -> None:
    shown = live(state_of(ranks_session(8, is_over=False)), 1, width=50, height=16)
    assert re.search(r"zero 18.39 +fwd 18.39 +loss 18.39 +bwd 18.39\s+sync 18.39 +opt 18.39 +ms", shown)


def test_the_detail_of_a_cell_says_how_it_crashed() -> None:
    state = state_of(mixed_session())
    shown = text(cell_detail(state, state.cells[0], 80))
    for part in ("412.3", "153.70", "sample, n-1, n=4", "peak reserved   4.00 GB", "float32", "4 × 128 = 512 tokens"):
        assert part in shown
    assert shown.index("Warm-up steps") < shown.index("Measured steps")
    crashed = text(cell_detail(state, state.cells[2], 80))
    assert "Segmentation fault" in crashed
    assert "\x1b" not in crashed


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("building", "building the model"),
        ("warm-up", "warm-up 0/2"),
        ("finishing", "finishing"),
        ("compiling", "compiling the model, 0:12"),
        ("capturing", "capturing a CUDA graph, 0:12"),
    ],
)
def test_each_stage_has_its_words_and_long_ones_say_how_long_they_have_lasted(stage: str, words: str) -> None:
    since = ev.StageChanged(at=START + 20, cell=0, stage=stage)
    assert words in live_of(a_spec(compile="default"), since, ev.Notice(at=START + 32, text=""))


def test_what_preparing_took_stands_beside_the_rates() -> None:
    prepared = ev.ModelPrepared(at=START + 20, cell=0, compile_s=12.34, graphs=1, capture_s=0.256)
    ended = cell_end(0, before_backward_bytes=1_500_000_000)
    shown = live_of(a_spec(compile="default"), prepared, *steps(0, [0.2], [0.1] * 4), ended, width=110)
    assert "compiled in 12.3 s · captured in 0.26 s · before backward 1.50 GB" in shown


LONG = a_spec(workload="attention", attention="memory-efficient", compile="reduce-overhead", causal=False)


@pytest.mark.parametrize("width", [30, 53, 78, 120])
def test_a_long_title_takes_two_rows_and_loses_no_part_before_it_must(width: int) -> None:
    rows = title_rows(LONG.title, width)
    assert len(rows) <= 2
    assert " · ".join(row.removesuffix(" ·") for row in rows) == LONG.title
    assert len(rows[0]) <= width
    assert (len(rows) == 1) == (len(LONG.title) <= width)


def test_the_detail_of_a_cell_tells_variants_with_units() -> None:
    spec = a_spec(
        model="my.model:LM", model_args=(("dropout", "0.1"),), model_path=("/repo",), compile="default",
        checkpoint=2, optimizer="my.optim:AdamW", pass_="train-step",
    )  # fmt: skip
    in_force = ev.EffectiveSettings(
        matmul_precision="highest", attention="LM's own", model_revision="a1b2c3d, my/model.py 0f0f0f0f"
    )
    breaks = ("call to print (my/model.py:12)",)
    prepared = ev.ModelPrepared(at=START + 13, cell=0, compile_s=31.04, graphs=2, graph_breaks=breaks)
    built = ev.ModelBuilt(at=START + 12, cell=0, num_params=10, num_params_without_head=9, in_force=in_force)
    ended = cell_end(0, recompilations=1)
    events = [ev.CellStarted(at=START + 10, cell=0), built, prepared, *steps(0, [0.3], [0.1] * 4), ended]
    state = state_of([*session_start([spec]), *events])
    shown = text(cell_detail(state, state.cells[0], 100))
    for row in ("compiling       31.0 s", "graphs          2", "graph breaks    1", "call to print (my/model.py:12)",
                "recompiled 1 time during the steps", "model           my.model:LM", "arguments       dropout=0.1",
                "module path     /repo", "torch.compile   default",
                "checkpoint      activations recomputed in groups of 2 blocks", "optimizer       my.optim:AdamW",
                "model revision  a1b2c3d, my/model.py 0f0f0f0f", "attention       LM's own"):  # fmt: skip
        assert row in shown


def test_the_detail_of_attention_alone_names_no_model() -> None:
    spec = a_spec(
        workload="attention", size="d64", d_model=64, num_heads=1, pass_="forward", attention="sdpa", cuda_graph="step"
    )
    prepared = ev.ModelPrepared(at=START + 12, cell=0, capture_s=0.0421)
    ended = cell_end(0, before_backward_bytes=268_435_456, peak_allocated_bytes=300_000_000)
    events = [*cell_start(0), prepared, *steps(0, [0.3], [0.1] * 4), ended]
    state = state_of([*session_start([spec]), *events])
    shown = text(cell_detail(state, state.cells[0], 100))
    for row in ("workload        attention alone, no model around it", "head dim        64", "mask            causal",
                "attention       sdpa", "capturing       0.04 s", "before backward 0.268 GB"):  # fmt: skip
        assert row in shown
    assert "vocabulary" not in shown
    assert "graph breaks" not in shown


STEADY_S = [0.1 + 0.0001 * (step * 7 % 5) for step in range(30)]


def told(**spec: object) -> str:
    state = session_of(Cell(a_spec(**spec), STEADY_S))
    found = assess(state, state.cells[0], PeakCache(Path("/nowhere")))
    return " ".join(text(cell_detail(state, state.cells[0], 100, found)).split())


def test_the_level_of_an_interval_stands_apart_from_its_sign() -> None:
    noisy = list(0.1 * np.random.default_rng(5).lognormal(0.0, 0.5, 30))
    assert "95 % CI ± 23 % of the mean" in judge(a_cell(noisy)).sentence
    assert why_stopped(STEADY_S, 0.01).endswith("(95 %)")
    assert "(95 % interval)" in told()


def test_the_help_says_how_well_the_mean_is_known_by_default() -> None:
    shown = " ".join(text(help_page(100, replaying=False).lines).split())
    assert "the mean is known to ± 0.5 %" in shown
    assert "auto 2%: until ± 1 %" in shown


@pytest.mark.parametrize("size", [WIDE, (200, 60)])
async def test_a_session_of_reports_says_where_they_are(size: tuple[int, int], tmp_path: Path) -> None:
    (started, environment, _) = session_start([])
    events = [started, environment, *report_events(a_memory_report(), cell=0)]
    async with on_screen(replaying(events, tmp_path), "at its end", size=size) as (app, pilot):
        live, device = app.main.query_one(LivePane), app.main.query_one(DevicePane)
        await until(pilot, lambda _: bool(app.state.reports) and "no cells" in live.text)
        said = " ".join(live.text.split())
        assert said.endswith("This session has reports and no cells: Kernels (9), Memory (0), Precision (p).")
        for pane in (live, device):
            assert max(map(len, pane.text.splitlines())) <= pane.content_size.width, "nothing is cut"
        assert " ".join(device.text.split()).endswith("waiting for the first sample ...")
