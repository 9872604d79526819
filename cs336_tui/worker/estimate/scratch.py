"""Memory that CUDA's kernels take while they run, beside the tensors that they return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from cs336_tui.worker.estimate.tracker import Allocation, Args

_MULTIPROCESSORS, _THREADS = 132, 2048
"""Those of an H100; on others a sum takes a little more or less."""
_ROWS_OF_ONE_KERNEL = 3072
"""An embedding's gradient of more rows is sorted first."""

_LT = frozenset(("addmm", "_scaled_mm"))
"""Products of cuBLASLt: those with a bias, and in float8."""
_LT_WORKSPACE = 2**20
_KEEPS_LT, _SHARES_LT = (2, 9), (2, 12)
"""Releases of torch: the first that keeps cuBLASLt's workspace for a thread, and the first in which it is cuBLAS's."""


def lt_workspaces(allocations: Iterable[Allocation]) -> dict[bool, int]:
    """Bytes of a kept cuBLASLt workspace by the thread that multiplies with it: backward's or the other."""
    if not _KEEPS_LT <= torch.__version__ < _SHARES_LT:
        return {}
    return {each.site.backward: _LT_WORKSPACE for each in allocations if each.site.op in _LT}


def cuda_scratch(func: Any, args: Args, out: Any) -> Iterator[int]:
    """Bytes of each tensor of its own that this operation's kernel has; of operations of language models."""
    match op := func.overloadpacket.__name__:
        case "_softmax_backward_data":  # grad * output: softmax_backward_cuda_out in SoftMax.cu
            grad, output = args[:2]
            yield max(grad.nbytes, output.nbytes)
        case "_safe_softmax":  # where a row is masked: _safe_softmax in attention.cpp
            yield out.numel()
        case "sum":
            yield _summed(args[0], out)
        case "embedding_dense_backward":
            yield from _embedding(args[0], args[1], rows=args[2])
        case _ if op in _LT and torch.__version__ < _KEEPS_LT:
            yield _LT_WORKSPACE


def _summed(x: Tensor, out: Tensor) -> int:
    """Partial sums of a sum over the first dimensions, such as a bias's gradient: ``setReduceConfig`` and
    ``global_memory_size`` in aten/src/ATen/native/cuda/Reduce.cuh."""
    width = out.numel()
    if not x.is_contiguous() or x.shape[-1:].numel() != width or width == x.numel():
        return 0
    rows = x.numel() // width
    vector = next(size for size in (4, 2, 1) if width % size == 0)
    most = 512 // vector
    block_width = min(_power_below(width // vector, most), 32)
    block_height = min(_power_below(rows, most), most // block_width)
    block_width = min(_power_below(width // vector, most), most // block_height)
    if rows < min(block_height * 16, 256):
        return 0
    each = -(-rows // block_height)
    grid, target = -(-(width // vector) // block_width), _MULTIPROCESSORS * (_THREADS // (block_width * block_height))
    if each < 256 or grid > target:
        return 0
    blocks = max(min(-(-target // grid), -(-each // 16)), -(-each // 256))
    return 4 * width * blocks * block_width * vector if blocks > 1 else 0


def _power_below(value: int, most: int) -> int:
    return most if value >= most else 1 << max(value.bit_length() - 1, 0)


def _embedding(grad: Tensor, tokens: Tensor, rows: int) -> Iterator[int]:
    """Sorted tokens and partial sums: ``embedding_backward_cuda_kernel`` in EmbeddingBackwardKernel.cu."""
    count, width = tokens.numel(), grad.shape[-1]
    if count > _ROWS_OF_ONE_KERNEL:
        yield from (8 * count for _ in range(6))
        yield 4 * width * (count // 10 + min(count, rows))
