"""The sentences and the table of a summary's first page: what they say is so, and no more than is known."""

import random
import re
import statistics

import msgspec
import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, Notice, ReportFinished, ReportStarted, SessionEnded
from cs336_tui.export.findings import findings
from cs336_tui.export.summary import MOST_ROWS, first_table
from cs336_tui.session.state import SessionState
from tests.export.grids import LAPTOP, SMALL, by, grid, grid_events, merged
from tests.made_kernels import a_kernel_report
from tests.samples import START, a_spec, cell_start, session_start, state_of

_RANDOM = random.Random(7)
_DRAWN = [_RANDOM.gauss(0, 0.01) for _ in range(40)]
NOISE = [each - statistics.fmean(_DRAWN) for each in _DRAWN]
"""Of mean 0, so that a series has exactly the mean that it is to have."""
FACTORS = {"fp32": 1.0, "tf32": 1.001, "bf16-mixed": 0.25, "forward": 1.0, "forward+backward": 2.0, "train-step": 3.0}


def series(spec: CellSpec) -> list[float]:
    mean_s = 0.01 * FACTORS[spec.precision] * FACTORS[spec.pass_] * spec.context_length / 128
    return [mean_s * (1 + each) for each in NOISE]


def told(*states: SessionState) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in findings(merged(*states), states):
        found[each.topic] = f"{found[each.topic]} {each.text}" if each.topic in found else each.text
    return found


