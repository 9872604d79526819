"""Measures a device's peak rates: FLOP/s of large matrix products, bytes per second of a copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, time
from typing import Any

import psutil
import torch

from cs336_tui.config.spec import Precision, canonical_device
from cs336_tui.events.peaks import CopyTrial, DevicePeak, MatmulTrial
from cs336_tui.worker.measure.failures import is_out_of_memory
from cs336_tui.worker.measure.probe import device_label, nvml_uuid
from cs336_tui.worker.measure.settings import no_garbage_collection, restored_settings
from cs336_tui.worker.measure.timing import clock_for
from cs336_tui.worker.workload.precision import (
    FORMAT,
    RECIPES,
    configure_device,
    dtype_name,
    effective_matmul,
    tf32_allowed,
)

SIZES: Mapping[str, tuple[int, ...]] = {
    "cpu": (256, 512, 1024, 2048, 4096),
    "mps": (512, 1024, 2048, 4096, 8192),
    "cuda": (1024, 2048, 4096, 8192, 16384),
}
BUDGET_S = 3.0  # Time limit of a measurement, beside the minimum that each trial needs
_COPY_SHARE = 0.25  # Share of the budget for copies
_AGAIN_SHARE = 0.15  # Share of the budget for the second measurement of the best size
_LEAST_COPIED = {"cpu": 2**28, "mps": 2**29, "cuda": 2**30}
_TIMES_CACHES = 4  # Multiple of the last-level caches that a copied array must exceed (STREAM's rule, McCalpin 1995)
_TIMING_S = 0.01  # Duration of the calls of one timing, beside which a synchronisation is negligible
_WARMUP_S = 0.05
_LEAST_TIMINGS = 6  # The fewest timings whose range holds the median with 95 % confidence
_SETTLED = 0.01  # Relative half-width of the median's interval at which timing stops
_HOPELESS = 2.0  # A layout slower than the best by this factor is not tried at larger sizes


@lru_cache(maxsize=1)
def _one_on(device: torch.device) -> torch.Tensor:
    return torch.ones((), device=device)


Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]  # The first two matrices into the third
_LAYOUTS: Mapping[str, Product] = {
    "forward": lambda a, b, out: torch.mm(a, b.T, out=out),
    "input gradient": lambda a, b, out: torch.mm(a, b, out=out),
    "weight gradient": lambda a, b, out: torch.mm(a.T, b, out=out),
}
"""The three products of a linear layer. Their speeds differ: of torch 2.13's float16 on a CPU by 18 times."""
_FLOAT8_LAYOUTS: Mapping[str, Product] = {  # The only layout in hardware; a layer's others are made of it and of copies
    "forward": lambda a, b, out: torch._scaled_mm(
        a, b.T, scale_a=_one_on(a.device), scale_b=_one_on(b.device), out_dtype=out.dtype, use_fast_accum=True, out=out
    )
}


def _spread(times_s: Sequence[float]) -> float:
    """Relative half-width of the median's 95 % interval."""
    low, high = median_interval(times_s)
    return (high - low) / 2 / median(times_s)


