"""Comparison of two sessions: pairs of cells and their verdicts."""

import msgspec
import pytest

from cs336_tui.analysis.comparison import compare
from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import dims_of
from cs336_tui.events.events import EffectiveSettings, ModelBuilt
from cs336_tui.session.state import SessionState
from tests.samples import START, a_spec
from tests.session.made import OLD_LAPTOP, OTHER_GPU, Cell, cell, results_of, session_of

SLOW, FAST = [0.2000, 0.2001, 0.1999, 0.2000] * 3, [0.1000, 0.1001, 0.0999, 0.1000] * 3


def test_cells_pair_by_what_they_ran_whatever_their_order() -> None:
    a = results_of(cell(SLOW), cell(FAST, pass_="forward"), cell(SLOW, context_length=64))
    b = results_of(cell(FAST, pass_="forward"), cell(FAST), cell(FAST, context_length=256))
    found = compare(a, b)
    assert [(pair.a.spec.pass_, pair.outcome) for pair in found.pairs] == [
        ("forward+backward", "slower"),
        ("forward", "same"),
    ]
    assert found.pairs[0].a.spec == found.pairs[0].b.spec
    assert found.pairs[0].ratio.ratio == pytest.approx(2)
    assert [side.spec.context_length for side in (*found.only_a, *found.only_b)] == [64, 256]
    assert found.notes == ()
    assert (found.count("slower"), found.count("faster")) == (1, 0)


def test_repeats_are_one_pair_from_run_means() -> None:
    a = results_of(*(Cell(a_spec(), [time_s * drift for time_s in FAST], repeat=repeat)
                     for repeat, drift in enumerate((1, 1.1, 1.05), 1)))  # fmt: skip
    (pair,) = compare(a, a).pairs
    assert (pair.a.runs, pair.a.cells) == (3, (0, 1, 2))
    assert pair.a.summary.n == 36
    assert "runs" in pair.ratio.method
    assert pair.outcome == "ambiguous"


def test_what_differs_in_every_pair_is_said_once() -> None:
    a = results_of(cell(FAST), cell(FAST, pass_="forward"))
    b = results_of(cell(SLOW), Cell(a_spec(pass_="forward"), SLOW), environment=OTHER_GPU)
    found = compare(a, b)
    assert "host: gpu-box | other-box" in found.notes
    assert "device's name: NVIDIA H100 80GB HBM3 | NVIDIA A100" in found.notes
    assert all(pair.differs == () for pair in found.pairs)
    assert found.pairs[0].a.machine == "NVIDIA H100 80GB HBM3 · gpu-box"


def test_a_laptop_pairs_with_a_gpu_box() -> None:
    a = results_of(cell(SLOW, device="mps"), cell(SLOW, device="mps", pass_="forward"), environment=OLD_LAPTOP)
    b = results_of(cell(FAST), cell(FAST, pass_="forward"), cell(FAST, pass_="backward"))
    found = compare(a, b)
    assert len(found.pairs) == 2
    assert "device: mps | cuda:0" in found.notes
    assert "torch: 2.9.0 | 2.13.0" in found.notes
    assert [side.spec.pass_ for side in found.only_b] == ["backward"]


def test_devices_must_agree_where_a_side_has_several() -> None:
    a = results_of(cell(SLOW, device="cpu"), cell(SLOW, device="mps"), environment=OLD_LAPTOP)
    found = compare(a, results_of(cell(FAST), cell(FAST, pass_="forward")))
    assert (found.pairs, len(found.only_a), len(found.only_b)) == ((), 2, 2)
    nothing = compare((), ())
    assert (nothing.pairs, nothing.only_a, nothing.only_b) == ((), (), ())


def test_another_name_for_the_same_dimensions_pairs_and_is_said() -> None:
    dims = {name: getattr(dims_of("2.7B", "2025"), name) for name in ("d_model", "d_ff", "num_layers", "num_heads")}
    a = results_of(cell(FAST, size="2.7B", edition="2025", **dims), cell(FAST))
    b = results_of(cell(FAST, size="xl", edition="2026", **dims), cell(FAST))
    named, same = compare(a, b).pairs
    assert named.differs == ("size: 2.7B | xl", "edition: 2025 | 2026")
    assert same.differs == ()


