"""Setting precisions and reading them back."""

import warnings

import pytest
import torch

from cs336_tui.config.spec import PRECISIONS
from cs336_tui.worker.workload.precision import (
    RECIPES,
    autocast_for,
    check_capability,
    check_precision,
    effective_autocast,
    tf32_allowed,
    why_no_float8,
)


@pytest.fixture(autouse=True)
def _restore() -> object:
    yield
    torch.set_float32_matmul_precision("highest")


def test_there_is_a_recipe_for_every_precision() -> None:
    assert tuple(RECIPES) == PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_setting_and_reading_back_agree_without_a_warning(precision: str) -> None:
    torch.set_float32_matmul_precision("medium")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_float32_matmul_precision(RECIPES[precision].matmul)
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
        assert tf32_allowed() == (precision == "tf32")


def test_the_newer_switch_is_seen_and_overruled() -> None:
    """torch 2.9 and later have a second way to allow TF32; whatever it was left at, a cell sets its own."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has only the older switch")
    matmul.fp32_precision = "tf32"
    assert tf32_allowed()
    torch.set_float32_matmul_precision("highest")
    assert not tf32_allowed()
    assert torch.get_float32_matmul_precision() == "highest"


def test_autocast_is_read_from_torch() -> None:
    for precision, dtype in (
        ("fp32", None),
        ("bf16", None),
        ("bf16-mixed", torch.bfloat16),
        ("fp16-mixed", torch.float16),
        ("fp8-mixed", torch.bfloat16),
    ):
        assert effective_autocast(autocast_for(RECIPES[precision], "cpu"), "cpu") == dtype


def test_autocast_that_torch_leaves_off_is_not_in_force() -> None:
    def refused() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=False)

    assert effective_autocast(refused, "cpu") is None


@pytest.mark.parametrize("precision", ["tf32", "fp8-mixed"])
def test_tf32_and_float8_need_cuda(precision: str) -> None:
    check_precision(precision, "cuda")
    check_precision("fp32", "cpu")
    for device_type in ("cpu", "mps"):
        with pytest.raises(ValueError, match=f"precision {precision}: {device_type} cannot do it, only cuda can"):
            check_precision(precision, device_type)


def test_float8_needs_a_gpu_that_has_it() -> None:
    assert why_no_float8((8, 9), "NVIDIA L4") is None
    assert why_no_float8((10, 0), "NVIDIA B200") is None
    assert why_no_float8((8, 0), "NVIDIA A100") == (
        "precision fp8-mixed: needs compute capability 8.9 or later, NVIDIA A100 has 8.0"
    )


def test_float8_needs_nvidias_torch_and_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.version, "hip", "6.4")
        assert "this one is for ROCm 6.4" in str(why_no_float8((9, 4), "AMD Instinct MI300X"))
    monkeypatch.delattr(torch, "_scaled_mm")
    assert f"torch {torch.__version__} has no scaled float8 products" in str(why_no_float8((9, 0), "NVIDIA H100"))


def test_only_float8_asks_for_a_capability() -> None:
    check_capability("bf16-mixed", torch.device("cuda:0"))  # without a GPU here: asking would raise
    check_capability("fp8-mixed", torch.device("meta"))
