"""Verdicts on noise, and how a gradient scaler or a profile limits them."""

from __future__ import annotations

import msgspec
import numpy as np

from cs336_tui.analysis.verdicts import judge
from cs336_tui.events.environment import HostSample
from cs336_tui.events.events import DeviceSampled, Event
from tests.analysis.judging import FLAT, ON_CPU, a_cell, evidence, judged


def test_noise_that_leaves_the_mean_loose_is_not_steady() -> None:
    noisy = list(0.1 * np.random.default_rng(5).lognormal(0.0, 0.5, 30))
    found = judged(a_cell(noisy))
    assert "too-few-steps" in found.names
    assert "steady" not in found.names
    assert "95 % CI ± " in found.sentence
    assert "steady" in [check.name for check in found.not_observable] or "outliers" in found.names


def test_a_wide_interval_of_a_series_that_goes_somewhere_asks_for_no_more_steps() -> None:
    falling = [0.1 * (1.5 - 0.5 * step / 59) for step in range(60)]
    found = judged(a_cell(falling))
    assert found.interval is not None
    assert found.interval.half_share > 0.05
    assert "too-few-steps" not in found.names


def test_a_gradient_scaler_hides_whether_the_host_bounds_the_step() -> None:
    spec = {"device": "cuda:0", "pass_": "train-step", "precision": "fp16-mixed"}
    cell = a_cell([0.010] * 20, spec=spec, host_share=0.95)
    assert evidence(judged(cell), "launch-bound")[0] is True
    assert cell.in_force is not None
    cell.in_force = msgspec.structs.replace(cell.in_force, grad_scaler=True)
    holds, why = evidence(judged(cell), "launch-bound")
    assert holds is None
    assert "gradient scaler" in why


def test_the_idle_share_of_a_profile_stands_beside_the_hosts() -> None:
    cell = a_cell(FLAT, spec={"device": "cuda:0"}, host_share=0.95)
    assert "idle share is known once its kernels are profiled" in evidence(judged(cell), "launch-bound")[1]
    profiled = judge(cell, idle=0.37)
    assert profiled is not None
    assert "profiled, the GPU was idle for 37 % of a step" in evidence(profiled, "launch-bound")[1]


def after(cores: float) -> Event:
    """A sample after the window, of a host whose others used so many cores since the one before."""
    host = HostSample(cpu=(cores + 1.0) / 4, cpu_count=4, child_cores=1.0)
    return DeviceSampled(at=1e9, host=host)


def test_a_short_cell_is_judged_by_the_sample_after_it() -> None:
    quiet, crowded = a_cell(FLAT, spec=ON_CPU), a_cell(FLAT, spec=ON_CPU)
    for cell, cores in ((quiet, 0.1), (crowded, 1.5)):
        cell.take_sample(after(cores), None)
    assert evidence(judged(quiet), "contended")[0] is False
    holds, why = evidence(judged(crowded), "contended")
    assert holds is None
    assert why.startswith("other processes used 1.5 cores around the time of measuring, into which no sample fell")


def test_what_the_cell_remarked_stands_beside_its_number() -> None:
    cell = a_cell(FLAT)
    assert cell.finished is not None
    cell.finished = msgspec.structs.replace(cell.finished, remarks=("stopped after 60 steps",))
    assert judged(cell).notes[0] == "stopped after 60 steps"
