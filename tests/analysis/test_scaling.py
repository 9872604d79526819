"""Plans for many ranks, held against cases of the 2026 handout's feed-forward layer that were worked out by hand.
Bandwidths of collectives, and the measured bandwidths and speeds that plans are made of."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.roofline import link_rates, speed_of
from cs336_tui.analysis.scaling import (
    Device,
    Split,
    Strategy,
    Work,
    best_split,
    limits,
    plan,
    rank_row,
    strategy_time,
    work_of,
)
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.flops import algbw, busbw, step_flops
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.peaks import PeakKey
from tests.made_peaks import made_peak
from tests.samples import ENVIRONMENT, HEADER, a_spec, state_of

B, D, D_FF = 8000, 1000, 4000
FFN = Work(
    forward_flops=6 * B * D * D_FF,  # 3 products of 2 B D D_FF
    weight_bytes=6 * D * D_FF,  # 3 matrices of 2-byte numbers
    activation_bytes=2 * B * D,
    all_reduces=1,
)
SLOW_LINK = Device(flops_per_s=1e15, bytes_per_s=1e12)  # W / C = 1 / 1000
"""B W / C = 8 and D_FF W / C = 4: N - 1 may be 8 for DP and FSDP, 6 for TP's forward and 12 for its backward."""
SPLITS = list(itertools.starmap(Split, itertools.product(range(1, 80), repeat=2)))


def spec() -> CellSpec:
    dims = {"d_model": D, "d_ff": D_FF, "num_layers": 2, "num_heads": 10, "vocab_size": 50}
    return sweep_from(**dims, contexts=(500,), batches=(16,), devices=("cpu",), passes=("train-step",)).cells()[0]


@pytest.mark.parametrize(
    ("strategy", "split", "forward_bytes", "backward_bytes"),
    [
        ("dp", Split(4, 1), 0, 2 * 3 / 4 * 6 * D * D_FF),  # all-reduces 6 D D_FF bytes in the backward
        ("fsdp", Split(4, 1), 3 / 4 * 6 * D * D_FF, 2 * 3 / 4 * 6 * D * D_FF),  # gathers in both, scatters gradients
        ("tp", Split(1, 4), 2 * 3 / 4 * 2 * B * D, 2 * 3 / 4 * 2 * B * D),  # all-reduces 2 B D bytes in either
    ],
)
def test_a_step_computes_18_b_d_dff_over_n_and_communicates_by_its_strategy(
    strategy: Strategy, split: Split, forward_bytes: float, backward_bytes: float
) -> None:
    found = strategy_time(FFN, SLOW_LINK, strategy, split)

    assert found.forward.compute_s == pytest.approx(6 * B * D * D_FF / 4 / 1e15)
    assert found.backward.compute_s == pytest.approx(12 * B * D * D_FF / 4 / 1e15)
    assert found.forward.communication_s == pytest.approx(forward_bytes / 1e12)
    assert found.backward.communication_s == pytest.approx(backward_bytes / 1e12)


@pytest.mark.parametrize(("shared", "combined"), [(False, max), (True, sum)])
def test_both_gather_a_part_of_the_weights_and_reduce_a_part_of_the_batch(
    shared: bool, combined: Callable[[Iterable[float]], float]
) -> None:
    found = strategy_time(FFN, SLOW_LINK._replace(shared_link=shared), "fsdp+tp", Split(4, 2))

    weights = 3 / 4 * (6 * D * D_FF / 2) / 1e12
    activations = 2 * 1 / 2 * (2 * B / 4 * D) / 1e12
    assert found.forward.compute_s == pytest.approx(6 * B * D * D_FF / 8 / 1e15)
    assert found.forward.communication_s == pytest.approx(combined((weights, activations)))
    assert found.backward.communication_s == pytest.approx(combined((2 * weights, activations)))


def most(strategy: Strategy, *, shared: bool = False) -> tuple[int | None, int | None, int | None]:
    found = {limit.strategy: limit for limit in limits(FFN, SLOW_LINK._replace(shared_link=shared))}[strategy]
    return found.forward, found.backward, found.most


def test_limits_are_one_more_than_b_w_over_c_and_three_halves_of_dff_w_over_c() -> None:
    assert most("dp") == (None, 9, 9)
    assert most("fsdp") == (9, 9, 9)
    assert most("tp") == (7, 13, 7)
    assert most("fsdp+tp") == (9 * 7, 9 * 13, 63)


def test_on_a_shared_link_each_axis_has_about_half() -> None:
    """(N_FSDP - 1) / 8 + (N_TP - 1) / 6 <= 1. Real numbers: 8 x 6 / 4 (1 + 1/8 + 1/6)^2 = 20.02."""
    assert most("fsdp+tp", shared=True)[0] == 20
    assert limits(FFN, SLOW_LINK._replace(shared_link=True))[3].split == Split(5, 4)