def median_interval(times_s: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median by order statistics, ranks (n ± 1.96 √n) / 2 (Conover 1999, section 3.2). Of
    fewer than 6 values it is the lowest and the highest, whose confidence is lower."""
    ordered, n = sorted(times_s), len(times_s)
    half = 1.96 * math.sqrt(n) / 2
    low, high = math.floor(n / 2 - half), math.ceil(n / 2 + 1 + half)
    return ordered[max(low, 1) - 1], ordered[min(high, n) - 1]


def measure_peak(
    device: str,
    precision: Precision,
    threads: int | None = None,
    progress: Callable[[str], object] = lambda _stage: None,
    *,
    budget_s: float = BUDGET_S,
    copy_bytes: int | None = None,
) -> DevicePeak:
    """Measure the peak of a device (``cpu``, ``mps``, ``cuda:N``) in the precision that is really in force. `progress`
    is called with each trial's name and may raise to stop. The copied array has `copy_bytes`, by default more than the
    caches. Raises ValueError for a precision that the device lacks, and torch's errors."""
    with restored_settings(), no_garbage_collection(), torch.inference_mode():
        place = configure_device(torch.device(canonical_device(device)), precision, threads)
        if place.type == "cuda" and _dtype(precision) == torch.float32 and tf32_allowed() != (precision == "tf32"):
            why = "the environment variable NVIDIA_TF32_OVERRIDE forbids it; unset it"
            raise ValueError(f"precision {precision}: {why}")
        before = _times_spent()
        largest, why_small = _copied_bytes(place)
        progress("copy")
        copies = [_copy_trial(place, copy_bytes or largest, _COPY_SHARE / 2 * budget_s)]
        share = 1 - _COPY_SHARE - _AGAIN_SHARE
        trials, note = _matmul_trials(place, _dtype(precision), share * budget_s, progress)
        # A shared machine may have been slow the first time, and a value that cannot be repeated is no peak.
        progress("copy again")
        copies.append(_copy_trial(place, copy_bytes or largest, _COPY_SHARE / 2 * budget_s))
        best = max(trials, key=lambda trial: trial.flops_per_s)
        progress(f"matrix products of {best.size} again")
        layouts = {best.layout: _layouts(_dtype(precision))[best.layout]}
        again = _matmul_trial(place, _dtype(precision), best.size, layouts, _AGAIN_SHARE * budget_s)
        disagreement = max(_apart(best.median_s, again.median_s), _apart(*(copy.median_s for copy in copies)))
        # Of others, time stolen by a hypervisor included.
        wall_s, all_s, own_s = (now - then for now, then in zip(_times_spent(), before, strict=True))
        index = torch.cuda.current_device() if place.type == "cuda" and place.index is None else place.index
        return DevicePeak(
            device=str(place),
            device_name=device_label(place),
            precision=precision,
            dtype=dtype_name(_dtype(precision)),
            matmul_precision=effective_matmul(place.type),
            allow_tf32=tf32_allowed() if place.type == "cuda" else None,
            threads=torch.get_num_threads(),
            torch=str(torch.__version__),
            at=time(),
            matmul=tuple(min(trial, again, key=attrgetter("median_s")) if trial == best else trial for trial in trials),
            copy=max(copies, key=lambda trial: trial.bytes_per_s),
            busy_cores=max(all_s - own_s, 0.0) / wall_s if place.type == "cpu" else None,
            note="; ".join(filter(None, (note, "" if copy_bytes else why_small))),
            disagreement=disagreement,
            uuid=nvml_uuid(index, torch.cuda.get_device_properties(index)) if place.type == "cuda" else None,
        )


def _dtype(precision: Precision) -> torch.dtype:
    """The dtype of the matrix products."""
    recipe = RECIPES[precision]
    return FORMAT if recipe.float8 else recipe.autocast or recipe.parameters


def _layouts(dtype: torch.dtype) -> Mapping[str, Product]:
    return _FLOAT8_LAYOUTS if dtype == FORMAT else _LAYOUTS


def _matmul_trials(
    device: torch.device, dtype: torch.dtype, budget_s: float, progress: Callable[[str], object]
) -> tuple[tuple[MatmulTrial, ...], str]:
    """One trial for each size, and a note if larger sizes were left out."""
    ends_at = perf_counter() + budget_s
    sizes, layouts = SIZES[device.type], dict(_layouts(dtype))
    trials: list[MatmulTrial] = []
    for place, size in enumerate(sizes):
        left_s = ends_at - perf_counter()
        if trials and _least_products(layouts) * trials[-1].median_s * (size / trials[-1].size) ** 3 > left_s:
            return tuple(trials), f"sizes from {size} on were left out: too slow"
        progress(f"matrix products of {size}")
        try:
            trials.append(_matmul_trial(device, dtype, size, layouts, left_s / (len(sizes) - place)))
        except Exception as error:
            if not trials or not is_out_of_memory(error):
                raise
            return tuple(trials), f"sizes from {size} on did not fit into memory"
    return tuple(trials), ""


def _least_products(layouts: Mapping[str, Product]) -> int:
    """Minimum number of products in a trial: two warm ones of each layout, and the timings of the fastest."""
    return 2 * len(layouts) + _LEAST_TIMINGS


def _matmul_trial(
    device: torch.device, dtype: torch.dtype, size: int, layouts: dict[str, Product], budget_s: float
) -> MatmulTrial:
    """Time the fastest layout at this size; removes hopeless ones from `layouts`."""
    random = torch.Generator(device).manual_seed(0)
    drawn = torch.bfloat16 if dtype == FORMAT else dtype
    a, b = (torch.randn(size, size, generator=random, device=device, dtype=drawn).to(dtype) for _ in range(2))
    out = torch.empty_like(a, dtype=drawn)
    synchronize = clock_for(device).synchronize

    def work(layout: str) -> Callable[[], object]:
        return lambda: layouts[layout](a, b, out)

    tried_s = {layout: _warm(work(layout), synchronize, _WARMUP_S / len(layouts)) for layout in layouts}
    best = min(tried_s, key=tried_s.__getitem__)
    timings = _time(work(best), synchronize, tried_s[best], budget_s)
    for layout, taken_s in tried_s.items():
        if taken_s > _HOPELESS * tried_s[best]:
            del layouts[layout]
    return MatmulTrial(size=size, layout=best, **timings)


def _apart(one_s: float, other_s: float) -> float:
    """Relative difference of the slower rate from the faster."""
    return 1 - min(one_s, other_s) / max(one_s, other_s)


def _copy_trial(device: torch.device, size: int, budget_s: float) -> CopyTrial:
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    synchronize = clock_for(device).synchronize

    def work() -> object:
        return target.copy_(source)

    timings = _time(work, synchronize, _warm(work, synchronize, _WARMUP_S), budget_s)
    return CopyTrial(bytes=source.nbytes, **timings)


def _warm(work: Callable[[], object], synchronize: Callable[[], None], least_s: float) -> float:
    """Call at least twice and for `least_s`; the seconds of the fastest call."""
    synchronize()
    began, calls, fastest_s = perf_counter(), 0, math.inf
    while calls < 2 or perf_counter() - began < least_s:
        start = perf_counter()
        work()
        synchronize()
        fastest_s = min(fastest_s, perf_counter() - start)
        calls += 1
    return fastest_s


def _time(work: Callable[[], object], synchronize: Callable[[], None], one_s: float, budget_s: float) -> dict[str, Any]:
    """Time calls of about `one_s` until the noise has settled or the budget is spent: fields of a trial."""
    calls = max(math.ceil(_TIMING_S / one_s), 1)
    ends_at = perf_counter() + budget_s
    times: list[float] = []
    while len(times) < _LEAST_TIMINGS or (_spread(times) > _SETTLED and perf_counter() < ends_at):
        synchronize()
        start = perf_counter()
        for _ in range(calls):
            work()
        synchronize()
        times.append((perf_counter() - start) / calls)
    return {"median_s": median(times), "fastest_s": min(times), "timings": len(times), "spread": _spread(times)}


def _copied_bytes(device: torch.device) -> tuple[int, str]:
    """Bytes of the array to copy, and a note if memory is too small for one that exceeds the caches."""
    caches = 0  # Unknown, as on Metal
    if device.type == "cuda":
        caches = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
    elif device.type == "cpu":
        caches = cpu_cache_bytes()
    outside = _TIMES_CACHES * caches
    wanted = max(_LEAST_COPIED[device.type], outside)
    size = min(wanted, _free_bytes(device) // 8)
    return size, "" if size >= (outside or wanted) else "little memory is free: the copied array may lie in caches"


def _times_spent() -> tuple[float, float, float]:
    """Seconds of the clock, of all cores' busy time, and of this process's CPU time."""
    spent = psutil.cpu_times()._asdict()
    # Linux also counts the time of guests as user time.
    idle = ("idle", "iowait", "guest", "guest_nice")
    return perf_counter(), sum(time_s for name, time_s in spent.items() if name not in idle), process_time()


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return psutil.virtual_memory().available


def cpu_cache_bytes(folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """Bytes of all last-level caches together, from Linux; 0 if unknown."""
    levels: dict[int, dict[str, int]] = {}
    for cache in folder.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level, size = int((cache / "level").read_text()), (cache / "size").read_text().strip()
            shared = (cache / "shared_cpu_list").read_text()
            levels.setdefault(level, {})[shared] = int(size.removesuffix("K")) * 1024
        except (OSError, ValueError):
            continue
    return sum(levels[max(levels)].values()) if levels else 0
