"""Bandwidths of collectives worked out by hand, and the measured bandwidths and speeds that plans are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.roofline import link_rates, speed_of
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.flops import algbw, busbw, step_flops
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.peaks import PeakKey
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, HEADER, a_spec, state_of


def message(operation: str, size: str, ranks: int, **choices: Any) -> CellSpec:
    fields = {"workload": "collective", "devices": ("cpu",), "sizes": (size,), "ranks": (ranks,)}
    (spec,) = sweep_from(**fields | {"collectives": (operation,)} | choices).cells()
    return spec


def events_of(cells: Iterable[tuple[CellSpec, float]]) -> Iterator[ev.Event]:
    """A session of cells with three measured steps of so many seconds each."""
    yield from (HEADER, ev.EnvironmentRead(at=0.0, environment=ENVIRONMENT))
    for number, (spec, time_s) in enumerate(cells):
        yield ev.CellsQueued(at=0.0, first=number, specs=(spec,))
        yield ev.CellStarted(at=0.0, cell=number)
        yield ev.StepsTimed(at=1.0, cell=number, kind="measured", first=0, times_s=(time_s,) * 3)
        yield ev.CellFinished(at=2.0, cell=number, status="ok")


def session(cells: Iterable[tuple[CellSpec, float]]) -> tuple[Result, ...]:
    return merge([("s", state_of(events_of(cells)))])


def test_a_link_is_as_fast_as_the_most_ranks_with_the_largest_size() -> None:
    found = link_rates(session([
        (message("all-reduce", "100MB", 4), 0.2),  # 0.5 GB/s x 2 x 3/4
        (message("all-reduce", "1MB", 4), 0.0001),
        (message("all-reduce", "100MB", 2), 0.01),
        (message("all-gather", "100MB", 2), 0.1),  # 1 GB/s x 1/2
        (message("broadcast", "100MB", 4), 0.1),
    ]))  # fmt: skip

    assert {name: rate.bytes_per_s for name, rate in found.items()} == pytest.approx(
        {"all-reduce": 0.75e9, "all-gather": 0.5e9}
    )
    assert found["all-reduce"].text == "gloo, 4 ranks, 100MB, fp32, Some CPU 9000"


def test_links_of_gpus_go_before_those_of_a_cpu() -> None:
    found = link_rates(session([
        (message("all-reduce", "1MB", 2, devices=("cuda:0",)), 0.001),
        (message("all-reduce", "100MB", 4), 0.2),
        (message("all-gather", "100MB", 4), 0.2),
    ]))  # fmt: skip

    assert list(found) == ["all-reduce"]
    assert found["all-reduce"].kind == "cuda"


def test_a_speed_is_what_a_cell_of_the_same_dimensions_achieved() -> None:
    spec, other = a_spec(), a_spec(d_model=1024, d_ff=4096, num_heads=16, size="custom")
    found = speed_of(session([(spec, 0.1), (other, 0.001)]), spec, "fp32", lambda _: made_peak())

    assert found.flops_per_s == pytest.approx(step_flops(spec) / 0.1)
    assert spec.title in found.text


def test_what_communicates_or_computes_in_another_format_tells_no_speed() -> None:
    spec = a_spec()
    cells = [(a_spec(ranks=2, parallel="ddp"), 0.1), (a_spec(precision="bf16-mixed"), 0.1)]

    assert speed_of(session(cells), spec, "fp32", lambda _: None) is None
    assert speed_of(session([(a_spec(ranks=2, parallel="none"), 0.1)]), spec, "fp32", lambda _: None) is not None
    assert speed_of(session([(spec, 0.1)]), spec, "fp32", lambda _: None, "cpu") is None


def test_without_cells_the_measured_peak_of_the_device_is_the_speed() -> None:
    asked: list[PeakKey] = []

    def peaks(key: PeakKey) -> Any:
        asked.append(key)
        return made_peak(60e12, precision="bf16")

    found = speed_of(session([(message("all-reduce", "1MB", 2, devices=("cuda:0",)), 0.1)]), a_spec(), "bf16", peaks)

    assert found.flops_per_s == pytest.approx(60e12)
    assert {key.precision for key in asked} == {"bf16", "bf16-mixed"}
    assert "measured peak in bf16" in found.text


@pytest.mark.parametrize(
    ("operation", "by_ranks"),
    [
        ("all-reduce", {2: 6e9, 4: 9e9, 6: 10e9}),  # 12 MB in 2 ms are 6 GB/s
        ("all-gather", {4: 4.5e9}),
        ("reduce-scatter", {4: 4.5e9}),
        ("all-to-all", {6: 5e9}),
        ("broadcast", {6: 6e9}),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, by_ranks: dict[int, float]):
    for ranks, expected in by_ranks.items():
        spec = message(operation, "12MB", ranks)
        assert (algbw(spec, 2e-3), busbw(spec, 2e-3)) == pytest.approx((6e9, expected))


@pytest.mark.parametrize(
    ("size", "precision", "ranks", "expected"),
    [
        ("10MB", "fp32", 2, 10_000_000),
        ("10MiB", "fp32", 4, 10_485_760),
        ("1MB", "fp32", 6, 999_984),  # 41,666 numbers of 4 bytes for each of 6
        ("1MB", "bf16", 6, 999_996),
        ("512KB", "bf16", 3, 511_998),
    ],
)
def test_every_rank_has_as_many_whole_numbers(size: str, precision: str, ranks: int, expected: int):
    assert message("all-reduce", size, ranks, precisions=(precision,)).message_bytes == expected
