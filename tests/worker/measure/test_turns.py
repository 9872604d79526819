"""Settings and modules of one side's model are in force during its own turns only."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cs336_tui.events.events import Event, ModelBuilt, StepsTimed
from cs336_tui.worker.measure.ab import run_round
from cs336_tui.worker.measure.settings import read_settings, restore
from tests.worker.measure.cells import Report, run, small_spec

SETTING = """
import torch
from torch import nn

SEEN = set()


class Looks(nn.Module):
    def __init__(self, vocab_size, d_model, num_layers, num_heads, d_ff):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocab_size, vocab_size, dtype=torch.float32))

    def forward(self, tokens):
        SEEN.add((type(self).__name__, *found()))
        return self.table[tokens]


class Sets(Looks):
    def __init__(self, vocab_size, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, d_model, num_layers, num_heads, d_ff)
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(2)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.enable_flash_sdp(False)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)

    def forward(self, tokens):
        torch.set_default_device("cpu")
        return super().forward(tokens)


class SetsLater(Looks):
    def forward(self, tokens):
        logits = super().forward(tokens)
        torch.set_float32_matmul_precision("medium")
        return logits


def found():
    return (
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.backends.cudnn.benchmark,
        torch.backends.cuda.flash_sdp_enabled(),
        torch.get_default_dtype(),
        len(torch.overrides._get_current_function_mode_stack()),
        torch.are_deterministic_algorithms_enabled(),
    )
"""
CLEAN = ("highest", 1, False, True, torch.float32, 0, False)
SET = ("high", 2, True, False, torch.float64, 1, True)


def own(folder: Path, name: str, **changes: Any) -> dict[str, Any]:
    (folder / "apart_models.py").write_text(SETTING)
    return {"model": f"apart_models:{name}", "model_path": (str(folder),), "pass_": "forward", **changes}


def in_turns(a: dict[str, Any], b: dict[str, Any], *, b_first: bool = False) -> tuple[Report, Report]:
    events: list[Event] = []
    run_round((small_spec(**a), small_spec(**b)), (0, 1), events.append, lambda: False, b_first=b_first)
    first, second = (Report([event for event in events if getattr(event, "cell", None) == cell]) for cell in (0, 1))
    assert (first.finished.status, second.finished.status) == ("ok", "ok"), (first.finished, second.finished)
    return first, second


@pytest.mark.parametrize("b_first", [False, True])
def test_what_one_model_sets_is_in_force_in_its_own_steps_only(folder: Path, *, b_first: bool) -> None:
    before = read_settings()
    a, b = in_turns(own(folder, "Sets"), own(folder, "Looks"), b_first=b_first)
    assert {("Sets", *SET), ("Looks", *CLEAN)} == sys.modules["apart_models"].SEEN
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
    a, _ = in_turns(own(folder, "Looks"), own(folder, "SetsLater"))
    assert set_to == [1]
    assert a.finished.remarks == ()


@pytest.mark.parametrize(("warmup", "since"), [(2, "after it was built"), (0, "while it was measured")])
def test_what_a_model_changes_in_its_steps_is_told_and_is_what_is_recorded(
    folder: Path, warmup: int, since: str
) -> None:
    said = f"settings changed {since}: matmul precision highest to medium"
    cell = own(folder, "SetsLater", warmup_steps=warmup)
    a, b = in_turns(cell, own(folder, "Looks", warmup_steps=warmup))
    for report in (run(small_spec(**cell)), a):
        first, second = (event for event in report.events if isinstance(event, ModelBuilt))
        assert (first.in_force.matmul_precision, second.in_force.matmul_precision) == ("highest", "medium")
        assert report.finished.remarks == (said,)
    assert b.built.in_force.matmul_precision == "highest"
    assert b.finished.remarks == ()
    assert {seen for seen in sys.modules["apart_models"].SEEN if seen[0] == "Looks"} == {("Looks", *CLEAN)}


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
    events: list[Event] = []
    timed = {"warmup_for": 1e-9, "warmup_steps": 50, "steps_for": 0.02, "measure_steps": 200}
    run_round((small_spec(**timed), small_spec(**timed, batch_size=8)), (0, 1), events.append, lambda: False)
    sides = [[each for each in events if isinstance(each, StepsTimed) and each.cell == cell] for cell in (0, 1)]
    warm, measured = (
        [[time_s for each in side if each.kind == kind for time_s in each.times_s] for side in sides]
        for kind in ("warm-up", "measured")
    )
    assert [len(times) for times in warm] == [1, 1]
    assert len(measured[0]) == len(measured[1])
    assert min(map(sum, measured)) >= 0.02 or len(measured[0]) == 200
    assert min(sum(times[:-1]) for times in measured) < 0.02
