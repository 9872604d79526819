"""dtypes on a real CUDA GPU, whose autocast has other rules than the CPU's."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.events.events import Event, ReportFinished
from cs336_tui.events.reports import PrecisionReport, ReportRequest
from cs336_tui.worker.measure.dtypes import toy_by_cuda_rules, toy_dtypes
from cs336_tui.worker.measure.report import make_report
from tests.worker.measure.cells import small_spec
from tests.worker.measure.other_toy import by_hand

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

DEVICE = torch.device("cuda:0")


def test_the_toy_models_dtypes_are_what_other_hooks_see() -> None:
    found, missing = toy_dtypes(DEVICE)
    assert len(found) + len(missing) == 2
    for toy in found:
        autocast = getattr(torch, toy.autocast)
        assert {field: getattr(toy, field) for field in toy.__struct_fields__} == by_hand(autocast, DEVICE)


def test_cuda_s_rules_say_what_hooks_see_here() -> None:
    found, _ = toy_dtypes(DEVICE)
    assert found
    assert set(map(repr, found)) <= set(map(repr, toy_by_cuda_rules()))


def test_layer_norm_runs_in_float32_here() -> None:
    """CUDA's autocast has layer norm in its list of float32 operations; the CPU's has not."""
    found, _ = toy_dtypes(DEVICE)
    assert {toy.layer_norm_output for toy in found} == {"float32"}


@pytest.mark.parametrize("pass_", ["inference", "train-step"])
def test_a_cells_report_is_made_on_the_gpu(pass_: str) -> None:
    events: list[Event] = []
    spec = small_spec(device="cuda:0", threads=None, precision="fp16-mixed", pass_=pass_)
    make_report(ReportRequest(kind="precision", spec=spec), 0, events.append, lambda: False)
    finished = events[-1]
    assert isinstance(finished, ReportFinished)
    assert isinstance(finished.content, PrecisionReport), finished.error
    rows = {row.path: row for row in finished.content.modules}
    assert finished.content.device_name == torch.cuda.get_device_name(0)
    assert rows["layers.*.attention.query"].output == "float16"
    assert rows["layers.*.attention.weigh"].output == "float32"
    assert (finished.content.logits, finished.content.loss) == ("float16", "float32")
    assert finished.content.toy_by_rules == ()  # hooks see the device itself
