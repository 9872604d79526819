"""Memory timeline drawn in characters, and the events in sight."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.stats.quantities import ByteUnit
from cs336_tui.tui.tabs.memory_timeline import (
    EventWindow,
    Picture,
    memory_timeline,
    phase_role,
    room_for_columns,
)
from cs336_tui.tui.widgets.lines import Line, width_of

GB = ByteUnit("GB", 1e9)
PHASES = ("forward",) * 10 + ("backward",) * 10 + ("optimizer",) * 10


def rising(**changes: Any) -> Picture:
    """30 columns from 1 to 30 GB, a third in each of three phases."""
    return Picture([n * 10**9 for n in range(1, 31)], PHASES, 30 * 10**9, GB)._replace(**changes)


def drawn(picture: Picture, width: int = 40, height: int = 10) -> list[str]:
    return ["".join(span.text for span in spans) for spans in memory_timeline(picture, width=width, height=height)]


def column_of(rows: list[str], place: int) -> str:
    """Characters of one column, topmost first, without the axis."""
    return "".join(row[10 + place] for row in rows)


def roles_at(lines: list[Line], place: int) -> list[str]:
    """The role of a column's character in each row."""
    return [[span.role for span in spans for _ in span.text][10 + place] for spans in lines]


def test_columns_are_as_high_as_their_bytes_on_an_axis_from_zero() -> None:
    rows = drawn(rising())
    assert rows[0].startswith("   30 GB ┤")
    assert rows[4].startswith("      15 ┤")
    assert rows[7].startswith("       0 ┤")
    assert column_of(rows[:8], 29) == "█" * 8
    assert column_of(rows[:8], 14) == "    ████"
    eighths = [sum(" ▁▂▃▄▅▆▇█".index(char) for char in column_of(rows[:8], place)) for place in range(30)]
    assert eighths == [round((place + 1) / 30 * 64) for place in range(30)]
    low = rising(bytes=[10**9] * 30)  # the axis does not move with what is in sight
    assert drawn(low)[0].startswith("   30 GB ┤")
    assert column_of(drawn(low)[:8], 0).strip() == "▂"


def test_each_phase_has_its_colour_and_its_name_where_it_begins() -> None:
    lines = memory_timeline(rising(), width=40, height=10)
    bottom = [roles_at(lines, place)[7] for place in (0, 10, 20)]
    assert bottom == [phase_role("forward"), phase_role("backward"), phase_role("optimizer")]
    assert len(set(bottom)) == 3
    assert all(len(spans) <= 4 for spans in lines), "an axis and three phases"
    names = drawn(rising())[-1]
    assert [names.index(phase) for phase in ("forward", "backward", "optimizer")] == [10, 20, 30]
    short = drawn(rising(phases=("zero_grad",) * 3 + ("forward",) * 27))[-1]
    assert short.strip() == "forward", "left out rather than cut to nothing"


def test_the_cursor_is_a_line_through_its_column_and_moving_it_changes_two() -> None:
    lines = memory_timeline(rising(cursor=5), width=40, height=10)
    rows = drawn(rising(cursor=5))
    assert column_of(rows[:9], 5) == "││││││▅█▲"
    assert set(roles_at(lines, 5)[:9]) == {"strong"}
    assert column_of(rows[:8], 6) == column_of(drawn(rising())[:8], 6)
    pairs = [zip(*pair, strict=True) for pair in zip(rows, drawn(rising(cursor=6)), strict=True)]
    assert {x for pair in pairs for x, (old, new) in enumerate(pair) if old != new} == {15, 16}


def test_peak_and_end_of_forward_are_marked_on_the_axis() -> None:
    marks = ((20, "peak"), (14, "end of forward"))
    below = drawn(rising(marks=marks))[-2]
    assert below[10:] == "end of forward╵     ╵peak     "
    assert drawn(rising(marks=marks, cursor=20))[-2][30:35] == "▲peak"


def test_marks_in_one_column_share_its_tick_and_those_at_an_edge_stay_readable() -> None:
    together = drawn(rising(marks=((8, "peak"), (8, "end of forward"))))[-2]
    assert "╵end of forward, peak" in together
    assert drawn(rising(marks=((29, "peak"),)))[-2].endswith("peak╵")
    assert drawn(rising(marks=((0, "peak"), (29, "end of forward"))))[-2][10:].startswith("╵peak")


def test_few_events_are_drawn_wider() -> None:
    rows = drawn(rising(bytes=[10**10, 2 * 10**10, 3 * 10**10], phases=("forward",) * 3))
    assert rows[7][10:] == "█" * 30
    assert rows[0][10:] == " " * 20 + "█" * 10


@pytest.mark.parametrize("width", [0, 9, 10, 11, 40, 200])
@pytest.mark.parametrize("height", range(12))
def test_a_picture_fits_its_room(width: int, height: int) -> None:
    room = room_for_columns(width)
    count = max(min(room, 30), 1)
    picture = rising(bytes=rising().bytes[:count], phases=PHASES[:count], cursor=0, marks=((0, "peak"),))
    lines = memory_timeline(picture, width=width, height=height)
    assert len(lines) in (0, height)
    assert all(width_of(spans) <= width for spans in lines)


def test_the_unit_is_that_of_the_largest_size() -> None:
    assert ByteUnit.for_largest(999_999_999).text(23_400_000) == "23.4 MB"
    assert ByteUnit.for_largest(10**9).text(23_400_000) == "0.023 GB"
    assert ByteUnit.for_largest(80 * 10**9).text(None) == "n/a"


windows = st.builds(
    lambda events, room, event, factors: (EventWindow.whole(events, room), min(event, events - 1), room, factors),
    st.integers(1, 10**6),
    st.integers(1, 200),
    st.integers(0, 10**6),
    st.lists(st.sampled_from([0.5, 2.0]), max_size=12),
)


@given(made=windows, other=st.integers(0, 10**6))
def test_a_window_stays_in_the_record_with_its_event_and_follows_one_that_leaves_it(
    made: tuple[EventWindow, int, int, list[float]], other: int
) -> None:
    window, event, room, factors = made
    for factor in factors:
        window = window.zoomed(factor, event, room)
        assert 0 <= window.first < window.end <= window.events
        assert 1 <= window.columns <= min(room, window.end - window.first)
        column = window.column_of(event)
        assert window.edge(column) <= event < window.edge(column + 1)
    other = min(other, window.events - 1)
    followed = window.following(other)
    assert followed.column_of(other) is not None
    assert followed.end - followed.first == window.end - window.first
    assert followed == window or window.column_of(other) is None


def test_every_event_is_in_exactly_one_column() -> None:
    window = EventWindow(3, 50, 60, 7)
    columns = [window.column_of(event) for event in range(60)]
    assert columns[:3] == [None] * 3
    assert columns[50:] == [None] * 10
    inside = [column for column in columns if column is not None]
    assert inside == sorted(inside)
    assert set(inside) == set(range(7))
