"""Attention that does not materialise its scores: the naive one's numbers, and a true report of the kernel that ran."""

import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cs336_tui.config.spec import ARCHES, CellSpec
from cs336_tui.config.values import ATTENTIONS
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.attention import attentions_on, core_of, first_reason
from cs336_tui.worker.workload.building import Workload, build
from tests.attention_cells import attention_spec
from tests.worker.measure.cells import Operations, UsersFolder, small_spec

CPU, META = torch.device("cpu"), torch.device("meta")
ON_CPU = ("sdpa", "flash", "math")

OWN = """
import torch

def with_heads(q, k, v, is_causal=False):
    batch, heads, length, width = q.shape
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

def without_heads(q, k, v, is_causal=False):
    batch, length, width = q.shape
    return with_heads(q[:, None], k[:, None], v[:, None], is_causal)[:, 0]

def wrong_shape(q, k, v, is_causal=False):
    return v.sum(-1)

shapes = []

def _note(graph, inputs):
    shapes.append([tuple(each.shape) if isinstance(each, torch.Tensor) else each for each in inputs])
    return graph.forward

compiled = torch.compile(without_heads, backend=_note)
four = torch.compile(with_heads, backend=_note)

def inside(q, k, v, is_causal=False):
    return compiled(q, k, v, is_causal)

def exact_softmax(q, k, v, mask):
    scores = (q @ k.mT * q.shape[-1]**-0.5).float().masked_fill(~mask, -torch.inf)
    given.append((q.dtype, torch.is_autocast_enabled("cpu")))
    return scores.softmax(-1) @ v

given = []

def broken(q, k, v, is_causal=False):
    raise OverflowError(f"no {q.dim()} dimensions")
"""


def step_of(spec: CellSpec) -> tuple[Workload, Tensor, list[Tensor]]:
    """A cell on the CPU, its logits, and every gradient of its loss."""
    workload = build(spec, CPU, as_written=True)
    with workload.autocast():
        logits = workload.model(workload.batch.inputs)
        loss = workload.loss(logits, workload.batch.targets)
    return workload, logits, list(torch.autograd.grad(loss, list(workload.model.parameters())))


@pytest.fixture
def own(folder: UsersFolder, monkeypatch: pytest.MonkeyPatch) -> str:
    """A user's module on Python's path."""
    monkeypatch.syspath_prepend(str(folder.path))
    return folder.write(OWN)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("attention", ON_CPU)
def test_logits_and_gradients_are_those_of_the_naive_one(attention: str, arch: str) -> None:
    """A shorter sequence than the context is causal too."""
    _, plain, plain_gradients = step_of(small_spec(arch=arch, context_length=33))
    workload, logits, gradients = step_of(small_spec(arch=arch, context_length=33, attention=attention))
    torch.testing.assert_close(logits, plain)
    torch.testing.assert_close(gradients, plain_gradients)
    assert max(gradient.abs().max() for gradient in gradients) > 1e-3
    torch.testing.assert_close(workload.model(workload.batch.inputs[:, :4]), logits[:, :4])


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed", "bf16"])
@pytest.mark.parametrize("attention", ON_CPU)
def test_low_precisions_agree_as_far_as_they_go(attention: str, precision: str) -> None:
    _, plain, _ = step_of(small_spec(precision=precision, context_length=33))
    _, logits, _ = step_of(small_spec(precision=precision, context_length=33, attention=attention))
    assert logits.dtype == plain.dtype
    assert (logits - plain).float().norm() < 0.02 * plain.float().norm()


