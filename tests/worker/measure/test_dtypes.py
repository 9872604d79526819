"""Precision reports, against numpy's arithmetic and against hooks on hand-made models."""

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.config.spec import Arch, CellSpec, Pass, Precision
from cs336_tui.events.events import Event, ReportStage
from cs336_tui.events.reports import ModuleDtypes, PrecisionReport, ReportRequest
from cs336_tui.worker.estimate.meta_device import RULES
from cs336_tui.worker.measure import dtypes
from cs336_tui.worker.measure.dtypes import DtypeWatch, accumulate, bytes_at_most, collapsed, toy_dtypes
from cs336_tui.worker.measure.report import make_report
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import saved_by_hooks, small_spec
from tests.worker.other_dtypes import by_hand, cuda_autocast, name

CPU = torch.device("cpu")
PARAMETER = {"bf16": "bfloat16"}
LOW = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def made(spec: CellSpec, cancelled: Callable[[], bool] = lambda: False) -> list[Event]:
    events: list[Event] = []
    make_report(ReportRequest(kind="precision", spec=spec), 3, events.append, cancelled)
    return events


def report_on(**changes: Any) -> PrecisionReport:
    finished = made(small_spec(**changes))[-1]
    assert finished.status == "ok", finished.error
    return finished.content


# The accumulation experiment.


def numpy_sum(accumulator: type[np.floating[Any]], addend: type[np.floating[Any]]) -> float:
    total = accumulator(0)
    for _ in range(1000):
        total = accumulator(total + accumulator(addend(0.01)))
    return float(total)


def test_the_four_sums_are_those_of_numpy_and_converting_the_addend_first_brings_nothing_back() -> None:
    found = accumulate()
    mixed = ("float32", "float16")
    variants = [("float32", "float32", False), ("float16", "float16", False), (*mixed, False), (*mixed, True)]
    assert [(each.accumulator, each.addend, each.converted) for each in found] == variants
    sums = [numpy_sum(getattr(np, accumulator), getattr(np, addend)) for accumulator, addend, _ in variants]
    assert [each.result for each in found] == sums
    exact, half, unconverted, converted = (abs(each.error) for each in found)
    assert exact < unconverted == converted < half


# The toy model.


def test_the_toy_models_dtypes_are_what_other_hooks_see() -> None:
    found, missing = toy_dtypes(CPU)
    assert missing == ()
    for toy, autocast in zip(found, (torch.float16, torch.bfloat16), strict=True):
        assert {field: getattr(toy, field) for field in toy.__struct_fields__} == by_hand(autocast, CPU)


@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16])
def test_by_rules_the_toy_model_has_the_dtypes_that_torch_s_own_cuda_autocast_gives(autocast: torch.dtype) -> None:
    """torch dispatches a fake CUDA tensor through its real autocast; without a GPU it has no backward."""
    seen: dict[str, str] = {}
    with cuda_autocast(autocast):
        x, weight = torch.empty(4, 8, device="cuda"), torch.empty(8, 8, device="cuda")
        first = F.linear(x, weight)
        norm = F.layer_norm(torch.relu(first), (8,))
        logits = F.linear(norm, weight)
        loss = F.mse_loss(logits, x)
        seen = {"first_layer_output": name(first.dtype), "layer_norm_output": name(norm.dtype),
                "logits": name(logits.dtype), "loss": name(loss.dtype), "parameters": name(weight.dtype)}  # fmt: skip
    report = report_on()
    assert report.rules == RULES
    (toy,) = (toy for toy in report.toy_by_rules if toy.autocast == name(autocast))
    assert {part: getattr(toy, part) for part in seen} == seen
    assert toy.gradient_of == dict.fromkeys(("fc1.weight", "ln.weight", "ln.bias", "fc2.weight"), "float32")