MEASURED = Device(1e15, 1e12, {"all-reduce": 1e12, "all-gather": 0.5e12, "reduce-scatter": 0.25e12})


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("device", [*(Device(1e15, link) for link in (1e12, 3.3e12, 0.2e12, 1e10)), MEASURED])
def test_limits_are_where_times_cross(device: Device, shared: bool) -> None:
    device = device._replace(shared_link=shared)
    found = {limit.strategy: limit for limit in limits(FFN, device)}

    def bound(strategy: Strategy, split: Split, name: str) -> bool:
        time = getattr(strategy_time(FFN, device, strategy, split), name)
        return float(time.communication_s) > float(time.compute_s) * (1 + 1e-12)

    for name in ("forward", "backward"):
        data, tensor = getattr(found["fsdp"], name), getattr(found["tp"], name)
        assert [bound("fsdp", Split(n, 1), name) for n in (data, data + 1)] == [False, True]
        assert [bound("tp", Split(1, n), name) for n in (tensor, tensor + 1)] == [False, True]
        free = [split for split in SPLITS if not bound("fsdp+tp", split, name)]
        assert max(split.ranks for split in free) == getattr(found["fsdp+tp"], name)
    both = [split for split in free if not bound("fsdp+tp", split, "forward")]
    assert max(split.ranks for split in both) == found["fsdp+tp"].most
    assert found["fsdp+tp"].split in both


def test_limits_in_real_numbers_are_the_formulas() -> None:
    device = Device(1e15, 1.1e12)  # B W / C = 8.8, 3/2 D_FF W / C = 6.6
    apart, shared = (
        {each.strategy: each.real for each in limits(FFN, device._replace(shared_link=s))} for s in (False, True)
    )

    assert apart == pytest.approx({"dp": 9.8, "fsdp": 9.8, "tp": 7.6, "fsdp+tp": 9.8 * 7.6})
    # The handout's last question: 3 D_FF N_FSDP + 2 B N_TP <= 3 B D_FF W / C + 3 D_FF + 2 B, at best both terms alike.
    most = 3 * B * D_FF * 1.1e-3 + 3 * D_FF + 2 * B
    assert shared["fsdp+tp"] == pytest.approx(most**2 / (24 * B * D_FF))


def test_on_a_shared_link_an_axis_has_at_least_one_rank() -> None:
    """A small batch: N_FSDP would be K / (6 D_FF) < 1, so that TP is alone with 1 + 3/2 D_FF W / C."""
    small = FFN._replace(forward_flops=6 * 100 * D * D_FF, activation_bytes=2 * 100 * D)
    found = limits(small, SLOW_LINK._replace(shared_link=True))[3]

    assert found.real == pytest.approx(1 + 1.5 * D_FF / 1000)
    assert found.split == Split(1, 7)


def test_measured_operations_each_have_their_own_bandwidth() -> None:
    """By hand: FSDP's forward has N - 1 <= 8 x 0.5, its backward 8 x 2 / (1 / 0.5 + 1 / 0.25) = 2.67."""
    found = {name: strategy_time(FFN, MEASURED, name, Split(4, 1)) for name in ("dp", "fsdp")}

    share = 3 / 4 * 6 * D * D_FF
    assert found["dp"].backward.communication_s == pytest.approx(2 * share / 1e12)
    assert found["fsdp"].forward.communication_s == pytest.approx(share / 0.5e12)
    assert found["fsdp"].backward.communication_s == pytest.approx(share / 0.5e12 + share / 0.25e12)
    most = {limit.strategy: limit for limit in limits(FFN, MEASURED)}
    assert (most["dp"].most, most["fsdp"].forward, most["fsdp"].backward) == (9, 5, 3)


def test_best_split_is_the_shortest_step_of_all() -> None:
    splits = [Split(48 // m, m) for m in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)]
    every = [strategy_time(FFN, SLOW_LINK, "fsdp+tp", split).time_s for split in splits]
    assert best_split(FFN, SLOW_LINK, 48).time_s == min(every)
    assert rank_row(FFN, SLOW_LINK, 48).fastest == "fsdp+tp"
    alone = rank_row(FFN, SLOW_LINK, 1)
    assert {time.communication_s for time in alone.by_strategy.values()} == {0}, "one rank communicates nothing"
    assert alone.fastest == "dp"


def test_work_of_a_model_has_every_parameter_and_two_all_reduces_a_block() -> None:
    """By hand: a block has 4 D^2 + 3 D D_FF and two norms; embedding, head and a norm more; scores of all pairs."""
    block = 4 * D * D + 3 * D * D_FF
    head = 50 * D
    attention = 2 * 2 * B * 500 * D

    found = work_of(spec(), "model", 2)

    assert found.weight_bytes == 2 * (2 * (block + 2 * D) + 2 * head + D)
    assert found.forward_flops == 2 * B * (2 * block + head) + 2 * attention
    assert (found.activation_bytes, found.all_reduces) == (2 * B * D, 5)
    assert work_of(spec(), "ffn", 2) == FFN, "that of its three matrices"


def test_a_plan_has_a_row_for_each_number_of_ranks() -> None:
    found = plan(spec(), "ffn", 2, SLOW_LINK, (1, 3, 9))

    assert [row.ranks for row in found.rows] == [1, 3, 9]
    assert found.rows[2].by_strategy["fsdp"].backward.bound == "compute"
    assert found.limits == limits(FFN, SLOW_LINK)


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
