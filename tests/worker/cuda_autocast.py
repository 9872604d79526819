"""torch's own autocast of CUDA, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Within it, tensors made on ``cuda`` have no data, and torch dispatches them through its real autocast.

    Without gradients: a build of torch without CUDA ends the process when it makes a node for such a tensor.
    """
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), torch.no_grad():
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", dtype)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
            torch.clear_autocast_cache()
