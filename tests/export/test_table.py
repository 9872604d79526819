"""The results table as people and markdown readers get it."""

import msgspec
import pytest
from markdown_it import MarkdownIt

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, ModelBuilt, ModelPrepared
from cs336_tui.export.subjects.results import NO_RESULTS, results_markdown, results_of, results_table
from cs336_tui.export.writing.formats import render
from cs336_tui.session.state import SessionState
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


def test_a_good_cell_reads_as_measured() -> None:
    (row,) = rendered_rows(results_markdown(session_of(a_spec(), peak_allocated_bytes=3_512_000_000)))
    assert row == {
        "size": "small", "context": "128", "batch": "4", "pass": "forward+backward", "precision": "fp32",
        "device": "cuda:0", "warm-up": "2", "n": "4", "mean (ms)": "153.20", "std (ms)": "0.35",
        "95 % of mean (± %)": "n/a",
        "verdict": "too-few-steps", "median (ms)": "153.10", "min (ms)": "152.90", "max (ms)": "153.70",
        "tokens/s": "3.34k", "achieved (TFLOP/s)": "2.472", "peak allocated (GB)": "3.51", "status": "ok",
    }  # fmt: skip


def test_every_outcome_is_a_row_in_the_order_of_the_queue() -> None:
    rows = rendered_rows(results_markdown(state_of(mixed_session())))
    assert [(row["size"], row["context"], row["status"]) for row in rows] == [
        ("small", "128", "ok"),
        ("xl", "128", "oom"),
        ("small", "256", "failed"),
        ("small", "512", "not run"),
    ]
    assert (rows[1]["n"], rows[1]["mean (ms)"]) == ("0", "n/a")


def test_a_cell_that_is_not_over_shows_its_steps_as_unfinished() -> None:
    state = state_of([*session_start([a_spec(), a_spec()]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S[:3])])
    (row,) = rendered_rows(results_markdown(state))
    assert (row["status"], row["n"]) == ("unfinished, 5 of 6 steps", "3")
    assert "0 of 2 cells finished" in results_markdown(state)


def test_cells_cancelled_before_their_first_step_are_counted_not_shown() -> None:
    spec = a_spec()
    state = state_of(
        [*session_start([spec] * 3), *one_good_cell(spec), cell_end(1, "cancelled"), cell_end(2, "cancelled")]
    )
    text = results_markdown(state)
    assert len(rendered_rows(text)) == 1
    assert "1 of 3 cells finished (1 ok), 2 cancelled" in text


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


def test_a_custom_size_is_told_by_its_dimensions() -> None:
    (row,) = rendered_rows(results_markdown(session_of(a_spec(size="custom"))))
    assert row["size"] == "custom 768/3072/12/12"


def test_memory_is_peak_rss_where_no_allocator_counts() -> None:
    cpu = session_of(a_spec(device="cpu"), peak_rss_bytes=900_000_000)
    (row,) = rendered_rows(results_markdown(cpu))
    assert row["peak RSS (GB)"] == "0.900"
    assert "peak allocated (GB)" not in row
    gpu = session_of(a_spec(), peak_rss_bytes=900_000_000, peak_allocated_bytes=1_000_000_000)
    assert "peak RSS (GB)" not in rendered_rows(results_markdown(gpu))[0]


def test_a_gpu_cell_out_of_memory_is_not_measured_by_its_host_memory() -> None:
    events = [*session_start([a_spec()]), *cell_start(0), cell_end(0, "oom", peak_rss_bytes=900_000_000)]
    assert "RSS" not in results_markdown(state_of(events))


def test_a_gpu_and_a_cpu_in_one_table_never_mix_their_memory() -> None:
    specs = (a_spec(), a_spec(device="cpu"))
    events = [
        *session_start(specs),
        *one_good_cell(specs[0], 0, peak_allocated_bytes=2_000_000_000, peak_rss_bytes=1_000_000_000),
        *one_good_cell(specs[1], 1, peak_rss_bytes=3_000_000_000),
    ]
    gpu, cpu = rendered_rows(results_markdown(state_of(events)))
    assert (gpu["peak allocated (GB)"], cpu["peak allocated (GB)"]) == ("2.00", "n/a")
    assert (gpu["peak RSS (GB)"], cpu["peak RSS (GB)"]) == ("1.00", "3.00")


def test_allocator_retries_make_a_timing_suspect() -> None:
    text = results_markdown(session_of(a_spec(), num_alloc_retries=2, peak_allocated_bytes=1))
    assert rendered_rows(text)[0]["status"] == "ok, 2 allocator retries"
    once = results_markdown(session_of(a_spec(), num_alloc_retries=1, peak_allocated_bytes=1))
    assert rendered_rows(once)[0]["status"] == "ok, 1 allocator retry"
    assert "suspect" in text
    assert "suspect" not in results_markdown(session_of(a_spec(), num_alloc_retries=0, peak_allocated_bytes=1))


def test_the_kind_of_std_is_named() -> None:
    assert "sample standard deviation, n − 1" in results_markdown(session_of(a_spec()))
    population = session_of(a_spec(), ddof=0)
    assert "population standard deviation, n (ddof 0)" in results_markdown(population)
    assert rendered_rows(results_markdown(population))[0]["std (ms)"] == "0.30"


