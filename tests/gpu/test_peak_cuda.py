"""Measured peaks on a real CUDA GPU, against its data sheet and each other."""

from __future__ import annotations

import pytest
import torch

from cs336_tui.gpus import gpu_of_label
from cs336_tui.measure.peak import measure_peak
from cs336_tui.measure.probe import probe
from cs336_tui.peaks import DevicePeak
from cs336_tui.spec import Precision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def measured(precision: Precision) -> DevicePeak:
    (device,) = (device for device in probe().devices if device.name == "cuda:0")
    if precision not in device.precisions:
        pytest.skip(f"this GPU cannot do {precision}")
    return measure_peak("cuda:0", precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16-mixed"])
def test_the_peak_is_below_the_data_sheets_and_in_its_neighbourhood(precision: Precision) -> None:
    found = measured(precision)
    gpu = gpu_of_label(found.device_name)
    stated = gpu.peak_flops(precision) if gpu else None
    print(f"{precision}: {found.matmul_flops / 1e12:.1f} TFLOP/s at {found.matmul_size}, stated {stated}, {found.note}")
    print(f"copy {found.copy_bytes_per_s / 1e9:.0f} GB/s, stated {gpu.bandwidth_gb_per_s if gpu else None}")
    if gpu is None or stated is None:
        pytest.skip(f"{found.device_name} is in no table")
    assert 0.4 * stated < found.matmul_flops < 1.1 * stated
    assert 0.5 * gpu.bandwidth_bytes_per_s < found.copy_bytes_per_s < 1.05 * gpu.bandwidth_bytes_per_s


def test_tf32_is_faster_than_fp32_and_both_say_what_was_in_force() -> None:
    tf32, fp32 = measured("tf32"), measured("fp32")
    assert (tf32.allow_tf32, fp32.allow_tf32) == (True, False)
    assert tf32.matmul_flops > 1.5 * fp32.matmul_flops


def test_memory_is_given_back() -> None:
    before = torch.cuda.memory_allocated()
    measured("fp32")
    assert torch.cuda.memory_allocated() == before
