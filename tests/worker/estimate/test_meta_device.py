"""Results of operations on meta tensors: the same computed and cached."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cs336_tui.worker.estimate.meta_device import MetaKernels


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


def test_a_result_is_a_tensor_of_its_own_unless_it_is_a_view() -> None:
    with MetaKernels():
        x = meta(4)
        one, two = x + 1, x + 1
        for _ in range(2):
            assert x.view(2, 2).untyped_storage()._cdata == x.untyped_storage()._cdata
            assert torch.ops.aten._unsafe_view(x, [2, 2]).untyped_storage()._cdata == x.untyped_storage()._cdata
    assert one.untyped_storage()._cdata != two.untyped_storage()._cdata


def test_what_has_data_is_computed() -> None:
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
