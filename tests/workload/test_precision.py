"""Setting precisions and reading them back."""

import warnings

import pytest
import torch

from cs336_tui.spec import PRECISIONS
from cs336_tui.workload.precision import (
    RECIPES,
    autocast_for,
    autocast_in_force,
    check_precision,
    set_matmul,
    tf32_allowed,
)


@pytest.fixture(autouse=True)
def _restore() -> object:
    yield
    set_matmul("highest")


def test_there_is_a_recipe_for_every_precision() -> None:
    assert tuple(RECIPES) == PRECISIONS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_setting_and_reading_back_agree_without_a_warning(precision: str) -> None:
    set_matmul("medium")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_matmul(RECIPES[precision].matmul)
        assert torch.get_float32_matmul_precision() == ("high" if precision == "tf32" else "highest")
        assert tf32_allowed() == (precision == "tf32")


def test_the_newer_switch_is_seen_and_overruled() -> None:
    """torch 2.9 and later have a second way to allow TF32; whatever it was left at, a cell sets its own."""
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has only the older switch")
    matmul.fp32_precision = "tf32"
    assert tf32_allowed()
    set_matmul("highest")
    assert not tf32_allowed()
    assert torch.get_float32_matmul_precision() == "highest"


def test_autocast_is_read_from_torch() -> None:
    for precision, dtype in (
        ("fp32", None),
        ("bf16", None),
        ("bf16-mixed", torch.bfloat16),
        ("fp16-mixed", torch.float16),
    ):
        assert autocast_in_force(autocast_for(RECIPES[precision], "cpu"), "cpu") == dtype


def test_autocast_that_torch_leaves_off_is_not_in_force() -> None:
    def refused() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=False)

    assert autocast_in_force(refused, "cpu") is None


def test_tf32_needs_cuda() -> None:
    check_precision("tf32", "cuda")
    check_precision("fp32", "cpu")
    with pytest.raises(ValueError, match="precision tf32: mps cannot do it, only cuda can"):
        check_precision("tf32", "mps")