@pytest.mark.parametrize(
    ("attention", "fused", "said"),
    [
        ("naive", False, "naive (scores materialised)"),
        ("sdpa", True, "sdpa: flash"),
        ("flash", True, "flash"),
        ("math", False, "math (scores materialised)"),
    ],
)
@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_said_to_run_is_what_runs(attention: str, said: str, arch: str, *, fused: bool) -> None:
    """Pairs of tokens have a table where the layers need one."""
    workload = build(spec := small_spec(attention=attention, arch=arch), CPU)
    with Operations() as seen:
        workload.model(workload.batch.inputs)
    kernels = [name for name in seen.names if "flash_attention" in name]
    softmaxes = [name for name in seen.names if "softmax" in name]
    assert workload.facts.attention == said
    assert (len(kernels), len(softmaxes)) == ((spec.num_layers, 0) if fused else (0, spec.num_layers))
    tables = [buffer for buffer in workload.model.buffers() if buffer.shape == (spec.context_length,) * 2]
    assert len(tables) == (attention == "naive")


def test_a_named_kernel_is_held_to_whatever_is_switched_off_outside() -> None:
    workload = build(small_spec(attention="flash"), CPU)
    with sdpa_kernel(SDPBackend.MATH), Operations() as seen:
        workload.model(workload.batch.inputs)
        assert torch.backends.cuda.math_sdp_enabled(), "what was set outside is set again"
    assert any("flash_attention" in name for name in seen.names)


def test_a_device_is_said_to_have_what_can_be_built_on_it() -> None:
    can = attentions_on(CPU)
    assert {"naive", "sdpa", "math"} <= set(can)
    for attention in ATTENTIONS:
        with nullcontext() if attention in can else pytest.raises(ValueError, match=attention):
            build(small_spec(attention=attention), CPU)


def test_a_device_that_has_no_kernels_of_its_own_has_math(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's answer for MPS."""

    def choose(*_: object, **__: object) -> int:
        raise NotImplementedError("Could not run 'aten::_fused_sdp_choice' with arguments from the 'MPS' backend.")

    monkeypatch.setattr(torch, "_fused_sdp_choice", choose)
    assert attentions_on(CPU) == ("naive", "sdpa", "math")


@pytest.mark.parametrize("attention", ["cudnn", "memory-efficient"])
def test_a_kernel_that_a_cpu_has_not_is_refused_in_one_line(attention: str) -> None:
    said = f"attention {attention}: cpu has none; it can do {', '.join(attentions_on(CPU))}"
    with pytest.raises(ValueError, match=f"^{said}$"):
        core_of(small_spec(attention=attention), CPU)


@pytest.mark.parametrize("attention", ["flash", "cudnn"])
def test_a_prediction_refuses_what_no_gpu_has(attention: str) -> None:
    expected = rf"attention {attention} in fp32: cuda's {attention} kernel needs fp16 or bf16; choose bf16-mixed or mem"
    with pytest.raises(ValueError, match=expected):
        core_of(small_spec(attention=attention, device="cuda:0"), META)
    assert core_of(small_spec(attention=attention, device="cuda:0", precision="bf16-mixed"), META) is not None


def test_torchs_reason_is_told_of_the_kernel_asked_for_and_without_its_source() -> None:
    """Warnings of a GPU's `_fused_sdp_choice` restricted to one kernel: in this order, for disabled kernels too."""
    said = [
        "Memory efficient kernel not used because: (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:904.)",
        "Mem Efficient attention has been runtime disabled. (Triggered internally at /pytorch/sdp_utils_cpp.h:550.)",
        "Flash attention kernel not used because: (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:906.)",
        "Expected query, key and value to all be of dtype: {Half, BFloat16}.\n Got float. (Triggered internally at x.)",
        "CuDNN attention kernel not used because: (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:908.)",
        "cuDNN attention has been runtime disabled. (Triggered internally at /pytorch/aten/src/sdp_utils.cpp:712.)",
    ]
    flash = "expected query, key and value to all be of dtype: {Half, BFloat16}. Got float"
    assert first_reason("flash", said) == flash
    assert first_reason("memory-efficient", said) == "mem Efficient attention has been runtime disabled"
    assert first_reason("cudnn", said) == "cuDNN attention has been runtime disabled"
    assert first_reason("flash", said[:3]) == ""


def test_torch_warns_where_it_chooses_so_that_its_reason_is_heard() -> None:
    """A CPU refuses no cell for its shape, so the choice is restricted to flash with integers."""
    q = torch.zeros(1, 1, 8, 8, dtype=torch.int32)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError):
            torch._fused_sdp_choice(q, q, q)
    assert first_reason("flash", [str(warning.message) for warning in said]).startswith("expected query, key and value")


