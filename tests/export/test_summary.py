"""The session summary: complete, readable at any moment, measurements only. What the sentences and the table of its
first page say is so, and no more than is known."""

import random
import re
import statistics

import pytest
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import ChildOutput, Event, Notice, SessionEnded, StepsTimed
from cs336_tui.export.findings import findings
from cs336_tui.export.summary import OUTPUT_LINES, SPARKLINE_BARS, first_table, summary_markdown
from cs336_tui.session.state import SessionState
from tests.export.grids import SMALL, by, grid, grid_events, merged
from tests.export.keeping import kept
from tests.made_kernels import a_kernel_report
from tests.samples import (
    LAPTOP,
    START,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    report_events,
    session_start,
    state_of,
    steps,
)


def sections(text: str) -> dict[str, str]:
    """Bodies by heading of the second level."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def sparklines(text: str) -> list[str]:
    return re.findall(r"`([▁-█]*│[▁-█]*)`", text)


def test_a_whole_session_has_every_section(snapshot: SnapshotAssertion) -> None:
    """Colours of the terminal are gone from the output of a failed cell, and backticks in it do not close its block."""
    assert summary_markdown(state_of(mixed_session())) == snapshot


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


def mixed(spec: CellSpec) -> list[float]:
    faster = spec.precision == "bf16-mixed" and spec.context_length == 512
    return [0.01 * (0.5 if faster else 1) * (1 + each / 10) for each in NOISE]


def wild(spec: CellSpec) -> list[float]:
    return [(0.05, 0.01, 0.02, 0.01)[step % 4] for step in range(12)] if spec.context_length == 512 else series(spec)


def test_the_first_table_has_both_ends_of_very_many_cells_and_the_endings_of_cells_without_a_time(
    snapshot: SnapshotAssertion,
) -> None:
    many = by([SMALL], pass_=["forward"], context_length=range(128, 128 * 41, 128))
    lost = grid(by([SMALL], context_length=[128, 256]), oom=[0, 1])
    assert kept(first_table(merged(grid(many))), first_table(merged(lost))) == snapshot


@pytest.mark.parametrize("ended", [True, False])
def test_a_partial_session_says_how_far_it_came(ended: bool) -> None:
    specs = by([SMALL], context_length=[128, 256, 512])
    events: list[Event] = [event for event in grid_events(specs) if getattr(event, "cell", 0) == 0]
    events += [SessionEnded(at=START + 100, reason="cancelled")] if ended else cell_start(1)
    text = summary_markdown(state_of(events))
    stopped = r"stopped at \d+/\d+ steps.*, `cs336-tui resume sample` runs what is left"
    state = stopped if ended else "the session has not ended"
    assert re.search(rf"\*\*Partial: 1 of 3 cells finished\*\* \(1 ok\); {state}\.", text)


def test_a_session_without_any_result_says_so_alone() -> None:
    state = state_of(session_start([a_spec()]))
    assert told(state) == {}
    assert first_table(merged(state)) is None


def doubled(spec: CellSpec) -> list[float]:
    return [2 * time_s for time_s in series(spec)]


def profiled() -> SessionState:
    return state_of([*grid_events([a_spec()]), *report_events(a_kernel_report(a_spec()))])


def doubted() -> SessionState:
    state = grid(by([SMALL], **BOTH, context_length=[128, 512]), times=wild, oom=[0])
    state.apply(Notice(at=START, text="the log was cut"))
    return state


BOTH = {"precision": ["fp32", "bf16-mixed"]}


PASSES = {"pass_": ["forward", "train-step"]}


SAID: dict[str, tuple[SessionState, ...]] = {
    "fastest, slowest, and ratios along each choice": (grid(by([SMALL], **BOTH, **PASSES), times=series),),
    "times that no interval parts": (grid(by([SMALL], precision=["fp32", "tf32"], pass_=["forward"]), times=series),),
    "without intervals no order is claimed": (grid(by([SMALL], **BOTH, pass_=["forward"])),),
    "pairs that disagree": (grid(by([SMALL], **BOTH, context_length=[128, 512]), times=mixed),),
    "doubted cells, failures and notices": (doubted(),),
    "peak memory and its share of the device": (grid(by([SMALL], context_length=[128, 512])),),
    "sessions as whole places": (
        grid(by([SMALL], **PASSES), session="box", times=series),
        grid(by([SMALL], **PASSES, device=["mps"]), session="laptop", environment=LAPTOP, times=doubled),
    ),
    "the largest kernel of a profiled step": (profiled(),),
}


@pytest.mark.parametrize("case", SAID)
def test_findings_of_sessions(case: str, snapshot: SnapshotAssertion) -> None:
    assert told(*SAID[case]) == snapshot
