"""The session summary: complete, readable at any moment, measurements only."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from cs336_tui.events.events import ChildOutput, Event, Notice, StepsTimed
from cs336_tui.export.summary import OUTPUT_LINES, SPARKLINE_BARS, summary_markdown
from cs336_tui.session.state import SessionState
from tests.samples import a_spec, cell_end, cell_start, mixed_session, session_start, state_of, steps
from tests.strategies import any_event


def sections(text: str) -> dict[str, str]:
    """Bodies by heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def sparklines(text: str) -> list[str]:
    return re.findall(r"`([▁-█]*│[▁-█]*)`", text)


def test_a_whole_session_has_every_section(snapshot: SnapshotAssertion) -> None:
    """Colours of the terminal are gone from the output of a failed cell, and backticks in it do not close its block."""
    text = summary_markdown(state_of(mixed_session()))
    assert list(sections(text)) == [
        "Findings", "Cells", "How close to the limit", "Failures", "Provenance", "Appendix: every step",
    ]  # fmt: skip
    assert text == snapshot


def test_raw_times_of_short_steps_keep_the_digits_of_their_std() -> None:
    state = state_of([*session_start([a_spec()]), *steps(0, (), (0.0001234, 0.0001235, 0.0001236)), cell_end(0)])
    assert "measured, ms: 0.12340 0.12350 0.12360" in summary_markdown(state)


def test_phases_stand_in_the_order_of_a_step() -> None:
    state = state_of(session_start([a_spec(pass_="forward"), a_spec(pass_="train-step")]))
    for cell, names in enumerate([("forward",), ("zero_grad", "forward", "backward")]):
        phases = dict.fromkeys(names, (0.1,))
        state.apply(StepsTimed(at=1.0, cell=cell, kind="measured", first=0, times_s=(0.3,), phases_s=phases))
    (header,) = (line for line in summary_markdown(state).splitlines() if "enqueue (ms)" in line)
    assert re.findall(r"\S+ \(ms\)", header) == ["zero_grad (ms)", "forward (ms)", "backward (ms)", "enqueue (ms)"]


def test_only_the_end_of_a_long_output_is_shown() -> None:
    output = "".join(f"line {number}\n" for number in range(1000))
    events: list[Event] = [*session_start([a_spec()]), *cell_start(0), ChildOutput(at=1.0, cell=0, text=output)]
    failures = sections(summary_markdown(state_of([*events, cell_end(0, "killed", error="gone")])))["Failures"]
    assert failures.count("line ") == OUTPUT_LINES
    assert "line 999" in failures


def test_a_running_session_reads_well() -> None:
    events = mixed_session()
    begun = next(i for i, event in enumerate(events) if getattr(event, "cell", None) == 1)
    text = summary_markdown(state_of([*events[:begun], *cell_start(1)]))
    assert "**Partial: 1 of 4 cells finished** (1 ok); the session has not ended." in text
    assert "Failures" not in sections(text)


def test_before_anything_ran_there_are_no_empty_sections() -> None:
    assert "No cell has a result yet." in summary_markdown(state_of(session_start([a_spec()])))
    assert list(sections(summary_markdown(SessionState()))) == ["Findings"]


def test_many_steps_share_bars_and_the_summary_says_so() -> None:
    times = [0.1] * 500
    times[250] = 0.4
    state = state_of([*session_start([a_spec(measure_steps=500)]), *steps(0, (0.1, 0.1), times), cell_end(0)])
    text = summary_markdown(state)
    (line,) = sparklines(text)
    assert len(line) == 2 + 1 + SPARKLINE_BARS
    assert line.count("█") == 1
    assert "each bar the slowest of up to 14 steps" in text
    assert len(re.findall(r"100\.0+ ", text)) >= 499


@pytest.mark.parametrize(
    "text",
    ["# not a heading", "- x\n\n## y", "1. one", "10) ten", "=", "~~a~~ &amp;", "a | b", "`code`", "<b>bold</b>"],
)
def test_notices_render_as_themselves(text: str) -> None:
    document = summary_markdown(state_of([*session_start([a_spec()]), Notice(at=1.0, text=text)]))
    tokens = MarkdownIt("commonmark").parse(sections(document)["Provenance"].partition("Notices:")[2])
    shown = ["".join(child.content for child in token.children or ()) for token in tokens if token.type == "inline"]
    assert shown == [" ".join(text.split())]


@given(st.lists(any_event, max_size=25))
def test_any_session_has_a_summary(events: list[Event]) -> None:
    text = summary_markdown(state_of(events))
    assert text.startswith("# cs336-tui session ")
    assert "\x1b" not in text