def test_cells_that_could_pair_in_several_ways_do_not() -> None:
    a = results_of(cell(FAST, seed=1), cell(SLOW, seed=2), cell(FAST, pass_="forward"))
    found = compare(a, results_of(cell(FAST, seed=3), cell(FAST, pass_="forward")))
    assert [pair.a.spec.pass_ for pair in found.pairs] == ["forward"]
    assert [side.spec.seed for side in (*found.only_a, *found.only_b)] == [1, 2, 3]


def test_two_single_cells_pair_whatever_they_are() -> None:
    found = compare(results_of(cell(SLOW)), results_of(cell(FAST, precision="bf16-mixed", context_length=256)))
    assert [pair.outcome for pair in found.pairs] == ["slower"]
    assert found.notes[:2] == ("context: 128 | 256", "precision: fp32 | bf16-mixed")
    assert (found.a, found.b) == ("one:1", "one:1")


def test_a_side_without_a_timing_says_why_and_has_the_peak_of_the_failed_runs() -> None:
    ran, failed = Cell(a_spec(), FAST, peak=10**9), Cell(a_spec(), [0.1], status="oom", repeat=2, peak=2 * 10**9)
    (pair,) = compare(results_of(ran, failed), results_of(failed)).pairs
    assert (pair.ratio, pair.outcome, pair.b.note) == (None, "ambiguous", "OOM")
    assert pair.explanation == "B has no timing: OOM."
    assert (pair.a.peak_allocated_bytes, pair.b.peak_allocated_bytes) == (10**9, 2 * 10**9)


def test_what_was_in_force_is_compared() -> None:
    a, b = session_of(cell(FAST)), session_of(cell(SLOW))
    for state, changes in (
        (a, {"attention": "naive (scores materialised)", "allocator": "native, default settings"}),
        (b, {"attention": "fused", "allocator": "cudaMallocAsync, default settings", "interop_threads": 4}),
    ):
        found = state.cells[0]
        found.in_force = msgspec.structs.replace(found.in_force, **changes)
    notes = compare(merge([("a", a)]), merge([("b", b)])).notes
    assert "effective attention: naive (scores materialised) | fused" in notes
    assert "effective allocator: native, default settings | cudaMallocAsync, default settings" in notes
    assert not any("inter-op" in note for note in notes), "of A it is not known"


def test_a_side_that_is_mixed_says_so_and_its_pairs_need_not_differ() -> None:
    def torn() -> SessionState:
        state = session_of(cell(FAST), cell(FAST, pass_="forward"))
        found = state.cells[1]
        found.in_force = msgspec.structs.replace(found.in_force, threads=4)
        return state

    found = compare(merge([("a", torn())]), merge([("b", torn())]))
    assert [pair.differs for pair in found.pairs] == [(), ()]
    assert found.mixed == tuple(f"{side}: mixed provenance: threads 32 (cell 1), 4 (cell 2)" for side in "AB")


def test_two_revisions_of_a_model_of_one_s_own_are_said_to_differ() -> None:
    def state(name: str, path: str) -> SessionState:
        made = session_of(cell(FAST, model="mine:GPT", model_path=(path,)), cell(FAST), name=name)
        in_force = EffectiveSettings(matmul_precision="highest", model_revision=f"gpt.py sha256 {name}")
        made.apply(ModelBuilt(at=START, cell=0, num_params=1, num_params_without_head=1, in_force=in_force))
        return made

    before, after = merge([("before", state("before", "/old"))]), merge([("after", state("after", "/new"))])
    found = compare(before, after)
    own, reference = found.pairs
    assert own.differs == ("model revision: gpt.py sha256 before | gpt.py sha256 after", "model path: /old | /new")
    assert reference.differs == ()