def test_the_footnotes_say_where_the_numbers_come_from() -> None:
    text = results_markdown(state_of(mixed_session()))
    for words in (
        "NVIDIA H100 80GB HBM3",
        "torch 2.13.0",
        "CUDA 12.8",
        "Python 3.12.4",
        "float32 matmul precision highest",
        "TF32 off",
        "each-step",
        "129M parameters",
        "oom in stage warm-up, after 1 of 2 warm-up and 0 of 4 measured steps: CUDA out of memory",
        "failed in stage building",
    ):
        assert words in text


def test_a_precision_is_told_once_also_when_a_cell_of_it_made_no_logits() -> None:
    built = [
        msgspec.structs.replace(event, in_force=msgspec.structs.replace(event.in_force, logits_dtype=None))
        if isinstance(event, ModelBuilt)
        else event
        for event in cell_start(0)
    ]
    spec = a_spec(context_length=4096)
    events = [*session_start([spec, a_spec()]), *built, cell_end(0, "oom"), *one_good_cell(a_spec(), 1)]
    text = results_markdown(state_of(events))
    assert text.count("as read back") == 1
    assert "logits float32" in text


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


def test_a_session_without_results_says_so() -> None:
    assert results_markdown(SessionState()) == f"{NO_RESULTS}\n"
    assert results_markdown(state_of(session_start([a_spec()]))) == f"{NO_RESULTS}\n"


def test_out_of_memory_says_what_could_not_be_allocated_and_the_peak() -> None:
    end = cell_end(
        0, "oom", error="CUDA out of memory", failed_allocation_bytes=2 * 10**9, peak_allocated_bytes=78 * 10**9
    )
    text = results_markdown(state_of([*session_start([a_spec()]), *cell_start(0), end]))
    assert "CUDA out of memory; 2.00 GB could not be allocated; peak allocated until then 78.0 GB" in text


def test_automatic_counts_say_what_they_came_to() -> None:
    spec = a_spec(warmup_steps=100, warmup_auto=True, measure_steps=1000, steps_auto=0.01)
    state = state_of([*session_start([spec]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S)])
    (row,) = rendered_rows(results_markdown(state))
    assert (row["warm-up"], row["status"]) == ("auto (2)", "unfinished, 6 of at most 1100 steps")
    state.apply(cell_end(0, "failed", error="gone"))
    assert "warm-up auto (2): failed in stage measuring, after 2 of at most 100 warm-up" in results_markdown(state)


def test_counts_by_time_say_how_far_they_came() -> None:
    spec = a_spec(warmup_steps=10**5, warmup_for=3.0, measure_steps=10**5, steps_for=8.0)
    state = state_of([*session_start([spec]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S)])
    assert rendered_rows(results_markdown(state))[0]["status"] == "unfinished, 6 steps"
    state.apply(cell_end(0, "failed", error="gone"))
    assert "after 2 (for 3s) warm-up and 4 (for 8s) measured steps: gone" in results_markdown(state)


@pytest.mark.parametrize(("within", "ended"), [(600, "within 10:00"), (5, "over 0:05 by 0:04")])
def test_a_whole_run_stands_beside_the_time_in_which_it_was_to_end(within: int, ended: str) -> None:
    spec = a_spec(within=within, compile="default")
    prepared = ModelPrepared(at=START + 10.9, cell=0, compile_s=0.5, graphs=1)
    events = [*session_start([spec]), *cell_start(0), prepared, *steps(0, WARMUP_S, MEASURED_S), cell_end(0)]
    text = results_markdown(state_of(events))
    (row,) = rendered_rows(text)
    assert (row["until first step (s)"], row["whole run (s)"], row["within (s)"]) == ("1.0", "9.0", str(within))
    assert f"from empty compile caches 0:01 until the first step, 0:00 of it compiling; 0:09 in all, {ended}" in text


def test_a_run_with_the_user_s_own_caches_is_not_said_to_begin_with_empty_ones() -> None:
    events = [*session_start([a_spec(within=600)]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S), cell_end(0)]
    built = next(event for event in events if isinstance(event, ModelBuilt))
    in_force = msgspec.structs.replace(built.in_force, cache_folder="/mine")
    events[events.index(built)] = msgspec.structs.replace(built, in_force=in_force)
    text = results_markdown(state_of(events))
    assert "from compile caches in /mine that may not have been empty 0:01 until the first step" in text
    assert "from empty" not in text


def test_a_run_without_a_time_to_end_in_says_nothing_of_it() -> None:
    state = state_of([*session_start([a_spec()]), *cell_start(0), *steps(0, WARMUP_S, MEASURED_S), cell_end(0)])
    text = results_markdown(state)
    assert "in all" not in text
    assert "whole run" not in text
    (row,) = rendered_rows(render(results_table(results_of(state), columns=["first_step", "whole"]), "markdown"))
    assert (row["until first step (s)"], row["whole run (s)"]) == ("1.0", "9.0")
