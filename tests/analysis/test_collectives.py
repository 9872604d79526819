"""Bandwidths of collectives against cases worked out by hand."""

from __future__ import annotations

import pytest

from cs336_tui.analysis.collectives import algbw, busbw
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec


def message(**choices: object) -> CellSpec:
    (spec,) = sweep_from(**{"workload": "collective", "devices": ("cpu",)} | choices).cells()
    return spec


@pytest.mark.parametrize(
    ("operation", "ranks", "expected"),
    [
        # 12 MB in 2 ms are 6 GB/s.
        ("all-reduce", 2, 6e9),
        ("all-reduce", 4, 9e9),
        ("all-reduce", 6, 10e9),
        ("all-gather", 4, 4.5e9),
        ("reduce-scatter", 4, 4.5e9),
        ("all-to-all", 6, 5e9),
        ("broadcast", 6, 6e9),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, ranks: int, expected: float):
    spec = message(collectives=(operation,), ranks=(ranks,), sizes=("12MB",))
    assert algbw(spec, 2e-3) == pytest.approx(6e9)
    assert busbw(spec, 2e-3) == pytest.approx(expected)


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
    assert message(sizes=(size,), precisions=(precision,), ranks=(ranks,)).message_bytes == expected
