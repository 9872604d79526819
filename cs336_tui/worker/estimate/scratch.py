"""Memory that CUDA's kernels take while they run, beside the tensors that they return."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from cs336_tui.events.prediction import Allocation
from cs336_tui.worker.estimate.tracker import Args

_MULTIPROCESSORS, _THREADS = 132, 2048
"""Those of an H100; on others a sum takes a little more or less."""
_ROWS_OF_ONE_KERNEL = 3072
"""An embedding's gradient of more rows is sorted first."""

MULTIPLY = frozenset(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm"))
"""Products of cuBLAS, by the operation; the first one of a thread allocates its workspace."""
_LT = frozenset(("addmm", "_scaled_mm"))
"""Products of cuBLASLt: those with a bias, and in float8."""
_LT_WORKSPACE = 2**20
_KEEPS_LT, _SHARES_LT = (2, 9), (2, 12)
"""Releases of torch: the first that keeps cuBLASLt's workspace for a thread, and the first in which it is cuBLAS's."""


def threads_that_multiply(allocations: Iterable[Allocation]) -> list[bool]:
    """Of the two threads of a step, False for that of forward and True for that of backward."""
    return sorted({each.site.backward for each in allocations if each.site.op in MULTIPLY})


def lt_workspaces(allocations: Iterable[Allocation]) -> dict[bool, int]:
    """Bytes of a kept cuBLASLt workspace by the thread that multiplies with it: backward's or the other."""
    if not _KEEPS_LT <= torch.__version__ < _SHARES_LT:
        return {}
    return {each.site.backward: _LT_WORKSPACE for each in allocations if each.site.op in _LT}


def cuda_scratch(func: Any, args: Args, out: Any) -> Iterator[Iterable[int]]:
    """Bytes of each tensor of its own that this operation's kernel has, those together that live together; of
    operations of language models."""
    match op := func.overloadpacket.__name__:
        case "_softmax_backward_data":  # grad * output: softmax_backward_cuda_out in SoftMax.cu
            yield [max(args[0].nbytes, args[1].nbytes)]
        case "_safe_softmax":  # where a row is masked: _safe_softmax in attention.cpp
            yield [out.numel()]
        case "sum":  # partial sums of one over the first dimensions, such as a bias's gradient
            x, width = args[0], out.numel()
            if x.is_contiguous() and x.shape[-1:].numel() == width != x.numel():
                yield [_partial_sums(x.numel() // width, width)]
        case "embedding_dense_backward":
            yield from _embedding(args[0], args[1], rows=args[2])
        case "_scaled_dot_product_flash_attention_backward":  # mha_bwd in flash_api.cpp
            gradient, query, _, _, output = args[:5]
            length = -(-query.shape[-2] // 128) * 128
            rows = math.prod(query.shape[:-2]) * length
            yield [*_by_row(gradient, output), 4 * rows, 4 * rows * query.shape[-1]]
        case "_scaled_dot_product_efficient_attention_backward":
            yield from _efficient_attention(*args[:2])
        case "native_layer_norm_backward":
            yield norm_scratch(args[1].numel() // args[5].numel(), args[5], gradients=2)
        case _ if op in _LT and torch.__version__ < _KEEPS_LT:
            yield [_LT_WORKSPACE]


def _partial_sums(rows: int, width: int) -> int:
    """Of a sum over rows: ``setReduceConfig`` and ``global_memory_size`` in aten/src/ATen/native/cuda/Reduce.cuh."""
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


def _by_row(*heads: Tensor) -> Iterator[int]:
    """Copies of tensors (B, H, T, K) whose heads do not lie beside each other in a row."""
    return (each.nbytes for each in heads if not each.transpose(1, 2).is_contiguous())


def _efficient_attention(gradient: Tensor, query: Tensor) -> Iterator[Iterable[int]]:
    """Products of output and gradient, and gradients of queries in blocks, each with a lock: ``GradQTempStorage`` in
    mem_eff_attention/kernel_backward.h."""
    *before, length, width = query.shape
    side = 64 if query.dtype is torch.float32 or width <= 64 else 128
    heads, blocks = math.prod(before), -(-length // side) * -(-width // side)
    copies = list(_by_row(gradient))
    if query.dtype is torch.float32:
        yield [*copies, query.nbytes, 4 * heads * length, 4 * heads * length]
    yield [*copies, 4 * heads * length, heads * blocks * (4 * side**2 + 16)]


_MANY_ROWS, _PARTS = 64 * 1024, 2**20
_SUMS_BY_PARTS = (2, 8)
"""The release of torch whose kernel does so first, pytorch/pytorch#150773."""


def norm_scratch(rows: int, weight: Tensor, gradients: int) -> Iterator[int]:
    """Partial sums of so many gradients of a norm's weights over very many rows, and those of their sum:
    ``ConfigureAndLaunchGammaBetaBackwardKernel`` in layer_norm_kernel.cu."""
    width = weight.numel()
    if torch.__version__ >= _SUMS_BY_PARTS and rows > _MANY_ROWS and width // 32 < _MULTIPROCESSORS // 2:
        parts = min(-(-rows // 32), _PARTS // width)
        yield from [parts * width * weight.element_size()] * gradients
        yield _partial_sums(parts, width)


def _embedding(grad: Tensor, tokens: Tensor, rows: int) -> Iterator[Iterable[int]]:
    """Sorted tokens and partial sums: ``embedding_backward_cuda_kernel`` in EmbeddingBackwardKernel.cu."""
    count, width = tokens.numel(), grad.shape[-1]
    if count > _ROWS_OF_ONE_KERNEL:
        segments = min(count, rows)
        partial = count // 10 + segments
        yield [8 * count, 8 * count, 8 * count, 16 * count + _OF_SORT]
        yield [8 * count, 8 * count, 8 * segments, 8 * segments, 8 * partial, 4 * width * partial]


_OF_SORT = 38_400  # Histograms of a radix sort, about
