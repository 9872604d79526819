"""Measured peaks of this machine's CPU, against products and copies timed by hand, and their reports."""

import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cs336_tui.config.spec import Precision, SpecError
from cs336_tui.events.peaks import DevicePeak
from cs336_tui.worker.measure import peak as module
from cs336_tui.worker.measure.peak import cpu_cache_bytes, measure_peak, median_interval
from tests.worker.measure.cells import multiplies_float8

MIB = 2**20


def quick(precision: Precision = "fp32", **changes: Any) -> DevicePeak:
    """A short measurement on one thread: on a busy machine two wait for one another."""
    options: dict[str, Any] = {"threads": 1, "budget_s": 0.4, "copy_bytes": 64 * MIB}
    return measure_peak("cpu", precision, **(options | changes))


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def by_hand(work: Callable[[], object]) -> float:
    """Seconds of a call in the fastest of some runs of calls, which others on the machine slow down least. A run is as
    long as a timing of the peak's, so that others come between as often."""
    start = time.perf_counter()
    work()
    calls = max(math.ceil(module._TIMING_S / (time.perf_counter() - start)), 1)
    taken = []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        taken.append((time.perf_counter() - start) / calls)
    return min(taken)


@pytest.mark.usefixtures("one_thread")
def test_it_takes_what_products_and_copies_take_when_timed_by_hand() -> None:
    """A machine that others use may be slow in one of the two, but not each time in the same one."""
    ratios = []
    for _ in range(10):
        found = quick()
        a, b = torch.randn(found.best.size, found.best.size), torch.randn(found.best.size, found.best.size)
        source = torch.ones(16 * MIB)
        target = torch.empty_like(source)
        assert found.copy.bytes == source.nbytes
        product = found.best.fastest_s / by_hand(partial(torch.matmul, a, b.T))
        copied = found.copy.fastest_s / by_hand(partial(target.copy_, source))
        ratios.append((product, copied))
        if all(any(0.65 < pair[side] < 1.35 for pair in ratios) for side in (0, 1)):
            return
    pytest.fail(f"product and copy over those by hand: {ratios}")


def test_every_size_is_reported_the_best_is_the_peak_and_what_was_in_force_is_read_back() -> None:
    found = quick()
    sizes = [trial.size for trial in found.matmul]
    assert sizes == list(module.SIZES["cpu"][: len(sizes)])
    assert found.best.flops_per_s == max(trial.flops_per_s for trial in found.matmul)
    for trial in (*found.matmul, found.copy):
        assert trial.timings >= 6
        assert 0 < trial.fastest_s <= trial.median_s
        assert trial.spread >= 0
    assert (found.device, found.precision, found.dtype) == ("cpu", "fp32", "float32")
    assert (found.matmul_precision, found.allow_tf32, found.threads) == ("highest", None, 1)
    assert found.torch == torch.__version__
    assert found.device_name.startswith("CPU")
    assert abs(found.at - time.time()) < 60


def test_cores_that_others_keep_busy_are_counted() -> None:
    """A process that spins; what else this machine does counts to it."""
    with subprocess.Popen(
        [sys.executable, "-c", "print('spinning', flush=True)\nwhile True: pass"], stdout=-1
    ) as spinning:
        try:
            assert spinning.stdout.readline()
            busy = quick().busy_cores
        finally:
            spinning.kill()
    assert busy
    assert 0.4 < busy < (os.cpu_count() or 1) + 0.1


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", "bfloat16"), ("bf16", "bfloat16"), ("fp16-mixed", "float16")]
)
def test_products_run_in_the_precisions_own_format(precision: Precision, dtype: str) -> None:
    assert quick(precision, budget_s=0.1).dtype == dtype


def test_sizes_that_would_take_too_long_are_left_out_and_said() -> None:
    began = time.perf_counter()
    found = quick("fp16-mixed", budget_s=0.05)
    assert len(found.matmul) < len(module.SIZES["cpu"])
    left_out = module.SIZES["cpu"][len(found.matmul)]
    assert found.note == f"sizes from {left_out} on were left out: too slow"
    assert time.perf_counter() - began < 5


