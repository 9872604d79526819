"""Bytes held before the backward: those that torch allocated, and the sum made by hand, for every attention."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from cs336_tui.config.flops import accounting_of
from cs336_tui.config.spec import CellSpec
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.measure.cell_memory import before_backward_bytes
from cs336_tui.worker.measure.preparing import fresh_compiler
from cs336_tui.worker.workload.building import build, configure_torch
from tests.attention_cells import attention_spec
from tests.worker.measure.cells import run

CPU = torch.device("cpu")
SCALARS = 16
"""Bytes at most of the loss and of the number that scores are scaled by, which accounting leaves out."""


def held(spec: CellSpec) -> int | None:
    configure_torch(spec)
    workload = build(spec, CPU)
    return before_backward_bytes(workload.step(spec), workload, CPU)


@pytest.mark.parametrize("attention", ["naive", "sdpa", "math"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
def test_what_is_held_is_what_is_accounted_for(attention: str, causal: bool, precision: str) -> None:
    spec = attention_spec(attention=attention, causal=causal, precision=precision, context_length=96, d_model=16)
    found, accounting = held(spec), accounting_of(spec)
    assert found is not None
    assert accounting is not None
    assert accounting.bytes < found <= accounting.bytes + SCALARS


def test_the_mask_that_a_users_function_is_given_counts_and_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "masked_of_ones_own.py").write_text("def by_mask(q, k, v, mask): return q * 2 + k + v")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = attention_spec(attention="masked_of_ones_own:by_mask", context_length=96)
    found = held(spec)
    tensors, output, mask = 4 * 2 * 96 * 8 * 4, 2 * 96 * 8 * 4, 96 * 96
    assert found is not None
    assert 0 <= found - (tensors + output + mask) <= SCALARS
    assert 0 <= found - predict(spec).forward_end_bytes <= SCALARS


def test_the_scores_are_what_makes_naive_attention_large() -> None:
    small, large = (held(attention_spec(context_length=length, causal=False)) for length in (64, 128))
    assert small is not None
    assert large is not None
    # 6 tensors of B T K, 1 of B T T
    assert large - small == 6 * 2 * 64 * 8 * 4 + 2 * (128**2 - 64**2) * 4


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.timeout(300)  # a C++ compiler works for many seconds, on a busy machine for minutes
@pytest.mark.usefixtures("warm_cache")
def test_compiled_code_is_seen_too() -> None:
    spec = attention_spec(compile="default", causal=False, context_length=96)
    configure_torch(spec)
    with fresh_compiler("default"):
        workload = build(spec, CPU)
        step = workload.step(spec)
        for phase in step.phases:
            step.run(phase)
        step.clear()
        found = before_backward_bytes(step, workload, CPU)
    inputs_and_output = 5 * 2 * 96 * 8 * 4
    assert found is not None
    assert found >= inputs_and_output + 2 * 96 * 96 * 4, "the weights are kept for backward"


def test_a_pass_without_a_backward_holds_nothing_for_one() -> None:
    assert held(attention_spec(pass_="forward")) is None


@pytest.mark.parametrize("pass_", ["backward", "forward+backward"])
def test_nothing_is_left_and_the_step_can_go_on(pass_: str) -> None:
    spec = attention_spec(pass_=pass_)
    configure_torch(spec)
    workload = build(spec, CPU)
    step = workload.step(spec)
    assert before_backward_bytes(step, workload, CPU) == before_backward_bytes(step, workload, CPU)
    assert all(parameter.grad is None for parameter in workload.model.parameters())
    step.prepare()
    for phase in step.phases:
        step.run(phase)
    assert all(parameter.grad is not None for parameter in workload.model.parameters())


def test_running_out_of_memory_there_costs_only_the_number() -> None:
    spec = attention_spec()
    configure_torch(spec)
    workload = build(spec, CPU)
    step = workload.step(spec)

    def too_much(*_: object) -> None:
        torch.empty(2**60, device=CPU)

    hook = workload.model.register_forward_pre_hook(too_much)
    assert before_backward_bytes(step, workload, CPU) is None
    assert step.failed_in is None
    hook.remove()
    assert before_backward_bytes(step, workload, CPU) is not None


@pytest.mark.parametrize("pass_", ["forward", "backward", "forward+backward"])
def test_a_cell_tells_it_with_its_end_and_not_as_a_step(pass_: str) -> None:
    spec = attention_spec(pass_=pass_)
    report = run(spec)
    accounting = accounting_of(spec)
    assert accounting is not None
    assert report.finished.status == "ok", report.finished.error
    assert report.outline.count("finishing") == 1
    found = report.finished.before_backward_bytes
    if pass_ == "forward":
        assert found is None
    else:
        assert found is not None
        assert accounting.bytes < found <= accounting.bytes + SCALARS
