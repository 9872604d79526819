"""The results table as people and markdown readers get it."""

from collections.abc import Iterable

import msgspec
import pytest
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import results_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, ModelPrepared
from cs336_tui.export.subjects.results import NO_RESULTS, results_markdown, results_table
from cs336_tui.export.writing.formats import render
from cs336_tui.session.state import SessionState
from tests.export.grids import with_in_force
from tests.samples import (
    ENVIRONMENT,
    MEASURED_S,
    START,
    WARMUP_S,
    a_spec,
    cell_end,
    cell_start,
    mixed_session,
    session_start,
    state_of,
    steps,
)


def rendered_rows(text: str) -> list[dict[str, str]]:
    """The rows of the first table as a markdown reader shows them, by header."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or ()))
        elif token.type == "table_close":
            break
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def one_good_cell(spec: CellSpec, cell: int = 0, **end: object) -> list[Event]:
    return [*cell_start(cell), *steps(cell, WARMUP_S[: spec.warmup_steps], MEASURED_S), cell_end(cell, **end)]


def session_of(*specs: CellSpec, ddof: int = 1, **end: object) -> SessionState:
    events = session_start(specs, ddof)
    for cell, spec in enumerate(specs):
        events += one_good_cell(spec, cell, **end)
    return state_of(events)


def one_cell(spec: CellSpec, *after: Event, begun: Iterable[Event] = ()) -> SessionState:
    """A session of one cell that was started and measured, or `begun` otherwise."""
    return state_of([*session_start([spec]), *(begun or [*cell_start(0), *steps(0, WARMUP_S, MEASURED_S)]), *after])


GB = 10**9
FAILED = cell_end(0, "failed", error="gone")
AUTOMATIC = a_spec(warmup_steps=100, warmup_auto=True, measure_steps=1000, steps_auto=0.01)
BY_TIME = a_spec(warmup_steps=10**5, warmup_for=3.0, measure_steps=10**5, steps_for=8.0)
NO_LOGITS = with_in_force(cell_start(0), logits_dtype=None)
COMPILED = [
    *cell_start(0), ModelPrepared(at=START + 10.9, cell=0, compile_s=0.5, graphs=1), *steps(0, WARMUP_S, MEASURED_S),
]  # fmt: skip
OWN_CACHES = [*with_in_force(cell_start(0), cache_folder="/mine"), *steps(0, WARMUP_S, MEASURED_S)]
STATES: dict[str, SessionState] = {
    "a good cell": session_of(a_spec(), peak_allocated_bytes=3_512_000_000),
    "every outcome, in the order of the queue": state_of(mixed_session()),
    "a cell that is not over": state_of(
        [*session_start([a_spec(), a_spec()]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S[:3])]
    ),
    "cells cancelled before their first step are counted, not shown": state_of(
        [*session_start([a_spec()] * 3), *one_good_cell(a_spec()), cell_end(1, "cancelled"), cell_end(2, "cancelled")]
    ),
    "a custom size is told by its dimensions": session_of(a_spec(size="custom")),
    "peak RSS where no allocator counts": session_of(a_spec(device="cpu"), peak_rss_bytes=GB),
    "peak allocated where one does": session_of(a_spec(), peak_rss_bytes=GB, peak_allocated_bytes=GB),
    "a GPU out of memory is not measured by its host's": one_cell(
        a_spec(), cell_end(0, "oom", peak_rss_bytes=GB), begun=cell_start(0)
    ),
    "a GPU and a CPU never mix their memory": state_of([
        *session_start([a_spec(), a_spec(device="cpu")]),
        *one_good_cell(a_spec(), 0, peak_allocated_bytes=2 * GB, peak_rss_bytes=GB),
        *one_good_cell(a_spec(device="cpu"), 1, peak_rss_bytes=3 * GB),
    ]),
    "allocator retries make a timing suspect": session_of(a_spec(), num_alloc_retries=2, peak_allocated_bytes=1),
    "one allocator retry": session_of(a_spec(), num_alloc_retries=1, peak_allocated_bytes=1),
    "population std": session_of(a_spec(), ddof=0),
    "a precision is told once also when a cell of it made no logits": state_of([
        *session_start([a_spec(context_length=4096), a_spec()]), *NO_LOGITS, cell_end(0, "oom"),
        *one_good_cell(a_spec(), 1),
    ]),
    "what could not be allocated, and the peak": one_cell(
        a_spec(),
        cell_end(0, "oom", error="CUDA out of memory", failed_allocation_bytes=2 * GB, peak_allocated_bytes=78 * GB),
        begun=cell_start(0),
    ),
    "automatic counts": one_cell(AUTOMATIC),
    "automatic counts of a cell that failed": one_cell(AUTOMATIC, FAILED),
    "counts by time": one_cell(BY_TIME),
    "counts by time of a cell that failed": one_cell(BY_TIME, FAILED),
    "a whole run within its time": one_cell(a_spec(within=600, compile="default"), cell_end(0), begun=COMPILED),
    "a whole run over its time": one_cell(a_spec(within=5, compile="default"), cell_end(0), begun=COMPILED),
    "caches of one's own may not have been empty": one_cell(a_spec(within=600), cell_end(0), begun=OWN_CACHES),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "header", "values"),
    [
        ({"arch": "gelu-learned"}, "arch", ["swiglu-rope", "gelu-learned"]),
        ({"edition": "2025"}, "edition", ["2026", "2025"]),
        ({"sync": "pipelined"}, "sync", ["each-step", "pipelined"]),
        ({"threads": 4}, "threads", ["torch's default", "4"]),
        ({"seed": 7}, "seed", ["0", "7"]),
    ],
)
def test_a_setting_is_a_column_only_where_it_varies(changes, header, values) -> None:
    assert header not in rendered_rows(results_markdown(session_of(a_spec())))[0]
    assert f"{header} {values[0]}" in results_markdown(session_of(a_spec()))
    varied = session_of(a_spec(), a_spec(**changes))
    assert [row[header] for row in rendered_rows(results_markdown(varied))] == values


def test_text_from_outside_cannot_break_the_table() -> None:
    hostile = "a | b\n| c *d* <e> `f`"
    device = msgspec.structs.replace(ENVIRONMENT.devices[1], label=hostile)
    environment = msgspec.structs.replace(ENVIRONMENT, devices=(device,))
    spec = a_spec(size=hostile)
    events = [*session_start([spec], environment=environment), cell_end(0, "failed", error=hostile)]
    text = results_markdown(state_of(events))
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert html.count("a | b | c *d* &lt;e&gt; `f`") == 5
    assert len(rendered_rows(text)) == 1


@pytest.mark.parametrize("case", STATES)
def test_results_as_markdown(case: str, snapshot: SnapshotAssertion) -> None:
    assert results_markdown(STATES[case]) == snapshot


def test_a_run_without_a_time_to_end_in_says_nothing_of_it() -> None:
    state = one_cell(a_spec(), cell_end(0))
    text = results_markdown(state)
    assert "in all" not in text
    assert "whole run" not in text
    (row,) = rendered_rows(render(results_table(results_of(state), columns=["first_step", "whole"]), "markdown"))
    assert (row["until first step (s)"], row["whole run (s)"]) == ("1.0", "9.0")
    assert (
        results_markdown(SessionState()) == results_markdown(state_of(session_start([a_spec()]))) == f"{NO_RESULTS}\n"
    )