def test_larger_sizes_that_do_not_fit_end_the_search_and_a_first_one_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module.SIZES, "cpu", (64, 2**24))  # the second would need a petabyte
    monkeypatch.setattr(module, "_least_products", lambda _layouts: -math.inf)  # however late it is
    found = quick()
    assert [trial.size for trial in found.matmul] == [64]
    assert found.note == f"sizes from {2**24} on did not fit into memory"
    monkeypatch.setitem(module.SIZES, "cpu", (2**24,))
    with pytest.raises(RuntimeError):
        quick()


def test_torchs_settings_are_put_back() -> None:
    before = (torch.get_num_threads(), torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")
    try:
        assert quick(budget_s=0.05).matmul_precision == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[1])
    assert torch.get_num_threads() == before[0]


def test_progress_is_told_and_may_stop_it() -> None:
    told: list[str] = []
    quick(progress=told.append, budget_s=0.05)
    assert told[:2] == ["copy", "matrix products of 256"]
    assert told[-2] == "copy again"
    assert told[-1].startswith("matrix products of ")
    assert told[-1].endswith(" again")

    class Stop(Exception):
        pass

    def stop(stage: str) -> None:
        raise Stop(stage)

    with pytest.raises(Stop, match="copy"):
        quick(progress=stop)


def test_what_a_device_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu cannot do it, only cuda can"):
        quick("tf32")
    with pytest.raises(SpecError, match="expected auto, cpu, mps, cuda"):
        measure_peak("tpu", "fp32")


@pytest.mark.parametrize("n", [6, 7, 25, 100])
def test_the_interval_holds_the_median_of_what_the_times_are_drawn_from(n: int) -> None:
    """It holds the median at least 94 of 100 times, for skewed times."""
    chance = random.Random(n)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([chance.expovariate(1.0) for _ in range(n)])
        hits += low <= 0.6931 <= high
    assert hits / 2000 >= 0.94
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0), "of few it is all of them"


def made_cache(folder: Path, cpu: int, index: int, level: int, size: str, shared: str) -> None:
    cache = folder / f"cpu{cpu}" / "cache" / f"index{index}"
    cache.mkdir(parents=True)
    for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
        (cache / name).write_text(f"{text}\n")


def test_last_level_caches_are_summed_each_once_and_the_copied_array_is_larger(tmp_path: Path) -> None:
    for cpu in range(4):
        made_cache(tmp_path, cpu, 0, 1, "32K", str(cpu))
        made_cache(tmp_path, cpu, 3, 3, "16384K", "0-1" if cpu < 2 else "2-3")
    assert cpu_cache_bytes(tmp_path) == 32 * MIB
    assert cpu_cache_bytes(tmp_path / "nowhere") == 0
    size, note = module._copied_bytes(torch.device("cpu"))
    assert size >= 256 * MIB or note
    assert size >= 4 * cpu_cache_bytes() or note


@pytest.mark.parametrize(
    ("free", "l2", "copied", "doubted"),
    [
        (8 * 10**9, 32 * MIB, 10**9, False),  # an RTX 4060's 8 GB: less than is wanted, but far more than its cache
        (10**9, 32 * MIB, 125 * 10**6, True),
        (80 * 10**9, 50 * MIB, 2**30, False),
        (8 * 10**9, 0, 10**9, True),  # whose cache is not known
    ],
)
def test_a_gpus_copied_array_is_held_against_its_own_cache(
    free: int, l2: int, copied: int, monkeypatch: pytest.MonkeyPatch, *, doubted: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, free))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(L2_cache_size=l2))
    size, note = module._copied_bytes(torch.device("cuda:0"))
    assert size == copied
    assert ("may lie in caches" in note) == doubted


@multiplies_float8
def test_the_peak_of_float8_is_measured_with_float8_products_where_there_are_any() -> None:
    with pytest.raises(ValueError, match="precision fp8-mixed: cpu cannot do it, only cuda can"):
        quick("fp8-mixed")
    (product,) = module._FLOAT8_LAYOUTS.values()
    a, b = (torch.randn(32, 32).to(torch.float8_e4m3fn) for _ in range(2))
    out = torch.empty(32, 32, dtype=torch.bfloat16)
    product(a, b, out)
    torch.testing.assert_close(out.float(), a.float() @ b.float().T, rtol=0.01, atol=0.05)
