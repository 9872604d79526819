"""One round of two small cells in turns: the order of steps, how it ends, and what each side's model sets, imports and
compiles, which is in force during its own turns only."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.events.codec import from_line, to_line
from cs336_tui.events.events import CellFinished, Event, ModelBuilt, StageChanged, StepsTimed
from cs336_tui.worker.measure.settings import read_settings, restore
from cs336_tui.worker.workload.precision import RECIPES
from tests.worker.measure.cells import A, B, Report, Rounded, compiles, of_user, run, small_spec


def test_steps_alternate_in_pairs_and_so_does_who_is_first_in_them() -> None:
    done = Rounded(small_spec(measure_steps=4, warmup_steps=1), small_spec(measure_steps=4, warmup_steps=3))
    assert done.order("warm-up") == "AB" + "B" + "B"
    assert done.order() == "ABBAABBA"
    assert Rounded(small_spec(measure_steps=3), small_spec(measure_steps=3), b_first=True).order() == "BAABBA"


def test_each_side_tells_what_a_cell_alone_tells_but_the_peaks_which_would_be_of_both() -> None:
    done = Rounded(small_spec(pass_="train-step"), small_spec(pass_="forward", precision="bf16"))
    steps = ["warm-up", "StepsTimed", "StepsTimed", "measuring", "StepsTimed", "StepsTimed", "StepsTimed"]
    for cell, phases in ((A, 5), (B, 1)):
        side = done.of(cell)
        assert side.outline == ["building", "ModelBuilt", *steps, "finishing", "CellFinished"]
        assert [event.first for event in side.steps("measured")] == [0, 1, 2]
        assert all(len(event.phases_s) == phases and len(event.host_s) == 1 for event in side.steps("measured"))
        assert side.finished.status == "ok"
        assert side.finished.warmup_steps_done == 2
        assert side.finished.summary.mean_s == pytest.approx(sum(side.times_s()) / 3)
        end = side.finished
        assert (end.peak_rss_bytes, end.peak_allocated_bytes, end.peak_reserved_bytes) == (None,) * 3
        measured_for_s = end.measured_for_s
        assert measured_for_s > sum(done.a.times_s()) + sum(done.b.times_s()), "the time of both"
    assert [type(event) for event in done.events[-2:]] == [CellFinished, CellFinished]
    assert all(from_line(to_line(event)) == event for event in done.events)


def test_precision_and_settings_are_those_of_the_side_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # No two precisions of a CPU differ in settings of all torch; on CUDA fp32 and tf32 do.
    monkeypatch.setitem(RECIPES, "bf16", RECIPES["bf16"]._replace(matmul="medium"))
    before = torch.get_float32_matmul_precision()
    seen = set()

    def watch(event: Event) -> None:
        if isinstance(event, StepsTimed | ModelBuilt):
            seen.add((event.cell, torch.get_float32_matmul_precision()))

    done = Rounded(small_spec(precision="bf16"), small_spec(precision="bf16-mixed"), watch=watch)
    assert seen == {(A, "medium"), (B, "highest")}
    built = [side.built.in_force for side in (done.a, done.b)]
    assert [each.matmul_precision for each in built] == ["medium", "highest"]
    assert [each.parameter_dtype for each in built] == ["bfloat16", "float32"]
    assert [each.autocast_dtype for each in built] == [None, "bfloat16"]
    assert [side.finished.logits_dtype for side in (done.a, done.b)] == ["bfloat16", "bfloat16"]
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(("a_vocab", "b_vocab", "named"), [(2**30, 40, "A"), (40, 2**30, "B")])
def test_a_side_without_memory_ends_the_round_and_is_named(a_vocab: int, b_vocab: int, named: str) -> None:
    done = Rounded(small_spec(d_model=1024, vocab_size=a_vocab), small_spec(d_model=1024, vocab_size=b_vocab))
    guilty, other = (A, B) if named == "A" else (B, A)
    finished = done.of(guilty).finished
    assert (finished.status, finished.stage, finished.step) == ("oom", "building", None)
    assert finished.failed_allocation_bytes == 4 * 1024 * 2**30
    assert done.of(other).finished.status == "failed"
    assert done.of(other).finished.error == f"{named} ran out of memory, which ended the round"
    assert done.order() == ""


def test_a_side_that_fails_in_a_step_says_where_and_the_other_keeps_its_steps(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def watch(event: Event) -> None:
        if isinstance(event, StageChanged) and (event.cell, event.stage) == (B, "measuring"):
            monkey.setattr(torch.Tensor, "backward", lambda *_, **__: 1 / 0)

    with pytest.MonkeyPatch.context() as monkey:
        done = Rounded(small_spec(pass_="forward"), small_spec(pass_="forward+backward"), watch=watch)
    a, b = done.a.finished, done.b.finished
    assert (b.status, b.stage, b.step, b.phase) == ("failed", "measuring", 0, "backward")
    assert b.error == "ZeroDivisionError: division by zero"
    assert (a.status, a.error, a.stage, a.step) == ("failed", "B failed, which ended the round", "measuring", 1)
    assert done.order() == "A"
    assert "Traceback" in capfd.readouterr().err


def test_a_stop_between_two_steps_keeps_what_was_timed_of_both() -> None:
    timed = []

    def watch(event: Event) -> None:
        if isinstance(event, StepsTimed) and event.kind == "measured":
            timed.append(event)

    done = Rounded(small_spec(), small_spec(), cancelled=lambda: len(timed) == 3, watch=watch)
    assert done.order() == "ABB"
    ends = [side.finished for side in (done.a, done.b)]
    assert [(end.status, end.stage, end.step) for end in ends] == [("cancelled", "measuring", n) for n in (1, 2)]


def test_an_optimizer_step_that_the_scaler_skipped_stands_beside_its_side() -> None:
    # One token: the loss's gradient, scaled by 65536 as at first, is more than float16 can hold.
    both = {"pass_": "train-step", "context_length": 1, "batch_size": 1, "warmup_steps": 0}
    done = Rounded(small_spec(precision="fp16-mixed", **both), small_spec(**both))
    (remark,) = done.a.finished.remarks
    assert "of 3 optimizer steps were skipped" in remark
    assert done.b.finished.remarks == ()


CLEAN = ("highest", 1, False, True, torch.float32, 0, False)
SET = ("high", 2, True, False, torch.float64, 1, True)


def of_forward(folder: Path, model: str, **changes: Any) -> dict[str, Any]:
    return of_user(folder, model, pass_="forward", **changes)


def in_turns(a: dict[str, Any], b: dict[str, Any], *, b_first: bool = False) -> tuple[Report, Report]:
    done = Rounded(small_spec(**a), small_spec(**b), b_first=b_first)
    assert (done.a.finished.status, done.b.finished.status) == ("ok", "ok"), (done.a.finished, done.b.finished)
    return done.a, done.b


@pytest.mark.parametrize("b_first", [False, True])
def test_what_one_model_sets_is_in_force_in_its_own_steps_only(folder: Path, *, b_first: bool) -> None:
    before = read_settings()
    a, b = in_turns(of_forward(folder, "Sets"), of_forward(folder, "Looks"), b_first=b_first)
    assert {("Sets", *SET), ("Looks", *CLEAN)} == sys.modules["own_models"].SEEN
    assert (a.built.in_force.matmul_precision, a.built.in_force.threads) == ("high", 2)
    assert (b.built.in_force.matmul_precision, b.built.in_force.threads) == ("highest", 1)
    for side in (a, b):
        (remark,) = side.finished.remarks
        assert remark.startswith("A ran with threads 2 and B with 1, set anew before each step")
    assert read_settings() == before


def test_threads_are_not_set_between_steps_of_models_that_leave_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[int] = []
    real = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda count: (set_to.append(count), real(count))[1])
    a, _ = in_turns(of_forward(folder, "Looks"), of_forward(folder, "SetsLater"))
    assert set_to == [1]
    assert a.finished.remarks == ()


@pytest.mark.parametrize(("warmup", "since"), [(2, "after it was built"), (0, "while it was measured")])
def test_what_a_model_changes_in_its_steps_is_told_and_is_what_is_recorded(
    folder: Path, warmup: int, since: str
) -> None:
    said = f"settings changed {since}: matmul precision highest to medium"
    cell = of_forward(folder, "SetsLater", warmup_steps=warmup)
    a, b = in_turns(cell, of_forward(folder, "Looks", warmup_steps=warmup))
    for report in (run(small_spec(**cell)), a):
        first, second = (event for event in report.events if isinstance(event, ModelBuilt))
        assert (first.in_force.matmul_precision, second.in_force.matmul_precision) == ("highest", "medium")
        assert report.finished.remarks == (said,)
    assert b.built.in_force.matmul_precision == "highest"
    assert b.finished.remarks == ()
    assert {seen for seen in sys.modules["own_models"].SEEN if seen[0] == "Looks"} == {("Looks", *CLEAN)}


def test_settings_are_put_back_under_every_name_they_have() -> None:
    before = read_settings()
    changes = {name: not value for name, value in before.items() if isinstance(value, bool)}
    changes |= {"threads": before["threads"] + 1, "matmul": "medium", "deterministic": (True, True)}
    changes |= {"default device": torch.device("meta"), "default dtype": torch.float64}
    try:
        restore(before | changes)
        changed = read_settings()
        assert all(changed[name] == value for name, value in changes.items())
    finally:
        restore(before)
    assert read_settings() == before


@pytest.mark.parametrize("b_first", [False, True])
def test_two_checkouts_of_one_package_stay_apart_also_in_what_they_import_late(folder: Path, *, b_first: bool) -> None:
    shared = folder / "site"
    shared.mkdir()
    (shared / "apart_shared.py").write_text("import apart_repo\nwhich = apart_repo.WHICH\n")
    for which in ("old", "new"):
        package = folder / which / "apart_repo"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"WHICH = {which!r}\n")
        (package / "late.py").write_text("from apart_repo import WHICH\nimport apart_shared\n")
        (package / "model.py").write_text(
            "import sys\nimport torch\nfrom torch import nn\nfrom apart_repo import WHICH\n\n"
            "class LM(nn.Module):\n"
            "    def __init__(self, vocab_size):\n"
            "        super().__init__()\n"
            "        self.table = nn.Parameter(torch.zeros(vocab_size, vocab_size))\n"
            "    def forward(self, tokens):\n"
            "        from apart_repo import late\n"
            "        assert (late.WHICH, late.apart_shared.which) == (WHICH, WHICH)\n"
            "        assert sys.modules[type(self).__module__].LM is type(self)\n"
            "        return self.table[tokens]\n"
        )
    old, new = (
        {"model": "apart_repo.model:LM", "model_path": (str(folder / which), str(shared)), "pass_": "forward"}
        for which in ("old", "new")
    )
    in_turns(old, new, b_first=b_first)


def test_a_step_without_warmup_says_what_ran_before_it(folder: Path) -> None:
    (folder / "apart_attention.py").write_text(
        "import torch.nn.functional as F\n\ndef attend(q, k, v, is_causal):\n"
        "    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)\n"
    )
    cell = {"attention": "apart_attention:attend", "model_path": (str(folder),)}
    said = "the first step is not cold: apart_attention:attend was called once when it was built"
    assert run(small_spec(warmup_steps=0, **cell)).finished.remarks == (said,)
    assert run(small_spec(warmup_steps=1, **cell)).finished.remarks == ()
    assert run(small_spec(warmup_steps=0)).finished.remarks == ()


def test_turns_by_time_go_on_until_both_came_to_it() -> None:
    """Warm-up ends for each side by itself, measuring for both together."""
    timed = {"warmup_for": 1e-9, "warmup_steps": 50, "steps_for": 0.02, "measure_steps": 200}
    done = Rounded(small_spec(**timed), small_spec(**timed, batch_size=8))
    warm, measured = ([side.times_s(kind) for side in (done.a, done.b)] for kind in ("warm-up", "measured"))
    assert [len(times) for times in warm] == [1, 1]
    assert len(measured[0]) == len(measured[1])
    assert min(map(sum, measured)) >= 0.02 or len(measured[0]) == 200
    assert min(sum(times[:-1]) for times in measured) < 0.02


LOOKING = '''
SIZES = {}


@torch.library.custom_op("cs336_tui_tests::look", mutates_args=())
def look(found: torch.Tensor) -> torch.Tensor:
    return found.clone()


@look.register_fake
def _(found):
    """Is called when a graph is made: a size that may change is no number then."""
    SIZES.setdefault(int(found.shape[0]), set()).add(type(found.shape[0]).__name__)
    return torch.empty_like(found)


class Sizes(Plain):
    def forward(self, tokens):
        return self.head(look(self.embedding(tokens)))


class CompilesItself(Plain):
    """Has a part compiled, as a user's own attention may."""

    def forward(self, tokens):
        return self.head(part(self.embedding(tokens)))


@torch.compile
def part(found):
    return look(found)
'''


@compiles
@pytest.mark.parametrize(("model", "mode"), [("Sizes", "default"), ("CompilesItself", "off")])
def test_a_side_is_compiled_for_its_own_sizes_whatever_the_other_sides_are(folder: Path, model: str, mode: str) -> None:
    # torch.compile takes a size for one that changes when it meets the second one, and code for any size is slower.
    own = of_user(folder, model, LOOKING, compile=mode, pass_="inference")
    a, b = (small_spec(**own, batch_size=size, measure_steps=1) for size in (2, 4))
    seen: dict[int, set[str]] = {}

    def listen(_event: Event) -> None:
        if "own_models" in sys.modules:
            seen.update(sys.modules["own_models"].SIZES)

    done = Rounded(a, b, watch=listen)
    ends = [side.finished for side in (done.a, done.b)]
    assert [(end.status, end.error, end.recompilations) for end in ends] == [("ok", None, 0)] * 2
    assert seen == {2: {"int"}, 4: {"int"}}