def test_the_fastest_and_the_slowest_are_named_with_their_means_and_ratio() -> None:
    said = told(grid(by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward", "train-step"]), times=series))
    assert said["Fastest"].startswith("forward · bf16-mixed: 2.500 ms (95 % CI 2.4")
    assert said["Slowest"].startswith("train-step · fp32: 30.00 ms (95 % CI 29.")
    found = re.search(r"; 12\.00 \[(11\.\d+), (12\.\d+)\] times the fastest\.$", said["Slowest"])
    assert found
    assert float(found[1]) < 12 < float(found[2])


def test_ratios_stand_along_each_choice_with_the_ends_of_their_range() -> None:
    said = told(grid(by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward", "train-step"]), times=series))
    assert re.fullmatch(
        r"bf16-mixed is 4\.000 \[3\.9\d+, 4\.0\d+\] \(\S+\) to 4\.000 \[3\.9\d+, 4\.0\d+\] \(\S+\) times as fast as "
        r"fp32, in both pairs\.",
        said["Precision"],
    )
    assert said["Pass"].startswith("train-step takes 3.000 [2.9")
    assert said["Pass"].endswith(" times as long as forward, in both pairs.")


def test_times_that_no_interval_parts_are_called_the_same_or_open() -> None:
    said = told(grid(by([SMALL], precision=["fp32", "tf32"], pass_=["forward"]), times=series))
    assert said["Precision"] == "tf32 takes as long as fp32 within 1 %."
    assert "Fastest" not in said
    assert said["Step time"].startswith("The intervals tell no cell from the fastest: 10.000 ms")


def test_without_intervals_no_order_is_claimed() -> None:
    said = told(grid(by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward"])))
    assert "Which is faster is not settled: 4 steps are fewer than the 10 a side that are needed" in said["Step time"]
    assert said["Precision"].startswith("bf16-mixed against fp32: step-time ratio 0.5, no interval: 4 steps are fewer")
    assert not {"Fastest", "Slowest"} & set(said)
    assert not any(" times as " in text for text in said.values())


def test_pairs_that_disagree_are_counted_by_their_outcome() -> None:
    def mixed(spec: CellSpec) -> list[float]:
        faster = spec.precision == "bf16-mixed" and spec.context_length == 512
        return [0.01 * (0.5 if faster else 1) * (1 + each / 10) for each in NOISE]

    said = told(grid(by([SMALL], precision=["fp32", "bf16-mixed"], context_length=[128, 512]), times=mixed))
    assert said["Precision"].startswith("bf16-mixed against fp32, 2 pairs: faster in 1, the same within 1 % in 1; ")


def test_doubted_cells_failures_and_notices_are_said_where_numbers_are_read() -> None:
    specs = by([SMALL], precision=["fp32", "bf16-mixed"], context_length=[128, 512])
    wild = {0: 0.05, 1: 0.01, 2: 0.02, 3: 0.01}

    def times(spec: CellSpec) -> list[float]:
        return [wild[step % 4] for step in range(12)] if spec.context_length == 512 else series(spec)

    state = grid(specs, times=times, oom=[0])
    state.apply(Notice(at=START, text="the log was cut"))
    said = told(state)
    assert re.match(r"2 of 3 timed cells: .*too-few-steps: 2 cells \(context 512 · ", said["In doubt"])
    assert said["OOM"] == "context 128 · fp32: in stage building: CUDA out of memory."
    assert said["Notice"] == "the log was cut"
    assert "a cell is in doubt" in said["Precision"]


def test_peak_memory_is_named_with_its_share_of_the_device() -> None:
    said = told(grid(by([SMALL], context_length=[128, 512])))
    assert said["Peak memory"] == (
        "At most 4.00 GB allocated on the device (context 512, 4.7 % of the 85.0 GB of cuda:0), at least 1.00 GB "
        "(context 128)."
    )


def test_sessions_are_compared_as_whole_places() -> None:
    specs = by([SMALL], pass_=["forward", "train-step"])
    slow = [msgspec.structs.replace(spec, device="mps") for spec in specs]
    box = grid(specs, session="box", times=series)
    laptop = grid(slow, session="laptop", environment=LAPTOP, times=lambda spec: [2 * s for s in series(spec)])
    said = told(box, laptop)
    assert re.match(
        r"laptop takes 2\.000 \[1\.9\d+, 2\.0\d+\] \(\S+\) to 2\.000 .* times as long as box", said["Session"]
    )
    assert "Device" not in said
    assert "laptop (laptop)" in said["Not made alike"]


def test_the_largest_kernel_of_a_profiled_step_is_named() -> None:
    state = grid([a_spec()])
    state.apply(ReportStarted(at=START, report=0, kind="kernels", spec=a_spec()))
    state.apply(ReportFinished(at=START, report=0, status="ok", content=a_kernel_report(a_spec())))
    assert re.search(r"largest \S+.* with [\d.]+ % of [\d.]+ ms of kernel time", told(state)["Kernels"])


def test_the_table_has_six_columns_and_a_row_a_cell() -> None:
    state = grid(by([SMALL], precision=["fp32", "bf16-mixed"], pass_=["forward"]), times=series, oom=[1])
    table = first_table(merged(state))
    assert table is not None
    assert [column.header for column in table.columns] == [
        "cell", "mean ± std (ms)", "95 % CI (± %)", "tokens/s", "peak allocated (GB)", "verdict",
    ]  # fmt: skip
    std = statistics.stdev(series(a_spec(pass_="forward"))) * 1e3
    rate = 4 * 128 / 0.01
    assert table.rows[0][:2] == ("fp32", f"10.000 ± {std:.3f}")
    assert table.rows[0][3] == f"{rate / 1e3:.1f}k"
    assert table.rows[1][:3] == ("bf16-mixed", "OOM", "–")


def test_of_very_many_cells_both_ends_stand_in_the_table() -> None:
    contexts = range(128, 128 * 41, 128)
    table = first_table(merged(grid(by([SMALL], pass_=["forward"], context_length=contexts))))
    assert table is not None
    assert len(table.rows) == MOST_ROWS // 2
    assert (table.rows[0][0], table.rows[-1][0]) == ("context 128", "context 5120")
    assert table.footnotes[0] == "the 6 fastest and the 6 slowest of 40 timed cells; all are under Cells"


def test_cells_that_never_came_to_a_time_have_their_ending() -> None:
    table = first_table(merged(grid(by([SMALL], context_length=[128, 256]), oom=[0, 1])))
    assert table is not None
    assert table.rows == (("context 128", "oom", "building"), ("context 256", "oom", "building"))


@pytest.mark.parametrize("ended", [True, False])
def test_a_partial_session_says_how_far_it_came(ended: bool) -> None:
    from cs336_tui.export.summary import summary_markdown

    specs = by([SMALL], context_length=[128, 256, 512])
    events: list[Event] = [event for event in grid_events(specs) if getattr(event, "cell", 0) == 0]
    events += [SessionEnded(at=START + 100, reason="cancelled")] if ended else cell_start(1)
    text = summary_markdown(state_of(events))
    state = (
        r"stopped at \d+/\d+ steps.*, `cs336-tui resume sample` runs what is left"
        if ended
        else "the session has not ended"
    )
    assert re.search(rf"\*\*Partial: 1 of 3 cells finished\*\* \(1 ok\); {state}\.", text)


def test_a_session_without_any_result_says_so_alone() -> None:
    state = state_of(session_start([a_spec()]))
    assert told(state) == {}
    assert first_table(merged(state)) is None