@pytest.mark.parametrize("attention", ON_CPU)
def test_a_compiler_sees_the_whole_model(attention: str) -> None:
    workload = build(small_spec(attention=attention), CPU)
    torch._dynamo.reset()
    compiled = torch.compile(workload.model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(workload.batch.inputs), workload.model(workload.batch.inputs))


@pytest.mark.parametrize("function", ["with_heads", "without_heads"])
def test_a_function_of_ones_own_with_or_without_heads(own: str, function: str) -> None:
    _, plain, plain_gradients = step_of(small_spec())
    workload, logits, gradients = step_of(small_spec(attention=f"{own}:{function}"))
    torch.testing.assert_close(logits, plain)
    torch.testing.assert_close(gradients, plain_gradients)
    assert workload.facts.attention == f"{own}:{function}"


def test_a_function_of_another_shape_is_told_so_and_what_it_raises_is_of_the_models_own_shape(own: str) -> None:
    with pytest.raises(ValueError, match=r"wrong_shape: returned \(1, 1, 8\) for .* of \(1, 1, 8, 8\); expected"):
        core_of(small_spec(attention=f"{own}:wrong_shape"), CPU)
    with pytest.raises(OverflowError, match="no 4 dimensions"):
        core_of(small_spec(attention=f"{own}:broken"), CPU)


@pytest.mark.parametrize(
    ("function", "shape"), [("four", (2, 2, 8, 8)), ("compiled", (4, 8, 8)), ("inside", (4, 8, 8))]
)
def test_a_compiled_function_is_compiled_for_the_cells_shape_and_no_other(
    own: str, function: str, shape: tuple[int, ...]
) -> None:
    torch._dynamo.reset()
    spec = small_spec(attention=f"{own}:{function}", num_layers=1)
    workload = build(spec, CPU)
    shapes = sys.modules[own].shapes
    assert shapes == [], "to be tried costs no compiling"
    workload.model(workload.batch.inputs)
    assert shapes == [[shape] * 3]


@pytest.mark.parametrize("make_spec", [small_spec, attention_spec])
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp16-mixed"])
def test_it_is_tried_as_it_will_be_called(own: str, make_spec: Callable[..., CellSpec], precision: str) -> None:
    spec = make_spec(precision=precision, attention=f"{own}:exact_softmax")
    step_of(spec)
    given = sys.modules[own].given
    assert len(given) >= 2
    assert len(set(given)) == 1
    on_cpu = len(given)
    assert predict(spec).flops["backward"] > 0
    assert {dtype for dtype, _ in given[on_cpu:]} == {given[0][0]}, "a prediction's autocast is one of its own"


def test_a_mask_that_it_is_given_is_the_models(own: str) -> None:
    for spec in (small_spec(), attention_spec()):
        length = spec.context_length
        model = build(msgspec.structs.replace(spec, attention=f"{own}:exact_softmax"), CPU).model
        (mask,) = (buffer for buffer in model.buffers() if buffer.shape == (length, length))
        assert torch.equal(mask, torch.ones(length, length, dtype=torch.bool).tril())
        assert "core_mask" not in model.state_dict()


def test_asking_what_runs_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    empty = torch.empty

    def watched(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(torch, "empty", watched)
    core_of(small_spec(attention="sdpa"), CPU)
    gc.collect()
    assert made
    assert not any(reference() is not None for reference in made)
