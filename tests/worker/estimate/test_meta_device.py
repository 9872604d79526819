"""Operations on meta tensors: autocast that torch itself never does there, against its own on a CPU, and results
computed and cached."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_tui.worker.estimate.meta_device import (
    LOWERED,
    RAISED,
    RAISED_OFF_CPU,
    Autocast,
    MetaKernels,
    _keeps_copies_in_inference,
)
from tests.worker.measure.cells import Operations
from tests.worker.other_dtypes import cuda_autocast

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, torch.ones(4, 4)),
    "matmul": lambda x: x @ torch.ones(4, 4),
    "bmm": lambda x: torch.bmm(x.unsqueeze(0), torch.ones(1, 4, 4)),
    "add": lambda x: x + torch.ones(4, 4),
    "silu": F.silu,
    "gelu": F.gelu,
    "stack": lambda x: torch.stack((x, x)),
    "mean": lambda x: x.mean(-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "square": lambda x: x.square(),
    "power": lambda x: x**2,
    "rsqrt": torch.rsqrt,
    "exp": lambda x: x.exp(),
    "sum": lambda x: x.sum(),
    "sum in bf16": lambda x: x.sum(dtype=BF16),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "relu": F.relu,
    "mse_loss": lambda x: F.mse_loss(x, torch.ones(4, 4)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(4)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("given", [FP32, BF16])
def test_a_cpu_s_rules_are_torch_s(name: str, given: torch.dtype) -> None:
    x = torch.rand(4, 4).to(given) + 1
    with torch.autocast("cpu", BF16):
        expected = OPERATIONS[name](x)
    with Autocast("cpu", BF16):
        result = OPERATIONS[name](x)
    assert result.dtype == expected.dtype
    assert torch.equal(result, expected)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("given", [FP32, "autocast"])
@pytest.mark.parametrize("autocast", [BF16, FP16])
def test_a_gpu_s_rules_are_torch_s(name: str, given: torch.dtype | str, autocast: torch.dtype) -> None:
    """torch dispatches fake CUDA tensors through its real autocast."""
    dtype = given if isinstance(given, torch.dtype) else autocast
    with cuda_autocast(autocast), torch.device("cuda"):
        expected = OPERATIONS[name](torch.ones(4, 4, dtype=dtype)).dtype
    with Autocast("cuda", autocast), torch.device("meta"):
        assert OPERATIONS[name](torch.ones(4, 4, dtype=dtype)).dtype == expected


def test_every_operation_is_on_the_list_of_torch_s_source_that_it_should_be_on() -> None:
    """The header that comes with torch has the lists."""
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    lists = {
        name: set(re.findall(r"_\((\w+)", body))
        for name, body in re.findall(r"#define (AT_FORALL_\w+)\(_\)((?:.*\\\n)*.*\n)", header)
    }
    lower, raised = (
        lists["AT_FORALL_LOWER_PRECISION_FP"],
        lists["AT_FORALL_FP32"] | lists["AT_FORALL_FP32_SET_OPT_DTYPE"],
    )
    assert {"linear", "matmul"} <= lower
    assert {"layer_norm", "mse_loss"} <= raised
    ours = {name.strip("_") for name in LOWERED}
    assert ours - lower == {"rmatmul"}  # ``@``, which is matmul
    assert not (RAISED | RAISED_OFF_CPU) & lower
    composed = {"cross_entropy", "square", "rpow", "norm"}  # of nll_loss, of pow; norm has a list of its own
    assert {name.strip("_") for name in RAISED | RAISED_OFF_CPU} - raised == composed
    assert "relu" not in lower | raised


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_cuda_reads_fp16_without_a_copy_to_give_fp32(name: str) -> None:
    logits = torch.ones(4, 4, dtype=FP16, device="meta", requires_grad=True)
    with Autocast("cuda", FP16):
        out = OPERATIONS[name](logits)
    assert out.dtype == FP32
    nodes = [out.grad_fn]
    for node in nodes:  # grows on the way
        nodes += [following for following, _ in node.next_functions if following is not None]
    assert "ToCopyBackward0" not in [node.name() for node in nodes]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("autocast", [BF16, FP16])
def test_cuda_takes_the_log_softmax_of_cross_entropy_in_the_dtype_of_the_logits(
    autocast: torch.dtype, reduction: str
) -> None:
    """Its result alone is copied to fp32, as torch's real autocast does it."""

    def operations(device: str) -> list[tuple[str, torch.dtype | None]]:
        logits = torch.ones(4, 4, dtype=autocast, device=device)
        targets = torch.zeros(4, dtype=torch.int64, device=device)
        with Operations() as seen:
            F.cross_entropy(logits, targets, ignore_index=-1, reduction=reduction)
        return [(name, dtype) for name, dtype in zip(seen.names, seen.dtypes, strict=True) if dtype]

    with cuda_autocast(autocast):
        expected = operations("cuda")
    with Autocast("cuda", autocast):
        assert operations("meta") == expected
    assert expected[0] == ("_log_softmax", autocast)


