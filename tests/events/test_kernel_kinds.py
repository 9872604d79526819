"""Kinds of kernels and operators, by name."""

import pytest

from cs336_tui.events.kernel_report import kernel_kind, operator_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel_32x32<float, float>(long)", "reduction"),
        (
            "void at::native::elementwise_kernel<128, 4, X<at::native::ReduceAdd>(int)::{lambda(int)#1}>(i)",
            "elementwise",
        ),
        ("void at::native::_scatter_gather_elementwise_kernel<128, 8, ReduceAdd>(int)", "elementwise"),
        ("void at::native::amp_update_scale_cuda_kernel(float*, int*, float const*, double)", "optimizer"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80", "other"),
        ("triton_tem_fused_mm_3", "matrix multiply"),
        ("triton_red_fused_add_mean_pow_rsqrt_0", "reduction"),
        ("triton_per_fused__softmax_add_2", "softmax"),
        ("something_new", "other"),
    ],
)
def test_a_kernel_is_of_the_kind_that_its_name_says(name: str, kind: str) -> None:
    """Of kinds that no kernel has in ``tests/data/kernel-names.tsv``."""
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
