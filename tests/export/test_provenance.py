"""Notes under a table: the origin of its numbers, and a warning if it mixes unlike cells."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.comparison import compare, mixed_provenance
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.pivot import pivot
from cs336_tui.events.environment import Environment, GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled, EffectiveSettings, ModelPrepared
from cs336_tui.export.pivot import pivot_table
from cs336_tui.export.reference import reference_table
from cs336_tui.export.subjects.comparison import comparison_table
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writeups import PLAIN_LAYOUTS, layout_tables
from cs336_tui.export.writing.footnotes import provenance_notes, results_notes
from cs336_tui.export.writing.provenance import setting_notes
from cs336_tui.session.state import SessionState
from tests.export.grids import MEDIUM, SMALL, by, grid
from tests.samples import ENVIRONMENT, START, a_spec, cell_end, cell_start, session_start, state_of, steps
from tests.session.made import OLD_LAPTOP, Cell, cell, session_of

TIMES = [0.1000, 0.1001, 0.0999, 0.1000]
NEW_TORCH = msgspec.structs.replace(ENVIRONMENT, torch="2.14.0")


def session(*in_force: dict[str, Any], **more: Any) -> SessionState:
    """A session with a measured cell for each of these, told apart by their seeds."""
    state = session_of(*(cell(TIMES, seed=seed) for seed in range(len(in_force))), **more)
    for found, changes in zip(state.cells.values(), in_force, strict=True):
        found.in_force = msgspec.structs.replace(found.in_force, **changes)
    return state


def results(*sessions: tuple[str, SessionState]) -> tuple[Result, ...]:
    return merge(sessions)


def mixed(state: SessionState) -> tuple[str, ...]:
    return mixed_provenance(results(("one", state)))


def saying(lines: Sequence[str], word: str = "mixed provenance") -> list[str]:
    return [line for line in lines if word in line]


def test_what_a_choice_entails_is_none() -> None:
    """Two precisions in one table are its subject; a precision that was not in force would be a mixture."""
    state = session_of(cell(TIMES), cell(TIMES, precision="bf16-mixed"), cell(TIMES, device="cpu"))
    for number, changes in enumerate(
        ({"allocator": "native"}, {"allocator": "native", "autocast_dtype": "bfloat16"}, {"allocator": "malloc"})
    ):
        found = state.cells[number]
        found.in_force = msgspec.structs.replace(found.in_force, **changes)
    assert mixed(state) == ()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"threads": 4}, "threads 32 (cell 1), 4 (cell 2)"),
        ({"matmul_precision": "high"}, "float32 matmul precision highest (cell 1), high (cell 2)"),
        ({"allow_tf32": True}, "TF32 off (cell 1), on (cell 2)"),
        ({"autocast_dtype": "bfloat16"}, "autocast none (cell 1), bfloat16 (cell 2)"),
        ({"parameter_dtype": "bfloat16"}, "parameters float32 (cell 1), bfloat16 (cell 2)"),
    ],
)
def test_everything_that_was_read_back_counts(changes: dict[str, Any], line: str) -> None:
    assert mixed(session({}, changes)) == (f"mixed provenance: {line}",)


@pytest.mark.parametrize("name", ["interop_threads", "attention", "allocator", "model_revision"])
def test_what_old_logs_do_not_tell_is_no_mixture(name: str) -> None:
    assert getattr(msgspec.convert({"matmul_precision": "highest"}, EffectiveSettings), name) is None
    known, other = {"interop_threads": (1, 2)}.get(name, ("this", "that"))
    assert mixed(session({}, {name: known})) == ()
    (line,) = mixed(session({name: known}, {name: other}))
    assert line.endswith(f"{known} (cell 1), {other} (cell 2)")
    (line,) = mixed(session({"allocator": "native, some"}, {"allocator": "other, some"}))
    assert line == "mixed provenance: allocator native, some (cell 1); other, some (cell 2)", "commas stay apart"


def with_gpu(uuid: str) -> Environment:
    gpu = msgspec.structs.replace(ENVIRONMENT.devices[1], uuid=uuid)
    return msgspec.structs.replace(ENVIRONMENT, devices=(ENVIRONMENT.devices[0], gpu))


MIXTURES: dict[str, tuple[tuple[Result, ...], tuple[str, ...]]] = {
    "cells that agree": (results(("one", session({}, {}, {}))), ()),
    "values and their cells": (
        results(("one", session({"threads": 2}, {"threads": 2}, {"threads": 2}, {"threads": 4}, {"threads": 2}))),
        ("threads 2 (cells 1–3, 5), 4 (cell 4)",),
    ),
    "things that fall apart alike": (
        results(("one", session(*({"threads": 2 * n, "interop_threads": 8 if n > 1 else 1} for n in (1, 2, 2))))),
        ("threads 2, inter-op threads 1 (cell 1); threads 4, inter-op threads 8 (cells 2–3)",),
    ),
    "a session that went on elsewhere": (
        results(("one", session_of(cell(TIMES), Cell(cell(seed=1).spec, TIMES, on=NEW_TORCH)))),
        ("torch 2.13.0 (cell 1), 2.14.0 (cell 2)",),
    ),
    "another GPU of the same kind": (
        results(("one", session_of(cell(TIMES), Cell(cell(seed=1).spec, TIMES, on=with_gpu("GPU-1"))))),
        ("GPU GPU-0 (cell 1), GPU-1 (cell 2)",),
    ),
    "sessions are named, and cells only where a session is torn": (
        results(("a", session({"threads": 2}, {"threads": 4})), ("b", session({"threads": 4}, {"threads": 4}))),
        ("threads 2 (a, cell 1), 4 (a, cell 2, b)",),
    ),
    "sessions of two machines": (
        results(("box", session({})), ("laptop", session_of(cell(TIMES), environment=OLD_LAPTOP))),
        ("host gpu-box, torch 2.13.0 (box); host laptop, torch 2.9.0 (laptop)",),
    ),
}


@pytest.mark.parametrize("case", MIXTURES)
def test_a_mixture_names_the_values_and_their_cells(case: str) -> None:
    found, said = MIXTURES[case]
    assert mixed_provenance(found) == tuple(f"mixed provenance: {line}" for line in said)
    assert saying(results_notes(found)) == [f"mixed provenance: {line}" for line in said]


MIXED = session({"threads": 2}, {"threads": 4})
LINE = "mixed provenance: threads 2 (cell 1), 4 (cell 2)"


def test_tables_of_all_kinds_the_summary_and_the_settings_of_a_session_say_it() -> None:
    found = results(("one", MIXED))
    pivoted = pivot_table(pivot(found, ["seed"], [], "mean"), found)
    for table in (results_table(found), pivoted, reference_table(found)):
        assert table.footnotes.count(LINE) == 1
    compared = comparison_table(compare(results(("a", MIXED)), results(("b", session({}, {})))))
    assert saying(compared.footnotes) == [f"A: {LINE}"]
    assert next(setting_notes(MIXED, list(MIXED.cells.values()))) == LINE
    assert LINE in summary_markdown(MIXED)


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_every_write_up_says_it_of_the_cells_it_shows(layout: str) -> None:
    specs = by([SMALL, MEDIUM], pass_=["forward", "forward+backward"], precision=["fp32", "bf16-mixed"])
    state = grid(specs)
    for found in state.cells.values():
        found.in_force = msgspec.structs.replace(found.in_force, threads=2 if found.spec.size == "small" else 4)
    tables = layout_tables(results(("one", state)), layout)
    assert tables
    for table in tables:
        shows_both = {"small", "medium"} <= {value for record in table.records for value in record.values()}
        assert bool(saying(table.footnotes)) == shows_both


def test_a_cell_without_a_result_mixes_nothing() -> None:
    state = session_of(cell(TIMES), cell(status=None, seed=1), cell(TIMES, seed=2))
    assert saying(provenance_notes(results(("one", state)))) == []


AGREED = {
    "attention": "naive (scores materialised)",
    "allocator": "native, default settings",
    "interop_threads": 16,
}


IN_FORCE: dict[str, SessionState] = {
    "what was in force everywhere is one line": session(*[AGREED | {"model_revision": "4f2a91c"}] * 2),
    "without what is mixed": session(AGREED, AGREED | {"threads": 2}),
    "one line a precision, however much else differs": session(
        {"threads": 2, "device_name": "a"}, {"threads": 4, "device_name": "b", "attention": "fused"}
    ),
}


@pytest.mark.parametrize("case", IN_FORCE)
def test_what_was_in_force(case: str, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(provenance_notes(results(("one", IN_FORCE[case])))) == snapshot


def test_nothing_is_said_of_what_is_unknown() -> None:
    state = session({"threads": None})
    notes = provenance_notes(results(("one", state)))
    text = "\n".join(note for note in notes if "not observable" not in note)
    for word in ("effective settings", "clock", "persistence", "allocator", "attention", "revision", "None", "unknown"):
        assert word not in text


def sampled(state: SessionState, number: int, stage: str, mhz: int, **gpu: Any) -> None:
    sample = DeviceSampled(at=START, host=HostSample(), gpu=GpuSample(sm_clock_mhz=mhz, **gpu))
    state.cells[number].surroundings.take(sample, stage)


def test_clocks_are_a_range_over_the_cells(snapshot: SnapshotAssertion) -> None:
    state = session({}, {})
    for number, (before, lowest, after) in enumerate([(345, 1410, 1755), (1980, 1500, 1755)]):
        sampled(state, number, "warm-up", before)
        sampled(state, number, "measuring", lowest)
        sampled(state, number, "measuring", after)
    assert saying(provenance_notes(results(("one", state))), "SM clock") == snapshot


def test_persistence_mode_is_said_and_may_be_mixed() -> None:
    state = session({}, {})
    sampled(state, 0, "measuring", 1755, persistence_mode=True)
    (line,) = saying(provenance_notes(results(("one", state))), "effective settings")
    assert line.endswith("persistence mode on")
    sampled(state, 1, "measuring", 1755, persistence_mode=False)
    assert mixed(state) == ("mixed provenance: persistence mode on (cell 1), off (cell 2)",)


def test_each_mode_of_compiling_has_what_its_own_cells_took(snapshot: SnapshotAssertion) -> None:
    modes = {"default": 1.5, "max-autotune": 40.0}
    events = session_start([a_spec(compile=mode) for mode in modes])
    for number, took_s in enumerate(modes.values()):
        events += [*cell_start(number), ModelPrepared(at=START, cell=number, compile_s=took_s, graphs=number + 1)]
        events += [*steps(number, (), (0.1, 0.1)), cell_end(number)]
    state = state_of(events)
    assert saying(tuple(setting_notes(state, tuple(state.cells.values()))), "torch.compile") == snapshot