def test_whether_copies_are_kept_in_inference_is_the_same_wherever_it_is_asked_first() -> None:
    _keeps_copies_in_inference.cache_clear()
    with torch.device("meta"), torch.inference_mode():
        asked_in_a_prediction = _keeps_copies_in_inference()
    _keeps_copies_in_inference.cache_clear()
    assert asked_in_a_prediction == _keeps_copies_in_inference()


def test_a_parameter_is_cast_once_a_context() -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    seen: list[Tensor] = []

    class Keep(torch.autograd.graph.saved_tensors_hooks):
        def __init__(self) -> None:
            super().__init__(lambda tensor: seen.append(tensor) or tensor, lambda tensor: tensor)

    def copies(inputs: int) -> int:
        seen.clear()
        with Keep(), Autocast("cpu", BF16):
            for _ in range(inputs):
                F.linear(torch.ones(2, 4, requires_grad=True), weight)
        return len({tensor.untyped_storage().data_ptr() for tensor in seen if tensor.shape == (4, 4)})

    assert copies(3) == 1


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.untyped_storage().nbytes()


def results() -> list[Tensor]:
    x, y = meta(2, 3, 4), meta(2, 3, 4, dtype=torch.bfloat16)
    return [
        x + y,
        x * 2,
        y * 2,
        y * 2.5,
        meta(3, dtype=torch.int64) * 2,
        meta(3, dtype=torch.int64) * 2.0,
        x.mT + 1,
        x.mean(-1),
        x.mean((0, 1), keepdim=True),
        y.sum(dtype=torch.float32),
        torch.stack((x, x), -1),
        torch.stack((x, x), 0),
        x.to(torch.float64),
        x.mT.contiguous(),
        x.mT.clone(),
        x @ x.mT,
    ]


def test_a_remembered_result_is_like_the_one_worked_out() -> None:
    plain = [form(tensor) for tensor in results()]
    with MetaKernels():
        first, second = results(), results()
    assert [form(tensor) for tensor in first] == plain
    assert [form(tensor) for tensor in second] == plain


def test_a_result_is_a_tensor_of_its_own_unless_it_is_a_view_and_of_data_it_is_computed() -> None:
    with MetaKernels():
        x = meta(4)
        one, two = x + 1, x + 1
        for _ in range(2):
            assert x.view(2, 2).untyped_storage()._cdata == x.untyped_storage()._cdata
            assert torch.ops.aten._unsafe_view(x, [2, 2]).untyped_storage()._cdata == x.untyped_storage()._cdata
    assert one.untyped_storage()._cdata != two.untyped_storage()._cdata
    with MetaKernels():
        assert [float(torch.tensor(value) * 2) for value in (1.0, 3.0)] == [2.0, 6.0]


def test_scaled_gradients_have_not_overflowed() -> None:
    weight = nn.Parameter(meta(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    stepped: list[bool] = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(True))
    with MetaKernels() as kernels:
        scaler.scale((weight * 2).sum()).backward()
        kernels.answers = True
        scaler.step(optimizer)
        scaler.update()
    assert stepped
