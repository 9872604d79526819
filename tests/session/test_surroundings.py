"""Summary of the samples taken while a cell measured."""

import pytest

from cs336_tui.events.environment import GpuProcess, GpuSample, HostSample
from cs336_tui.events.events import DeviceSampled, Stage
from cs336_tui.session.surroundings import Surroundings


def around(*samples: tuple[Stage | None, HostSample, GpuSample | None], ended_at: float | None = None) -> Surroundings:
    """Taken one a second."""
    found = Surroundings()
    for at, (stage, host, gpu) in enumerate(samples):
        found.take(DeviceSampled(at=at, host=host, gpu=gpu, why=None if gpu else "no GPU here"), stage)
    found.window.ended_at = ended_at
    return found


HOST = HostSample()


def test_only_the_window_counts_but_the_clocks_before_and_after_it_are_kept() -> None:
    gpus = [GpuSample(sm_clock_mhz=clock, clock_reasons=(str(clock),)) for clock in (1, 2, 30, 20, 25, 4)]
    stages: list[Stage | None] = ["building", "warm-up", "measuring", "measuring", "measuring", None]
    found = around(*((stage, HOST, gpu) for stage, gpu in zip(stages, gpus, strict=True)))
    assert (found.clock_before_mhz, found.lowest_clock_mhz, found.clock_after_mhz) == (2, 20, 25)
    assert found.samples == found.reasons_known == 3
    assert found.reasons == {"30": 1, "20": 1, "25": 1}
    found = around(("warm-up", HOST, GpuSample(sm_clock_mhz=1)), (None, HOST, GpuSample(sm_clock_mhz=2)))
    assert (found.samples, found.lowest_clock_mhz, found.clock_after_mhz) == (0, None, 2)


def test_what_was_not_told_is_not_counted_as_seen() -> None:
    silent = GpuSample(sm_clock_mhz=1)
    telling = GpuSample(clock_reasons=(), other_processes=(GpuProcess(pid=1),))
    found = around(("measuring", HOST, silent), ("measuring", HOST, telling), ("measuring", HOST, None))
    assert (found.samples, found.reasons_known, found.others_known) == (3, 1, 1)
    assert list(found.others) == [1]
    assert found.why == "no GPU here"
    assert (found.energy, found.energies, found.busy_cores, found.steal) == (None, [], None, None)


def test_host_shares_are_averaged_and_the_highest_load_is_kept() -> None:
    hosts = [
        HostSample(cpu=1.0, cpu_count=4, child_cores=2.0, steal=0.1, load_1m=3.0),
        HostSample(cpu=0.5, cpu_count=4, child_cores=None, steal=0.3, load_1m=5.0),
        HostSample(cpu=0.5, cpu_count=4, child_cores=3.0, steal=None, load_1m=4.0),
    ]
    found = around(*(("measuring", host, None) for host in hosts))
    assert (found.busy_cores, found.other_cores) == (pytest.approx(3.0), pytest.approx(1.0))
    assert (found.steal, found.load_1m, found.cpu_count) == (pytest.approx(0.2), 5.0, 4)


@pytest.mark.parametrize(
    ("joules", "ended_at", "energy"),
    [
        ([10, 20, 40, 80], None, (70, 3.0)),
        ([10, 20, 40, 80], 2.5, (30, 2.0)),
        ([10, 20, 40, 80], 2.0, (30, 2.0)),
        ([10, 20, 30, 40, 50, 60, 70], 2.5, (20, 2.0)),
        ([10, 20], 0.5, None),
        ([10], None, None),
        ([10, 5], None, None),
        ([None, 10, None, 30], None, (20, 2.0)),
    ],
)
def test_energy_is_between_the_first_and_the_last_reading_of_the_window(
    joules: list[float | None], ended_at: float | None, energy: tuple[float, float] | None
) -> None:
    gpus = [GpuSample(energy_j=energy_j) for energy_j in joules]
    assert around(*(("measuring", HOST, gpu) for gpu in gpus), ended_at=ended_at).energy == energy


def listing(pid: int, at: float, age_s: float | None) -> DeviceSampled:
    """A sample with one stranger in a list that was read `age_s` before it."""
    gpu = GpuSample(other_processes=(GpuProcess(pid=pid),), processes_age_s=age_s)
    return DeviceSampled(at=at, host=HOST, gpu=gpu)


def test_a_list_of_processes_counts_once_it_was_read_within_the_window() -> None:
    found = Surroundings()
    found.window.began_at = 10.0
    for pid, at, age_s in ((1, 10.2, 0.5), (2, 11.0, 1.0), (3, 12.0, 0.2), (4, 12.5, None)):
        found.take(listing(pid, at, age_s), "measuring")
    assert (found.samples, found.others_known, found.others_stale) == (4, 3, 1)
    assert list(found.others) == [2, 3, 4], "a log that does not tell the age is taken at its word"


@pytest.mark.parametrize(
    ("lists", "pids"),
    [
        ([(1, 20.1, 0.0)], [1]),
        ([(1, 20.1, 11.0), (2, 20.2, 0.0)], [2]),  # the first was under way at the end, with an older list
        ([(1, 20.1, 0.0), (2, 20.2, 0.0)], [1]),
        ([(1, 20.1, 11.0), (2, 20.2, 11.0), (3, 20.3, 0.0)], None),
        ([(1, 25.0, 0.0)], None),  # too late to tell of the window
        ([(1, 20.1, None)], None),
        ([], None),
    ],
)
@pytest.mark.parametrize("stage", ["finishing", None])
def test_after_the_window_the_first_fresh_list_counts(
    lists: list[tuple[int, float, float | None]], pids: list[int] | None, stage: Stage | None
) -> None:
    found = Surroundings()
    for each in lists:
        found.take(listing(*each), stage)
    assert found.others_after is None, "without a window there is nothing after it"
    found.window.began_at, found.window.ended_at = 10.0, 20.0
    assert (None if found.others_after is None else list(found.others_after)) == pids
    assert (found.others_known, found.others) == (0, {})