@pytest.mark.parametrize(
    ("raises", "why"), [(True, "cpu cannot do it: this device has no float16"), (False, "torch leaves it off on cpu.")]
)
def test_an_autocast_that_the_device_lacks_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, *, raises: bool, why: str
) -> None:
    real = torch.autocast

    def no_half(device_type: str, dtype: torch.dtype) -> object:
        if raises and dtype is torch.float16:
            raise RuntimeError("this device has no float16\nand a second line")
        return real(device_type, dtype=dtype, enabled=dtype is torch.bfloat16)

    monkeypatch.setattr(torch, "autocast", no_half)
    found, missing = toy_dtypes(CPU)
    assert [toy.autocast for toy in found] == ["bfloat16"]
    assert missing == (f"float16 autocast: {why}",)
    assert report_on().toy_note == "".join(missing)


# The cell's own model.


def modules_by_hand(spec: CellSpec) -> dict[str, tuple[str, str, str]]:
    """Inputs, output and gradient of every module of a cell's model, read by plain hooks."""
    workload = build(spec, CPU)
    model, batch = workload.model, workload.batch
    seen: dict[str, tuple[str, str]] = {}
    for path, module in model.named_modules():

        def note(_module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor, path: str = path) -> None:
            seen[path] = ("+".join(dict.fromkeys(name(x.dtype) for x in inputs)), name(out.dtype))

        module.register_forward_hook(note)
    low = LOW.get(spec.precision)
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        logits = model(batch.inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
    loss.backward()
    gradients = {
        path: "+".join({name(p.grad.dtype) for p in module.parameters(recurse=False) if p.grad is not None})
        for path, module in model.named_modules()
    }
    return {path: (*dtypes_seen, gradients[path]) for path, dtypes_seen in seen.items()}


@pytest.mark.parametrize("arch", ["swiglu-rope", "gelu-learned"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16"])
def test_every_module_has_the_dtypes_that_plain_hooks_see(precision: Precision, arch: Arch) -> None:
    report = report_on(precision=precision, arch=arch, num_layers=3)
    rows = {row.path: row for row in report.modules if row.module != "method"}
    expected = modules_by_hand(small_spec(precision=precision, arch=arch, num_layers=3))
    joined = {re.sub(r"^layers\.\d+", "layers.*", path) or "model": path for path in expected}
    assert set(rows) == set(joined)
    for path, original in joined.items():
        row = rows[path]
        assert (row.inputs, row.output, row.gradients) == expected[original], path
        assert row.count == (3 if path.startswith("layers") else 1)
    parameters = {row.parameters for row in rows.values() if row.parameters}
    assert parameters == {PARAMETER.get(precision, "float32")}
    assert (report.logits, report.note) == (rows["model"].output, "")


def test_modules_are_in_the_order_in_which_a_step_comes_to_them() -> None:
    report = report_on()
    assert (report.device_name[:3], report.torch) == ("CPU", torch.__version__)
    paths = [row.path for row in report.modules]
    assert paths[:4] == ["model", "token_embedding", "layers.*", "layers.*.attention_norm"]
    assert paths[-2:] == ["final_norm", "head"]
    attention = [path.rpartition(".")[2] for path in paths if path.startswith("layers.*.attention.")]
    assert attention == ["query", "key", "value", "rotary", "score", "weigh", "mix", "output"]


def test_the_softmax_and_the_residual_stream_are_seen() -> None:
    rows = {row.path: row for row in report_on(precision="bf16-mixed").modules}
    workload = build(small_spec(precision="bf16-mixed"), CPU)
    model, autocast = workload.model, workload.autocast
    with autocast():
        q = torch.randn(1, 8, 2, 8).bfloat16()
        scores = model.layers[0].attention.score(q, q, model.causal_mask[:2, :2])
        weights = scores.softmax(dim=-1)
    assert rows["layers.*.attention.score"].output == name(scores.dtype)
    assert rows["layers.*.attention.weigh"].output == name(weights.dtype)
    assert rows["layers.*"].output == rows["token_embedding"].output == "float32"


@pytest.mark.parametrize("pass_", ["inference", "forward"])
def test_a_pass_without_backward_has_no_gradients_and_says_so(pass_: Pass) -> None:
    report = report_on(pass_=pass_)
    assert {row.gradients for row in report.modules} == {""}
    assert f"Pass {pass_} has no backward" in report.note
    assert report.loss == "float32"


@pytest.mark.parametrize("pass_", ["backward", "forward+backward", "train-step"])
def test_every_pass_with_backward_shows_the_same(pass_: Pass) -> None:
    assert report_on(pass_=pass_, precision="fp16-mixed").modules == report_on(precision="fp16-mixed").modules


def test_watching_leaves_the_model_as_it_was() -> None:
    workload = build(small_spec(), CPU)
    model, batch = workload.model, workload.batch
    attention = model.layers[0].attention
    with DtypeWatch(model) as watch:
        model(batch.inputs)
    seen = watch.rows()
    assert "weigh" not in vars(attention)
    model(batch.inputs.repeat(2, 1))
    assert watch.rows() == seen
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_module_called_with_several_dtypes_shows_them_all() -> None:
    model = nn.Sequential(nn.ReLU())
    with DtypeWatch(model) as watch:
        model(torch.zeros(1))
        model(torch.zeros(1, dtype=torch.float64))
    assert watch.rows()[1].output == "float32+float64"


# Joining layers.


def row(path: str, output: str = "float32") -> ModuleDtypes:
    return ModuleDtypes(path=path, module="M", count=1, parameters="", inputs="", output=output, gradients="")


def test_layers_that_agree_are_one_row_and_a_single_one_keeps_its_number() -> None:
    rows = [row("embedding"), *(row(f"layers.{i}.ffn") for i in range(12)), row("head")]
    found = [(each.path, each.count) for each in collapsed(rows)]
    assert found == [("embedding", 1), ("layers.*.ffn", 12), ("head", 1)]
    rows = [row(f"layers.{i}.ffn", "float32" if i in (0, 11) else "bfloat16") for i in range(12)]
    differing = [(each.path, each.count, each.output) for each in collapsed(rows)]
    middle = ("layers.1-10.ffn", 10, "bfloat16")
    assert differing == [("layers.0.ffn", 1, "float32"), middle, ("layers.11.ffn", 1, "float32")]
    assert [each.path for each in collapsed([row("layers.0"), row("layers.0.ffn")])] == ["layers.0", "layers.0.ffn"]


# When it does not fit, and other ends.


def test_a_model_that_runs_out_of_memory_or_would_is_read_from_two_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    real, depths = dtypes.build, []

    def build_two_at_most(spec: CellSpec, device: torch.device, **how: bool) -> object:
        depths.append(spec.num_layers)
        if spec.num_layers > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(spec, device, **how)

    monkeypatch.setattr(dtypes, "build", build_two_at_most)
    found = report_on(num_layers=4, precision="bf16-mixed")
    assert depths == [4, 2]
    assert "2 of its 4 layers, batch 1, context length 8" in found.note
    assert {each.count for each in found.modules if each.path.startswith("layers")} == {2}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100_000))
    assert "2 of its 3 layers" in report_on(num_layers=3).note
    assert depths == [4, 2, 2], "a cell larger than the host's free memory is not tried"


@pytest.mark.parametrize("shape", [{"context_length": 256}, {"d_ff": 512}, {"d_model": 256}, {"vocab_size": 9000}])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_what_a_cell_holds_is_counted_on_the_large_side(precision: Precision, shape: dict[str, int]) -> None:
    spec = small_spec(precision=precision, **({"d_model": 64, "d_ff": 256, "context_length": 64} | shape))
    workload = build(spec, CPU)
    model, batch, autocast = workload.model, workload.batch, workload.autocast
    with autocast():
        loss, saved = saved_by_hooks(
            lambda: F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        )
    loss.backward()
    held = saved + 4 * model.num_params  # with the gradients
    assert held < bytes_at_most(spec) < 6 * held


def test_a_report_can_be_stopped_between_its_parts_or_fails() -> None:
    asked = iter([False, True])
    events = made(small_spec(), lambda: next(asked))
    assert [event.stage for event in events if isinstance(event, ReportStage)] == ["accumulating"]
    assert events[-1].status == "cancelled"
    finished = made(small_spec(precision="tf32"))[-1]
    assert finished.status == "failed"
    assert "tf32" in (finished.error or "")
