"""Kinds of kernels and of host operators, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cs336_tui.events.kernel_report import KernelKind

COMMUNICATION = r"nccl|rccl|nvshmem|multimem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce"
"""Kernels that move data between GPUs."""
# In this order: a copy is an elementwise kernel by its template, the sum of a split matrix product a reduction.
_RULES: tuple[tuple[KernelKind, str], ...] = (
    # torch.compile's own, named by template and by what they fuse.
    ("matrix multiply", r"^triton_tem_"),
    ("softmax", r"^triton_(red|per)_.*softmax"),
    ("reduction", r"^triton_(red|per|split_scan)_"),
    ("elementwise", r"^triton_(poi|for)_"),
    ("copy", r"^(Memcpy|Memset|\[CUDA mem(cpy|set))|reshape_and_cache|(?<![a-z])_?copy_page"),
    ("other", r"fmha|flash|attention"),  # matrix products and softmax in one
    ("communication", COMMUNICATION),
    ("other", r"fprop|dgrad|wgrad|winograd|scudnn|conv\dd|convolv"),  # convolutions
    ("matrix multiply", r"gemm|gemv|cutlass|xmma|cublas|nvjet|wgmma|matmul|splitKreduce|dot_kernel|^bmm_"),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor_apply|FusedAdam|fused_adam|(?<![a-z])amp_(non_finite|update)"),
    ("elementwise", r"masked_(fill|scatter|scale)|scatter_(gather|fill)"),
    ("copy", r"_copy_kernel|copy_kernel_cuda|FillFunctor|CatArrayBatchedCopy|fill_kernel|nchwToNhwc|nhwcToNchw"),
    ("elementwise", r"^(void )?at::native::(vectorized|unrolled|index)?_?elementwise_kernel"),
    ("reduction", r"reduce|DeviceScan|_scan_|_norm_|batch_?norm|layer_?norm|group_?norm|\bbn_[fb]w_"),
    ("reduction", r"RowwiseMoments|GammaBeta|InternalGradients"),  # parts of normalisations
    ("elementwise", r"elementwise|vectorized|unrolled|index|gather|scatter|embedding|dropout|triu_tril|distribution"),
)
_KERNELS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)
_FUSES_ATTENTION = re.compile(r"fmha|flash|(?<!scaled_dot_product_)attention", re.IGNORECASE)
_DTYPES = re.compile(r"\bcutlass::\w+_t\b")  # A library's names of numbers, which others use too

_OPERATORS: Mapping[KernelKind, str] = {
    "matrix multiply": "mm bmm addmm addbmm baddbmm mv addmv dot vdot addr outer _addmm_activation mkldnn_linear "
    "_mkl_linear _int_mm _scaled_mm",
    "softmax": "softmax log_softmax _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "reduction": "sum mean nansum prod var std norm linalg_vector_norm amax amin max min argmax argmin any all "
    "logsumexp cumsum nll_loss_forward nll_loss_backward",
    "elementwise": "add sub rsub mul div neg abs exp log sqrt rsqrt pow square reciprocal sigmoid tanh silu "
    "silu_backward gelu gelu_backward sin cos addcmul addcdiv lerp where masked_fill clamp maximum minimum eq ne gt ge "
    "lt le isfinite isinf isnan logical_and logical_or bitwise_not index index_select index_put gather scatter "
    "scatter_add embedding_dense_backward tril triu",
    "copy": "copy fill zero cat clone contiguous arange constant_pad_nd",
}
_KIND_OF: Mapping[str, KernelKind] = {name: kind for kind, names in _OPERATORS.items() for name in names.split()}
_COMPILED_LOOP = re.compile(r"(^|_)cpp_fused_")  # torch.compile's own loops on a CPU, named by what they fuse
_REDUCES = re.compile(r"_(softmax|mean|sum|amax|var|norm)(_|$)")
_COMMUNICATES = ("c10d::", "_c10d_functional::")
_LIST_OF_TENSORS = ("_foreach_", "_fused_adam", "_amp_foreach_")


def kernel_kind(name: str) -> KernelKind:
    """Kind of a GPU's kernel or memory operation. Kernels that fuse attention are ``other``."""
    said = _DTYPES.sub("", name)
    return next((kind for kind, pattern in _KERNELS if pattern.search(said)), "other")


def fuses_attention(name: str) -> bool:
    """True of a kernel or operator of kind ``other`` with attention's products and softmax in one."""
    return bool(_FUSES_ATTENTION.search(name))


def computes(name: str) -> bool:
    """True of an operator of torch on the host, and of a loop that torch.compile made."""
    return name.startswith("aten::") or _COMPILED_LOOP.search(name) is not None


def operator_kind(name: str) -> KernelKind:
    """Kind of a host operator, by its own computation. Views, allocations, autograd's nodes and those that only
    dispatch (``aten::matmul``, whose work is in ``aten::mm``) are ``other``. A for-loop optimizer is elementwise."""
    if name.startswith(_COMMUNICATES):
        return "communication"
    bare = name.removeprefix("aten::")
    if _COMPILED_LOOP.search(bare):
        if "softmax" in bare:
            return "softmax"
        return "reduction" if _REDUCES.search(bare) else "elementwise"
    if bare.startswith(_LIST_OF_TENSORS):
        return "optimizer"
    return _KIND_OF.get(bare, _KIND_OF.get(bare.removesuffix("_"), "other"))
