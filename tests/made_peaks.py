"""Measured peaks, made up but plausible."""

from typing import Any

from cs336_tui.config.spec import Precision
from cs336_tui.events.peaks import CopyTrial, DevicePeak, MatmulTrial
from tests.samples import START


def made_peak(
    matmul_flops: float = 50e12, copy_bytes_per_s: float = 2.5e12, precision: Precision = "fp32", **changes: Any
) -> DevicePeak:
    """A peak of the sample machine's GPU with these rates at size 4096, and half of that at 1024."""
    trials = tuple(
        MatmulTrial(
            size=size, layout="forward", median_s=2 * size**3 / rate, fastest_s=1.9 * size**3 / rate, timings=12,
            spread=0.004,
        )
        for size, rate in ((1024, matmul_flops / 2), (4096, matmul_flops))
    )  # fmt: skip
    median_s = 2 * 2**30 / copy_bytes_per_s
    copy = CopyTrial(bytes=2**30, median_s=median_s, fastest_s=0.98 * median_s, timings=10, spread=0.003)
    fields: dict[str, Any] = {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3", "precision": precision}
    fields |= {"dtype": "float32" if precision in ("fp32", "tf32") else "bfloat16"}
    fields |= {"matmul_precision": "high" if precision == "tf32" else "highest", "allow_tf32": precision == "tf32"}
    fields |= {"threads": 32, "torch": "2.13.0", "at": START, "matmul": trials, "copy": copy}
    return DevicePeak(**(fields | changes))
