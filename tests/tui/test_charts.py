"""Charts, bars and graphs made of characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.tui.charts.bars import BUCKETS_S, graph, marks, nice_ceiling, phase_bars, progress, rank_strips, window
from cs336_tui.tui.charts.steps import step_chart
from cs336_tui.tui.widgets.lines import Line, bar, column, width_of


def text(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in spans) for spans in lines]


def chart(warm: list[float], measured: list[float], **room: int) -> list[str]:
    sizes = {"warmup_total": 5, "measured_total": 10, "width": 60, "height": 6} | room
    return text(step_chart(warm, measured, **sizes))


def test_one_percent_of_noise_stays_flat() -> None:
    rows = chart([], [0.100, 0.101, 0.0995, 0.1005], warmup_total=0, measured_total=4)
    plain = [row.partition("┤")[2] or row.partition("│")[2] for row in rows[:-1]]
    for row in plain:
        assert len(set(row.replace(" ", ""))) <= 1, rows


def test_the_axis_starts_at_zero_and_says_where_it_ends() -> None:
    rows = chart([0.3], [0.100])
    assert "0 ┤" in rows[-2]
    assert " ms ┤" in rows[0]


def test_warmup_and_measured_steps_are_told_apart_without_colour() -> None:
    rows = chart([0.1] * 5, [0.1] * 3)
    assert rows[-1].index("warm-up") < rows[-1].index("│") < rows[-1].index("measured")
    assert all("│" in row[12:] for row in rows)
    spans = step_chart([0.1], [0.1], warmup_total=1, measured_total=1, width=40, height=4)[1]
    assert {"warmup", "measured"} <= {span.role for span in spans}


def test_a_cold_first_step_is_cut_with_a_mark() -> None:
    rows = chart([5.0, 0.1, 0.1, 0.1, 0.1], [0.1] * 10)
    assert rows[0].count("▲") >= 1
    assert "▲" not in "".join(rows[1:])


def test_steps_keep_their_places_as_more_arrive() -> None:
    before, after = chart([0.1] * 5, [0.1] * 3), chart([0.1] * 5, [0.1] * 4)
    for early, late in zip(before, after, strict=True):
        assert late.startswith(early.rstrip())


def test_thousands_of_steps_fit_and_the_newest_is_in_sight() -> None:
    rows = chart([0.0001] * 5, [0.0001] * 20_000, measured_total=20_000)
    assert max(map(len, rows)) <= 60
    assert "417 steps/column" in rows[-1]
    full, partly = len(rows[-2].rstrip()), chart([0.0001] * 5, [0.0001] * 10_000, measured_total=20_000)
    assert len(partly[-2].rstrip()) < full


@given(
    warm=st.lists(st.floats(1e-6, 100), max_size=20),
    measured=st.lists(st.floats(1e-6, 100), max_size=200),
    more=st.integers(0, 5000),
    width=st.integers(0, 200),
    height=st.integers(0, 20),
)
def test_charts_never_outgrow_their_room(
    warm: list[float], measured: list[float], more: int, width: int, height: int
) -> None:
    lines = step_chart(
        warm, measured, warmup_total=len(warm), measured_total=len(measured) + more, width=width, height=height
    )
    assert len(lines) <= height
    assert all(width_of(spans) <= width for spans in lines[:-1])


@given(value=st.floats(1e-9, 1e9))
def test_round_axis_ends_are_above_and_near(value: float) -> None:
    assert value * (1 - 1e-6) <= nice_ceiling(value) <= value * 2.0001


def test_columns_and_bars_fill_their_share() -> None:
    assert column(1.0, 1.0, 3) == "███"
    assert column(0.5, 1.0, 1) == "▄"
    assert column(1e-6, 1.0, 2) == " ▁", "something is not nothing"
    assert column(2.0, 1.0, 2) == "▲█"
    assert bar(0.5, 4) == "██  "
    assert len(bar(2.0, 5)) == len(bar(-1.0, 5)) == 5


def test_phases_show_their_share_and_time() -> None:
    rows = text(phase_bars({"forward": 0.0481, "backward": 0.104}, width=50))
    assert "48.10 ms  32 %" in rows[0]
    assert "104.00 ms  68 %" in rows[1]
    assert rows[0].count("█") < rows[1].count("█")
    assert {len(row) for row in rows} == {50}


def test_progress_has_a_real_total() -> None:
    (row,) = text([progress(86, 150, width=40)])
    assert row.endswith(" 57 % · 86/150 steps")
    assert len(row) == 40
    assert "100 %" not in text([progress(149, 150, width=40)])[0]


@given(since=st.floats(0, 2e9), age=st.floats(0, 1e6), width=st.integers(1, 200))
def test_a_window_holds_the_present(since: float, age: float, width: int) -> None:
    view = window(since, since + age, width)
    assert 0 <= view.column_of(since + age) < width
    if age < BUCKETS_S[-1] * (width - 1):
        assert view.column_of(since) >= 0


def test_history_marks_where_each_cell_began() -> None:
    view = window(100.0, 119.0, 20)
    rows = text(graph([(100.0, 1.0), (101.0, 0.5), (110.0, 1.0)], view, top=1.0, height=1, role="memory"))
    assert rows == ["█▄▄▄▄▄▄▄▄▄█         "]
    assert text([marks([(100.0, 1), (101.0, 2), (110.0, 3)], view)]) == ["╵╵2       ╵3        "]


@given(
    starts=st.lists(st.tuples(st.floats(-10, 200), st.integers(1, 10**4))).map(lambda found: sorted(found)),
    width=st.integers(1, 60),
)
def test_marks_of_any_number_of_cells_fit_the_graph(starts: list[tuple[float, int]], width: int) -> None:
    view = window(0.0, 100.0, width)
    (row,) = text([marks(starts, view)])
    assert len(row) == width
    assert row.count("╵") == len({view.column_of(at) for at, _ in starts} & set(range(width)))


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_graph_values_outside_the_axis_stay_inside_the_picture(value: float) -> None:
    (row,) = text(graph([(0.0, value)], window(0, 0, 5), top=1.0, height=1, role="memory"))
    assert len(row) == 5
    assert "▲" not in row


RANKS = [0.1, 0.108, 0.104, 0.1]


def test_ranks_stand_one_below_the_other_or_side_by_side() -> None:
    tall = text(rank_strips(RANKS, width=40, rows=4))
    assert [row[:2] for row in tall] == [" 0", "▸1", " 2", " 3"]
    assert tall[1].count("█") > tall[2].count("█") > tall[0].count("█")
    flat = text(rank_strips(RANKS, width=40, rows=2))
    assert ["▸1" in row and " 0" in row for row in flat] == [True, False]


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=40), st.integers(min_value=10, max_value=200), st.integers(0, 10)
)
def test_strips_of_ranks_keep_to_their_room_and_mark_one(times_s: list[float], width: int, rows: int) -> None:
    lines = rank_strips(times_s, width=width, rows=rows)
    assert len(lines) <= rows
    assert "\n".join(text(lines)).count("▸") <= 1
    if len(times_s) <= rows:
        assert len(lines) == len(times_s)
        assert "▸" in text(lines)[times_s.index(max(times_s))]


def test_gradient_sync_has_a_colour_of_its_own_and_leaves_the_others_theirs() -> None:
    names = ("zero_grad", "forward", "loss", "backward", "optimizer")

    def roles(*names: str) -> list[str]:
        return [spans[1].role for spans in phase_bars(dict.fromkeys(names, 1.0), width=60)]

    beside = roles(*names[:4], "gradient sync", names[4])
    assert len(set(beside)) == 6
    assert roles(*names) == [*beside[:4], beside[5]]


def test_strips_without_room_for_bars_stand_in_columns() -> None:
    first, second = text(rank_strips([0.1647, 0.1618, 0.1573, 0.1605] * 2, width=52, rows=2))
    assert [first.index(f" {rank} ") for rank in (1, 2, 3)] == [second.index(f" {rank} ") for rank in (5, 6, 7)]
