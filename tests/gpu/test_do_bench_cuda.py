"""Timer do_bench and the flush of the L2 on a real CUDA GPU, beside `triton.testing.do_bench` itself."""

import statistics

import pytest
import torch

from benchmarks.do_bench import cells, rounds_of, why_not
from cs336_tui.worker.measure.timing import L2Flush, WindowTiming, clock_for, time_window
from tests.attention_cells import attention_spec
from tests.gpu.cells import assert_ok, gpu_spec, needs
from tests.worker.measure.cells import run

DEVICE = torch.device("cuda:0")


@pytest.mark.timed
@pytest.mark.parametrize("name", list(cells()) if torch.cuda.is_available() else [])
def test_medians_are_those_of_tritons_do_bench(name: str) -> None:
    if why := why_not():
        pytest.skip(why)
    spec = cells()[name]
    needs(spec.precision)
    found = rounds_of(spec, 5, 25.0, 100.0)
    for place, share in ((0, 0.05), (1, 0.08), (2, 0.08)):  # the median, then p20 and p80
        assert statistics.median(each.ours[place] / each.theirs[place] for each in found) == pytest.approx(1, abs=share)


class _Sum:
    """Reads a tensor that fits into the L2, once the GPU has work for longer than launching takes: with a flush and
    without, no launch is then in the time of a step."""

    phases = ("forward",)
    back_to_back = False

    def __init__(self, size: int) -> None:
        self._tensor = torch.ones(size // 4, device=DEVICE)
        self._out = torch.empty((), device=DEVICE)

    def prepare(self) -> None:
        torch.cuda._sleep(2_000_000)  # cycles: about a millisecond

    def clear(self) -> None: ...

    def run(self, _phase: str) -> None:
        torch.sum(self._tensor, 0, out=self._out)


@pytest.mark.real_numbers
def test_a_flushed_step_finds_nothing_in_the_l2() -> None:
    flush = L2Flush(DEVICE)
    assert flush.bytes >= max(2 * flush.l2_bytes, 256 * 2**20)
    if flush.l2_bytes < 32 * 2**20:
        pytest.skip("the L2 is so small that reading it takes no longer than beginning a kernel")
    step, clock = _Sum(flush.l2_bytes // 2), clock_for(DEVICE)
    medians = []
    for how in (WindowTiming(), WindowTiming(flush), WindowTiming(), WindowTiming(flush)):
        times = time_window(step, clock, 60, lambda _: True, how)  # type: ignore[arg-type]
        medians.append(statistics.median(time.total_s for time in times[10:]))
    assert min(medians[1::2]) > 1.05 * max(medians[::2])


def test_the_flush_is_in_no_peak_and_among_the_settings_in_force() -> None:
    # The first cell of a process finds no blocks that another has left; what it holds of a block unsplit differs.
    _, plain, flushed = (assert_ok(run(gpu_spec(flush_l2=each, pass_="train-step"))) for each in (False, False, True))
    assert plain.built.in_force.flushed is None
    assert (flushed.built.in_force.flushed or "").startswith(f"{L2Flush(DEVICE).bytes / 2**20:.4g} MiB zeroed")
    assert flushed.finished.peak_allocated_bytes == plain.finished.peak_allocated_bytes
    before, after = plain.finished.peak_reserved_bytes, flushed.finished.peak_reserved_bytes
    assert abs(after - before) <= 2 * 2**20


def test_what_attention_holds_is_without_the_flush() -> None:
    spec = {"device": "cuda:0", "pass_": "forward+backward", "warmup_steps": 1, "measure_steps": 2}
    plain, flushed = (
        assert_ok(run(attention_spec(**spec, timer=timer))).finished.before_backward_bytes
        for timer in ("step", "do_bench")
    )
    assert plain == flushed


@pytest.mark.timed
@pytest.mark.parametrize("pass_", ["forward", "backward", "train-step"])
def test_a_cell_by_time_takes_about_its_time(pass_) -> None:
    times = {"warmup_for": 0.1, "steps_for": 0.5, "warmup_steps": 10**5, "measure_steps": 10**5}
    report = assert_ok(run(gpu_spec(pass_=pass_, timer="do_bench", **times)))
    taken = sum(report.times_s())
    assert 0.2 < taken < 0.7, f"{len(report.times_s())} steps"
    (event,) = report.steps("measured")
    assert bool(event.phases_s) == (pass_ != "train-step")
