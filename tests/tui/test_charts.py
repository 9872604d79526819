"""Charts, bars and graphs made of characters; the chart of steps in Live: its room, its axes, what is off scale."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.config.spec import Pass
from cs336_tui.config.values import PHASES
from cs336_tui.events.events import StageChanged, StepsTimed
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import ByteUnit
from cs336_tui.tui.charts import bars
from cs336_tui.tui.charts.steps import step_chart
from cs336_tui.tui.tabs.live import live_lines
from cs336_tui.tui.tabs.memory_timeline import Picture, memory_timeline
from cs336_tui.tui.widgets.lines import Line, bar, column, width_of
from tests.samples import START, a_spec, cell_start, ranks_session, session_start, state_of
from tests.tui.watched import SMALL, a_step, demo, in_the_middle, on_screen, press, replaying, text, until


def drawn(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in spans) for spans in lines]


def rows_of(warm: list[float], measured: list[float], **room: int) -> list[str]:
    sizes = {"warmup_total": 5, "measured_total": 10, "width": 51, "height": 9} | room
    return drawn(step_chart(warm, measured, **sizes))


def test_warmup_and_measured_steps_are_told_apart_without_colour() -> None:
    rows = rows_of([0.1] * 5, [0.1] * 3)
    assert rows[-1].index("warm-up") < rows[-1].index("│") < rows[-1].index("measured")
    assert all("│" in row[12:] for row in rows)
    spans = step_chart([0.1], [0.1], warmup_total=1, measured_total=1, width=40, height=4)[1]
    assert {"warmup", "measured"} <= {span.role for span in spans}


def test_steps_keep_their_places_as_more_arrive() -> None:
    before, after = rows_of([0.1] * 5, [0.1] * 3), rows_of([0.1] * 5, [0.1] * 4)
    for early, late in zip(before, after, strict=True):
        assert late.startswith(early.rstrip())


def test_thousands_of_steps_fit_and_the_newest_is_in_sight() -> None:
    rows = rows_of([0.0001] * 5, [0.0001] * 20_000, measured_total=20_000)
    assert max(map(len, rows)) <= 51
    assert "513 steps/column" in rows[-1]
    full, partly = len(rows[-2].rstrip()), rows_of([0.0001] * 5, [0.0001] * 10_000, measured_total=20_000)
    assert len(partly[-2].rstrip()) < full


@given(
    warm=st.lists(st.floats(1e-6, 100), max_size=20),
    measured=st.lists(st.floats(1e-6, 100), max_size=200),
    more=st.integers(0, 5000),
    width=st.integers(0, 200),
    height=st.integers(0, 20),
    zoomed=st.booleans(),
)
def test_charts_never_outgrow_their_room(
    warm: list[float], measured: list[float], more: int, width: int, height: int, zoomed: bool
) -> None:
    room = {"width": width, "height": height, "zoomed": zoomed}
    lines = step_chart(warm, measured, warmup_total=len(warm), measured_total=len(measured) + more, **room)
    assert len(lines) <= height
    assert all(width_of(spans) <= width for spans in lines[:-1])


@given(value=st.floats(1e-9, 1e9))
def test_round_axis_ends_are_above_and_near(value: float) -> None:
    assert value * (1 - 1e-6) <= bars.nice_ceiling(value) <= value * 2.0001


def test_columns_and_bars_fill_their_share_and_progress_is_whole_at_its_end_alone() -> None:
    assert column(1.0, 1.0, 3) == "███"
    assert column(0.5, 1.0, 1) == "▄"
    assert column(1e-6, 1.0, 2) == " ▁", "something is not nothing"
    assert column(2.0, 1.0, 2) == "▲█"
    assert bar(0.5, 4) == "██  "
    assert len(bar(2.0, 5)) == len(bar(-1.0, 5)) == 5
    (row,) = drawn([bars.share_bar(149 / 150, "149/150 steps", 40)])
    assert "╌" in row
    assert "╌" not in drawn([bars.share_bar(1.0, "150/150 steps", 40)])[0]
    assert len(row) == 40


@given(since=st.floats(0, 2e9), age=st.floats(0, 1e6), width=st.integers(1, 200))
def test_a_window_holds_the_present(since: float, age: float, width: int) -> None:
    view = bars.window(since, since + age, width)
    assert 0 <= view.column_of(since + age) < width
    if age < bars.BUCKETS_S[-1] * (width - 1):
        assert view.column_of(since) >= 0


def test_history_marks_where_each_cell_began() -> None:
    view = bars.window(100.0, 119.0, 20)
    rows = drawn(bars.graph([(100.0, 1.0), (101.0, 0.5), (110.0, 1.0)], view, top=1.0, height=1, role="memory"))
    assert rows == ["█▄▄▄▄▄▄▄▄▄█         "]
    assert drawn([bars.marks([(100.0, 1), (101.0, 2), (110.0, 3)], view)]) == ["╵╵2       ╵3        "]


@given(
    starts=st.lists(st.tuples(st.floats(-10, 200), st.integers(1, 10**4))).map(sorted),
    width=st.integers(1, 60),
)
def test_marks_of_any_number_of_cells_fit_the_graph(starts: list[tuple[float, int]], width: int) -> None:
    view = bars.window(0.0, 100.0, width)
    (row,) = drawn([bars.marks(starts, view)])
    assert len(row) == width
    assert row.count("╵") == len({view.column_of(at) for at, _ in starts} & set(range(width)))


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_graph_values_outside_the_axis_stay_inside_the_picture(value: float) -> None:
    (row,) = drawn(bars.graph([(0.0, value)], bars.window(0, 0, 5), top=1.0, height=1, role="memory"))
    assert len(row) == 5
    assert "▲" not in row


RANKS = [0.1, 0.108, 0.104, 0.1]


def test_ranks_stand_one_below_the_other_or_side_by_side() -> None:
    tall = drawn(bars.rank_strips(RANKS, width=40, rows=4))
    assert [row[:2] for row in tall] == [" 0", "▸1", " 2", " 3"]
    assert tall[1].count("█") > tall[2].count("█") > tall[0].count("█")
    assert ["▸1" in row and " 0" in row for row in drawn(bars.rank_strips(RANKS, width=40, rows=2))] == [True, False]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.integers(10, 200), st.integers(0, 10))
def test_strips_of_ranks_keep_to_their_room_and_mark_one(times_s: list[float], width: int, rows: int) -> None:
    lines = bars.rank_strips(times_s, width=width, rows=rows)
    assert len(lines) <= rows
    assert "\n".join(drawn(lines)).count("▸") <= 1
    if len(times_s) <= rows:
        assert len(lines) == len(times_s)
        assert "▸" in drawn(lines)[times_s.index(max(times_s))]


def test_strips_without_room_for_bars_stand_in_columns() -> None:
    first, second = drawn(bars.rank_strips([0.1647, 0.1618, 0.1573, 0.1605] * 2, width=52, rows=2))
    assert [first.index(f" {rank} ") for rank in (1, 2, 3)] == [second.index(f" {rank} ") for rank in (5, 6, 7)]


IN_SMALL = (51, 20)
"""The pane in a terminal of 80x24."""
STEPS_S = [0.3476 + 0.0011 * noise for noise in (-1.2, 0.4, 0.9, -0.3, 0.1, 1.4, -0.8, 0.2, -0.1, 0.6)]


def bars_from(shown: list[str]) -> tuple[int, int]:
    """The first row of the chart and its number of rows without the names below."""
    first = next(place for place, row in enumerate(shown) if " ms ┤" in row or row.endswith(" ┤") or "│" in row[9:10])
    last = next(place for place, row in enumerate(shown) if row.startswith("       0 ┤") or "0 ┤" in row[:11])
    return first, last - first + 1


def test_in_a_small_terminal_the_chart_has_eight_rows_that_hold_still() -> None:
    state, seen = SessionState(), {}
    for event in demo():
        state.apply(event)
        cell = state.running_cell
        if cell is None or not isinstance(event, StepsTimed):
            continue
        shown = text(live_lines(state, cell, *IN_SMALL)).splitlines()
        assert len(shown) <= IN_SMALL[1]
        first, count = bars_from(shown)
        assert count >= 8
        assert seen.setdefault(cell.cell, (first, count)) == (first, count)
    assert len(seen) == 18  # one has no step


@pytest.mark.parametrize("is_over", [False, True])
def test_a_cell_of_ranks_keeps_eight_rows_too(is_over: bool) -> None:
    state = state_of(ranks_session(8, is_over=is_over))
    assert bars_from(text(live_lines(state, state.cells[1], *IN_SMALL)).splitlines())[1] >= 8


def test_what_is_off_scale_says_so_at_its_mark() -> None:
    rows = rows_of([0.812, *STEPS_S[:4]], STEPS_S)
    assert "▲ first step 812 ms, off scale" in rows[0]
    assert "step 7 2600 ms, off scale ▲" in rows_of(STEPS_S[:5], [*STEPS_S[:6], 2.6], width=70)[0]
    assert "off scale" not in "\n".join(rows_of(STEPS_S[:5], STEPS_S))


@given(
    warm=st.lists(st.floats(1e-3, 10), max_size=5),
    others=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=30),
    slowest=st.floats(0.1, 4),
    zoomed=st.booleans(),
)
def test_a_measured_step_is_drawn_to_its_height_or_has_its_value(
    warm: list[float], others: list[float], slowest: float, zoomed: bool
) -> None:
    measured = [*others, slowest]
    rows = rows_of(warm, measured, measured_total=len(measured), width=150, zoomed=zoomed)
    at = rows[-1].index("measured")
    shown = [row[at:] for row in rows[:-1]]
    clipped = [row.index(mark) for row in (shown[0], shown[-1]) for mark in "▲▼" if mark in row]
    assert not clipped or re.search(r"steps? .*\d+ m?s\b", "".join((*shown, rows[-1])))
    assert zoomed or slowest > 4 or not clipped


def test_the_mean_has_a_line_and_one_std_either_side_a_band() -> None:
    mean_s, std_s = 0.35, 0.05
    rows = rows_of([0.35] * 5, [0.3, 0.4] * 3, mean_s=mean_s, std_s=std_s, width=60)
    assert [row[:8].strip() for row in rows[:-1]] == ["500 ms", "", "mean", "", "", "", "", "0"]
    assert rows[2].rstrip().endswith("─" * 12)
    assert ["┄" in row for row in rows] == [False, True, False, True, *[False] * 4, True]
    assert "┄ ± 1 std" in rows[-1]
    flat = rows_of([0.35] * 5, [0.35] * 3, mean_s=mean_s, std_s=0.0, width=60)
    assert "─" in "".join(flat)
    assert "┄" not in "".join(flat)


@pytest.mark.parametrize("width", [44, 51, 70, 120])
def test_a_measured_step_off_scale_has_its_time_beside_a_cold_first_one(width: int) -> None:
    for place in (0, 4, 9):
        measured = [*STEPS_S[:place], 2.6, *STEPS_S[place + 1 :]]
        rows = rows_of([0.812, *STEPS_S[:4]], measured, width=width)
        shown = "\n".join((rows[0], rows[-1]))
        assert "2600 ms" in shown
        assert "812 ms" in shown
        assert re.search("▲ +(step [0-9]+ )?2600 ms|2600 ms(, off scale)? ▲", rows[0]), "beside its mark"


def test_each_of_several_steps_off_scale_has_its_time_where_there_is_room() -> None:
    measured = [STEPS_S[0], 2.6, *STEPS_S[2:8], 2.7, STEPS_S[9]]
    wide = rows_of(STEPS_S[:5], measured, width=90)[0]
    assert [time for time in ("2600 ms", "2700 ms") if time in wide] == ["2600 ms", "2700 ms"]
    assert wide.index("▲") < wide.index("2600 ms") < wide.rindex("▲") < wide.index("2700 ms")
    many = rows_of(STEPS_S[:5], [0.3476] * 6 + [2.6, 2.61, 2.62, 2.63], width=51)
    assert "4 steps up to 2630 ms" in many[0] + many[-1]


def test_a_step_below_a_zoomed_axis_has_its_time_too() -> None:
    rows = rows_of(STEPS_S[:5], [*STEPS_S[:5], 0.2, *STEPS_S[6:]], zoomed=True, width=70)
    assert "▼" in rows[-2]
    assert "step 6 200 ms" in rows[-2] + rows[-1]


def test_from_zero_steps_look_alike_and_zoomed_they_do_not() -> None:
    from_zero, zoomed = (rows_of(STEPS_S[:5], STEPS_S, zoomed=zoomed) for zoomed in (False, True))
    assert "axis from 0" in from_zero[-1]
    assert "axis from 345 ms" in zoomed[-1]
    assert zoomed[-2].startswith("     345 ┤")
    heights = [{"".join(row[at] for row in rows[:-1]) for at in range(21, 41, 2)} for rows in (from_zero, zoomed)]
    assert len(heights[0]) <= 2 < len(heights[1])


def test_a_zoomed_axis_goes_around_the_measured_steps_as_soon_as_there_are_any() -> None:
    warm = [0.812, 0.351, 0.350, 0.349, 0.352]
    assert "axis from 3" in rows_of(warm, [], zoomed=True)[-1]
    rows = rows_of(warm, STEPS_S, zoomed=True)
    assert "axis from 345 ms" in rows[-1]
    assert "812 ms, off scale" in rows[0]


def test_all_figures_of_a_paint_are_of_one_state() -> None:
    state = state_of([*session_start([a_spec()]), *cell_start(0), StageChanged(at=START + 2, cell=0, stage="warm-up")])

    def shown_after(time_s: float, first: int, kind: str) -> str:
        state.apply(msgspec.structs.replace(a_step(0, time_s, first, kind), phases_s={"forward": (time_s,)}))
        return text(live_lines(state, state.cells[0], 60, 36))

    shown_after(0.311, 0, "warm-up")
    seen = shown_after(0.1105, 1, "warm-up")
    assert "110.5 ms latest warm-up step, not measured" in seen
    forward = next(row for row in seen.splitlines() if "forward" in row and "%" in row)
    assert "110.50 ms" in forward, "the phases are of the step in the headline"
    state.apply(StageChanged(at=START + 2, cell=0, stage="measuring"))
    seen = [shown_after(0.2, first, "measured") for first in range(25)][-1]
    assert "(n=25)" in seen
    assert any("forward" in row and "200.00 ms" in row for row in seen.splitlines())
    assert re.search(r"25 measured +200", seen), "the table goes to the newest step"


@pytest.mark.parametrize("pass_", PHASES)
def test_a_phase_has_one_colour_on_every_pass(pass_: Pass) -> None:
    phases = PHASES[pass_]
    means = dict.fromkeys((*phases, "gradient sync", "accumulation"), 0.1)
    roles = {spans[0].text.strip(): spans[1].role for spans in bars.phase_bars(means, width=60)}
    assert roles == {phase: bars.phase_role(phase) for phase in means}
    assert len(set(roles.values())) == len(roles)
    lines = bars.phase_lines(means, width=200)
    named = [span.role for row in lines for span in row if span.role not in ("text", "muted")]
    assert named == [role for role in roles.values() if role != "muted"]
    picture = Picture([10**9] * len(phases), phases, 10**9, ByteUnit("GB", 1e9))
    drawn = {span.role for row in memory_timeline(picture, width=60, height=8)[:-2] for span in row}
    assert {bars.phase_role(phase) for phase in phases} <= drawn


def test_phases_differ_in_colour_in_every_theme() -> None:
    for file in (Path(__file__).parents[2] / "themes").glob("*.toml"):
        variables = tomllib.loads(file.read_text())["variables"]
        colours = [variables[bars.phase_role(phase)] for phase in (*PHASES["train-step"], "gradient sync")]
        assert len(set(colours)) == len(colours), file.name


async def test_z_zooms_and_enter_opens_the_cell(tmp_path: Path) -> None:
    async with on_screen(replaying(demo(in_the_middle), tmp_path), "at its end", size=SMALL) as (_, pilot):
        await press(pilot, "2", seen="axis from 0")
        await press(pilot, "z", seen="axis from 346 ms")
        await press(pilot, "z", seen="axis from 0")
        await press(pilot, "enter", seen="Measured steps, ms")
        await pilot.press("escape")
        await pilot.click("#live", offset=(5, 3))
        await until(pilot, "Measured steps, ms")
