"""Queries of a memory report: any moment, the largest allocations, peaks, tensors that blocks save."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336_tui.analysis.memory import Timeline, activation_peak, phase_peaks, saved_summary
from cs336_tui.events.prediction import CATEGORIES
from cs336_tui.events.reports import MemoryReport, SavedBlock
from tests.made_memory import MB, MemoryMaker, a_memory_report, some_saved_blocks

REPORT = a_memory_report()


@st.composite
def reports(draw: st.DrawFn) -> MemoryReport:
    """Allocations and frees in any order, some alive from the begin, some to the end."""
    made = MemoryMaker()
    frames = ("", "model.py:1 a", "model.py:2 b")

    def allocate() -> int:
        size = draw(st.integers(1, 2**40))
        frame, range_ = draw(st.sampled_from(frames)), draw(st.sampled_from(("", "head")))
        return made.allocate(size, draw(st.sampled_from(CATEGORIES)), "mm", frame, range_)

    live = [allocate() for _ in range(draw(st.integers(0, 3)))]
    for phase in ("forward", "backward"):
        made.phase(phase)
        for _ in range(draw(st.integers(0, 8))):
            if live and draw(st.booleans()):
                made.free(live.pop(draw(st.integers(0, len(live) - 1))))
            else:
                live.append(allocate())
    return made.report()


def live_blocks(report: MemoryReport, event: int) -> list[int]:
    """Places of the live blocks, looked up one by one."""
    lives = zip(report.born, report.died, strict=True)
    return [place for place, (born, died) in enumerate(lives) if born <= event and (died < 0 or event < died)]


@settings(max_examples=60, deadline=None)
@given(reports())
def test_every_moment_is_what_looking_at_each_block_says(report: MemoryReport) -> None:
    timeline = Timeline(report)
    active: list[int] = []
    """Live bytes of activations and temporary memory of the step's own at each event."""
    for event in range(report.events):
        places = live_blocks(report, event)
        of_step = (p for p in places if report.born[p])
        held = (report.bytes[p] for p in of_step if CATEGORIES[report.categories[p]] in ("activations", "temporary"))
        active.append(sum(held))
        moment = timeline.at(event, n=3)
        assert moment.total_bytes == timeline.live_total[event] == sum(report.bytes[place] for place in places)
        for category, size in moment.by_category.items():
            assert size == sum(report.bytes[p] for p in places if CATEGORIES[report.categories[p]] == category)
        assert [block.bytes for block in moment.blocks] == sorted((report.bytes[p] for p in places), reverse=True)[:3]
        assert sum(row.bytes for row in timeline.by_site(event)) == moment.total_bytes
    assert timeline.live_total.max(initial=0) == report.peak_bytes == timeline.at(report.peak_event).total_bytes
    assert activation_peak(report) == max(active)


@settings(max_examples=60, deadline=None)
@given(reports(), st.integers(1, 40), st.data())
def test_a_column_is_the_highest_moment_of_its_events(report: MemoryReport, count: int, data: st.DataObject) -> None:
    timeline = Timeline(report)
    first = data.draw(st.integers(0, report.events - 1))
    end = data.draw(st.integers(first + 1, report.events))
    moments = timeline.moments(count, first, end)
    columns = timeline.by_category[:, moments]
    assert columns.shape == (len(CATEGORIES), count)
    assert ((first <= moments) & (moments < end)).all()
    assert columns.sum(axis=0).max() == timeline.live_total[first:end].max()
    assert (columns.sum(axis=0) == timeline.live_total[moments]).all()


def test_blocks_below_the_level_of_detail_are_left_out() -> None:
    assert {found.block.bytes for found in Timeline(REPORT).allocations(40 * MB, 100)} == {40 * MB, 60 * MB}
    assert [found.block.bytes for found in Timeline(REPORT).allocations(n=2)] == [60 * MB, 40 * MB]
    assert not Timeline(REPORT).allocations(10**12)
    made = MemoryMaker()
    made.phase("forward")
    for _ in range(5):
        made.allocate(7, "activations")
    assert [found.block.bytes for found in Timeline(made.report()).allocations(n=3)] == [7, 7, 7], "all of one size"


def test_the_activation_peak_is_apart_from_all_that_is_no_activation() -> None:
    """Three layers keep 3 + 3 x 6 MB, head and loss 20 each; backward's first gradient comes on top. The optimizer's
    60 MB, and what lives since before the step, do not count."""
    assert activation_peak(REPORT) == (3 * 21 + 2 * 20 + 15) * MB
    assert phase_peaks(REPORT)["activations"] == activation_peak(REPORT)
    made = MemoryMaker()
    made.allocate(32 * MB, "temporary")  # a workspace
    made.phase("forward")
    made.allocate(5 * MB, "activations")
    made.allocate(2 * MB, "buffers")
    made.phase("optimizer")
    made.allocate(90 * MB, "temporary")
    assert activation_peak(made.report()) == 5 * MB
    assert activation_peak(made.report(activation_peak_bytes=6)) == 6, "as it was recorded"
    assert activation_peak(made.report(phases=())) is None, "a record without phases"


def test_a_block_that_saves_more_has_a_row_of_its_own() -> None:
    first, *others = some_saved_blocks(4)
    more = msgspec.structs.replace(first.contributors[0], count=2, bytes=2 * first.contributors[0].bytes)
    odd = SavedBlock("layers.0", first.bytes + more.bytes // 2, (more, *first.contributors[1:]))
    rows = saved_summary(a_memory_report(saved=(odd, *others)))
    assert [row.modules for row in rows] == ["layers.0", "layers.1 to layers.3, each"]
    assert not saved_summary(a_memory_report(saved=()))
