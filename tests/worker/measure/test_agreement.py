"""Logits and gradients by sketches: what rounds alone agrees, what is wrong differs, and the sketches' accuracy."""

import math
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from cs336_tui.analysis.agreement import Agreement, agreement, agreement_key
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, ReportFinished
from cs336_tui.events.reports import AgreementReport, ReportRequest, Sketch
from cs336_tui.worker.measure.report import BUCKETS, hashed, make_report, sketch
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.model_parts import named_parameters
from tests.worker.measure.cells import compiles, small_spec
from tests.worker.workload.own_code import GPT, Folder

ATTENTIONS = """
import torch
import torch.nn.functional as F

sdpa = F.scaled_dot_product_attention

def right(q, k, v, is_causal):
    return sdpa(q, k, v, is_causal=is_causal)

def sees_all(q, k, v, is_causal):
    return sdpa(q, k, v)

def scaled(q, k, v, is_causal):
    return sdpa(q, k, v, is_causal=is_causal, scale=1 / q.shape[-1])

def no_number(q, k, v, is_causal):
    return sdpa(q, k, v, is_causal=is_causal) * torch.tensor(float("nan"))

def wrong_at_one(q, k, v, is_causal):
    out = sdpa(q, k, v, is_causal=is_causal).clone()
    out[0, ..., 5, :] *= 1.01
    return out

def mixes_sequences(q, k, v, is_causal):
    out = sdpa(q, k, v, is_causal=is_causal)
    return out + 1e-3 * out.flip(0)

class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        ctx.save_for_backward(q, k, v)
        return sdpa(q, k, v, is_causal=is_causal)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            q, k, v = (each.detach().requires_grad_() for each in ctx.saved_tensors)
            of = torch.autograd.grad(sdpa(q, k, v, is_causal=True), (q, k, v), gradient)
        return of[0], 1.02 * of[1], of[2], None
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def own(folder: Folder) -> str:
    return folder.write(ATTENTIONS)


def spec_of(**changes: Any) -> CellSpec:
    wide = {"d_model": 32, "d_ff": 64, "vocab_size": 100, "context_length": 24, "pass_": "train-step"}
    return small_spec(**(wide | changes))


def sketched(spec: CellSpec, base: CellSpec) -> AgreementReport | str:
    """The report, made as a child process makes it, or its error."""
    events: list[Event] = []
    key = agreement_key(spec, base)
    make_report(ReportRequest(kind="agreement", spec=key), 0, events.append, lambda: False)
    ended = events[-1]
    assert isinstance(ended, ReportFinished)
    assert isinstance(ended.content, AgreementReport) or ended.error
    return ended.content if isinstance(ended.content, AgreementReport) else ended.error or ""


def compared(spec: CellSpec, base: CellSpec | None = None) -> Agreement:
    base = base or spec_of()
    return agreement(sketched(spec, base), sketched(base, base))


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ({"attention": "sdpa"}, {}),
        ({"checkpoint": 1}, {}),
        ({"checkpoint": 1, "nesting": "halves"}, {}),
        ({"optimizer": "adamw-for-loop"}, {}),
        ({"batch_size": 4, "accumulate": 2}, {}),
        ({"precision": "bf16-mixed"}, {}),
        ({"precision": "bf16"}, {}),
        ({"precision": "fp16-mixed"}, {}),
        ({"attention": "sdpa", "precision": "bf16-mixed", "checkpoint": 2}, {}),
        ({"attention": "sdpa"}, {"precision": "bf16-mixed"}),
        ({"attention": "sdpa"}, {"precision": "bf16"}),
        ({"attention": "sdpa"}, {"arch": "gelu-learned", "bias": "on"}),  # gradients of keys' biases are rounding alone
    ],
    ids=str,
)
def test_what_only_rounds_otherwise_agrees(changes: dict[str, Any], base: dict[str, Any]) -> None:
    found = compared(spec_of(**base, **changes), spec_of(**base))
    assert found.agrees, found.why
    assert found.logits
    exact = changes.keys() <= {"checkpoint", "nesting", "optimizer", "batch_size", "accumulate"}
    assert (found.logits.whole == 0) == exact


@compiles
def test_what_is_compiled_agrees() -> None:
    base = spec_of(workload="norm", num_heads=1, pass_="forward")
    found = compared(msgspec.structs.replace(base, compile="default"), base)
    assert found.agrees, found.why


@pytest.mark.parametrize(
    ("function", "precision", "said"),
    [
        ("right", "fp32", ""),
        ("sees_all", "fp32", "logits by"),
        ("sees_all", "bf16-mixed", ""),
        ("scaled", "fp32", "logits by"),
        ("scaled", "bf16-mixed", ""),
        ("no_number", "fp32", "logits are not finite: 4800 of 4800"),
        ("wrong_at_one", "fp32", "(position 6)"),
        ("mixes_sequences", "fp32", "logits by"),
        ("WrongGradient", "fp32", "differs in gradients by"),
    ],
)
def test_a_wrong_attention_differs_and_is_named(
    folder: Folder, own: str, function: str, precision: str, said: str
) -> None:
    base = spec_of(precision=precision)
    mine = spec_of(precision=precision, attention=f"{own}:{function}", model_path=folder.paths)
    found = compared(mine, base)
    assert found.agrees is (function == "right"), found.why
    assert said in found.why
    if function == "WrongGradient":
        assert ".attention.key.weight)" in found.why


def test_other_models_and_what_cannot_be_run_are_not_compared(folder: Folder) -> None:
    gpt = spec_of(model=f"{folder.write(GPT)}:GPT", model_path=folder.paths)
    assert compared(gpt).why.startswith("other parameters than the starting point: it has ")
    tied = compared(spec_of(weight_tying="on"))
    assert tied == Agreement(None, "other parameters than the starting point: it has no head.weight")
    assert "begins with other values" in compared(spec_of(seed=1)).why
    assert compared(gpt, gpt).agrees
    broken = spec_of(
        attention=f"{folder.write('def f(q, k, v, is_causal): raise OSError(5)')}:f", model_path=folder.paths
    )
    found = compared(broken)
    assert found.agrees is None
    assert "could not be checked: " in found.why
    found = compared(spec_of(), broken)
    assert found.agrees is None
    assert "starting point could not be checked" in found.why


def test_passes_without_a_backward_have_logits_alone() -> None:
    for pass_ in ("inference", "forward"):
        found = compared(spec_of(pass_=pass_, attention="sdpa"), spec_of(pass_=pass_))
        assert found.agrees, found.why
        assert found.gradients is None


DROPS = GPT.replace("return self.lm_head", "x = {}\n        return self.lm_head").replace(
    "self.lm_head = nn", "self.drop = nn.Dropout(0.3)\n        self.lm_head = nn"
)


def test_dropout_is_off_and_what_is_drawn_all_the_same_is_not_called_wrong(folder: Folder) -> None:
    dropout = spec_of(dropout=0.2)
    assert compared(msgspec.structs.replace(dropout, attention="sdpa"), dropout).agrees
    module, function = (
        spec_of(model=f"{folder.write(DROPS.format(text))}:GPT", model_path=folder.paths)
        for text in ("self.drop(x)", "F.dropout(x, 0.3)")
    )
    plain = spec_of(model=f"{folder.write(GPT)}:GPT", model_path=folder.paths)
    assert compared(module, plain).agrees
    found = compared(function, plain)
    assert found.agrees is None
    assert found.why.startswith("draws random numbers")


def test_names_of_parameters_are_those_of_the_model_as_written() -> None:
    plain, grouped = (
        build(spec_of(checkpoint=checkpoint), torch.device("cpu"), as_written=True).model for checkpoint in (0, 2)
    )
    assert [name for name, _ in named_parameters(grouped)] == [name for name, _ in plain.named_parameters()]
    inside = torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 2)))
    assert [name for name, _ in named_parameters(inside)] == ["0.weight", "0.bias"]


# Sketches.


def buckets_of(of: Sketch) -> Tensor:
    return torch.frombuffer(bytearray(of.buckets), dtype=torch.float32).double()


@pytest.mark.parametrize("shape", [(), (1,), (31,), (33,), (7, 5, 3), (0,)])
@pytest.mark.parametrize("chunk", [1, 50, 64, 10_000])
def test_a_sketch_does_not_depend_on_its_chunks(shape: tuple[int, ...], chunk: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    whole, parts = sketch(x, "x"), sketch(x, "x", chunk=chunk)
    assert torch.allclose(buckets_of(whole), buckets_of(parts), rtol=1e-6, atol=1e-7)
    assert whole.norm == pytest.approx(float(x.double().norm()))


def test_a_sketch_is_of_the_finite_elements_not_of_how_they_lie() -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(2))
    assert sketch(x.t().contiguous().t(), "x") == sketch(x, "x")
    assert sketch(4 * x, "x", 4.0) == sketch(x, "x")
    x = torch.tensor([1.0, math.nan, -math.inf, 2.0])
    without = sketch(torch.tensor([1.0, 0.0, 0.0, 2.0]), "x")
    assert sketch(x, "x") == msgspec.structs.replace(without, not_finite=2)
    assert without.norm == pytest.approx(math.sqrt(5))


@pytest.mark.parametrize("kind", ["all", "one row", "one column", "neighbours"])
def test_the_estimated_norm_of_a_difference_is_as_accurate_as_stated(kind: str) -> None:
    """Over many sketches the squared estimate is without bias, its relative standard deviation at most sqrt(2 / m)."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 96, generator=generator)
    change = torch.zeros_like(x)
    where = {"all": ..., "one row": (3,), "one column": (slice(None), 5), "neighbours": (7, slice(10, 12))}[kind]
    change[where] = torch.randn(change[where].shape, generator=generator)
    y, count = x + change, 300
    exact = float((y - x).double().square().sum())
    ratios = torch.tensor([
        float((buckets_of(sketch(x, f"{n}")) - buckets_of(sketch(y, f"{n}"))).square().sum()) / exact
        for n in range(count)
    ])  # fmt: skip
    stated = math.sqrt(2 / BUCKETS)
    assert abs(float(ratios.mean()) - 1) < 4 * stated / math.sqrt(count)
    assert float(ratios.std()) < 1.25 * stated


def test_signs_and_shifts_are_even() -> None:
    found = hashed(torch.arange(100_000), 12345)
    assert abs(float((found & 1).double().mean()) - 0.5) < 0.01
    counts = torch.bincount(found % 32, minlength=32).double()
    assert float(counts.std()) < 3 * math.sqrt(100_000 / 32)
    assert int(found.max()) < 2**32
