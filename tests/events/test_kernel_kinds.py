"""Kinds of kernels and operators, by name."""

import pytest

from cs336_tui.events.kernel_report import kernel_kind, operator_kind
from tests import made_kernels


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (made_kernels.GEMM, "matrix multiply"),
        (made_kernels.SMALL_GEMM, "matrix multiply"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matrix multiply"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(int)", "matrix multiply"),
        (made_kernels.SOFTMAX, "softmax"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>", "softmax"),
        (made_kernels.ADD, "elementwise"),
        (made_kernels.MEAN, "reduction"),
        (made_kernels.ADAM, "optimizer"),
        (made_kernels.FUSED_ADAM, "optimizer"),
        (made_kernels.GEMV, "matrix multiply"),
        (made_kernels.MASKED_FILL, "elementwise"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>(long)", "reduction"),
        (
            "void at::native::elementwise_kernel<128, 4, X<at::native::ReduceAdd>(int)::{lambda(int)#1}>(i)",
            "elementwise",
        ),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8, ReduceAdd>(int)", "elementwise"),
        ("void at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double)", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, X>(int)", "copy"),
        (
            "void at::native::elementwise_kernel<2, at::native::direct_copy_kernel_cuda(at::T&)::{lambda()#3}>(i)",
            "copy",
        ),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<4u>, 3>(int)", "copy"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "other"),
        ("triton_tem_fused_mm_3", "matrix multiply"),
        ("triton_poi_fused_add_mul_silu_1", "elementwise"),
        ("triton_red_fused_add_mean_pow_rsqrt_0", "reduction"),
        ("triton_per_fused__softmax_add_2", "softmax"),
        ("something_new", "other"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("multimem_all_reduce_kernel", "communication"),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_name_says(name: str, kind: str) -> None:
    assert kernel_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::bmm", "matrix multiply"),
        ("aten::linear", "other"),
        ("c10d::_allgather_base_", "communication"),
        ("_c10d_functional::wait_tensor", "communication"),
        ("aten::_softmax_backward_data", "softmax"),
        ("aten::mul_", "elementwise"),
        ("aten::copy_", "copy"),
        ("aten::sum", "reduction"),
        ("aten::_foreach_addcdiv_", "optimizer"),
        ("MmBackward0", "other"),
        ("graph_0_cpp_fused_mul_silu_4", "elementwise"),
        ("graph_0_cpp_fused_add_mean_pow_rsqrt_0", "reduction"),
        ("graph_1_cpp_fused__softmax_add_2", "softmax"),
    ],
)
def test_an_operator_is_of_the_kind_of_its_own_work(name: str, kind: str) -> None:
    assert operator_kind(name) == kind
