"""Logits and gradients on a real CUDA GPU: the sketches are those of a CPU, and what only rounds otherwise agrees."""

from typing import Any

import msgspec
import pytest
import torch

from cs336_tui.analysis.agreement import agreement, agreement_key
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import AgreementReport, ReportRequest
from cs336_tui.worker.measure.report import sketch, sketch_agreement
from tests.gpu.cells import gpu_spec, low_precision, needs, needs_compiler


@pytest.mark.numbers
def test_a_sketch_is_the_same_on_both_devices() -> None:
    x = torch.randn(1_234_567, generator=torch.Generator().manual_seed(1))
    here, there = sketch(x, "x"), sketch(x.cuda(), "x")
    assert there.norm == pytest.approx(here.norm, rel=1e-12)
    of_both = (torch.frombuffer(bytearray(each.buckets), dtype=torch.float32) for each in (here, there))
    torch.testing.assert_close(*of_both, rtol=1e-6, atol=1e-5)


@pytest.mark.real_numbers
@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "sdpa"},
        {"checkpoint": 1},
        {"compile": "default"},
        {"precision": "tf32"},
        {"precision": "fp8-mixed"},
    ],
    ids=str,
)
@pytest.mark.parametrize("precision", ["fp32", "low"])
def test_what_only_rounds_otherwise_agrees(precision: str, changes: dict[str, Any]) -> None:
    base = gpu_spec(pass_="train-step", precision="fp32" if precision == "fp32" else low_precision())
    other = msgspec.structs.replace(base, **changes)
    needs(other.precision)
    needs_compiler(other.compile)
    found = agreement(_report(other, base), _report(base, base))
    assert found.agrees, found.why


def _report(spec: CellSpec, base: CellSpec) -> AgreementReport:
    request = ReportRequest(kind="agreement", spec=agreement_key(spec, base))
    return sketch_agreement(request, lambda _: None)
