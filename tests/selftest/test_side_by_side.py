"""The cost of neighbours: ratios of made turns, and a real run of two lanes."""

import json
import random
from pathlib import Path

import click
import psutil
import pytest

from cs336_tui.cli.selftest import lanes_asked, run_lanes
from cs336_tui.config.spec import SpecError
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.events import Lane
from cs336_tui.export.subjects.selftest import SideBySide, lanes_sentence, lanes_table
from cs336_tui.export.writing.files import FORMATS
from cs336_tui.export.writing.formats import answer
from cs336_tui.runner.lanes import cores_here
from cs336_tui.selftest.programs import SelftestCell
from cs336_tui.selftest.side_by_side import LaneRound, LaneRun, command_of, costs_of
from cs336_tui.selftest.turns import Plan, Turn
from tests.samples import ENVIRONMENT

LANES = (Lane(lane=0, device="cuda:0"), Lane(lane=1, device="cuda:1"))
TINY = SelftestCell(size="tiny", device="cpu", context=8, batch=1)


def made(*slower: float, starts: int = 4, rounds: int = 3, noise: float = 0.002) -> LaneRun:
    """Turns in which a step beside others takes so many times as long, by lane; the machine drifts by up to 30 %."""
    rng = random.Random(1)

    def turn(mean_s: float) -> Turn:
        return Turn(tuple(rng.gauss(mean_s, 0.001 * mean_s) for _ in range(30)), (1.0,))

    def one_round() -> LaneRound:
        drift = rng.uniform(1, 1.3)
        found = {}
        for lane, factor in zip(LANES, slower, strict=True):
            own = 0.05 * (lane.lane + 1) * drift
            found[lane.lane] = turn(own), turn(own * factor * rng.gauss(1, noise))
        return found

    taken = tuple(tuple(one_round() for _ in range(rounds)) for _ in range(starts))
    return LaneRun(plan=Plan(starts=starts, rounds=rounds), turn_s=1.3, lanes=LANES, starts=taken)


def shown(run: LaneRun) -> SideBySide:
    work = SelftestCell(size="small", device="cuda")
    return SideBySide(work=work, environment=ENVIRONMENT, run=run, costs=costs_of(run))


def test_the_cost_of_each_lane_and_of_all_is_found_whatever_the_machine_drifts() -> None:
    first, second, together = costs_of(made(1.0, 1.21))
    found = [each.ratio for each in (first, second, together)]
    for ratio, truth in zip(found, (1.0, 1.21, 1.1), strict=True):
        assert ratio.low <= truth <= ratio.high
        assert ratio.high - ratio.low < 0.02
    assert (first.steps_alone, first.steps_beside, together.steps_alone) == (360, 360, 720)
    assert second.beside_s == pytest.approx(1.21 * (second.alone_s or 0), rel=0.01)


BESIDE = "beside the same cell in 1 other lane a step takes "


@pytest.mark.parametrize(
    ("run", "begin", "part"),
    [
        (made(1.1, 1.1), f"{BESIDE}10.", "2 lanes together make 1.8"),
        (made(1.0, 1.0), f"no cost of neighbours is to be seen: {BESIDE}between ", "2 lanes together make 2.0"),
        (made(1.1, 1.0, noise=0.2), f"whether neighbours cost time cannot be told: {BESIDE}", "a quieter machine"),
        (made(1.0, 1.0, starts=1, rounds=1), "the cost of neighbours cannot be told: too few rounds", "; on "),
    ],
)
def test_one_sentence_says_what_it_comes_to(run: LaneRun, begin: str, part: str) -> None:
    found = lanes_sentence(shown(run))
    assert found.startswith(begin)
    assert part in found
    assert "on NVIDIA H100 80GB HBM3 (cuda:0), Some CPU" in found


def test_every_format_has_the_lanes() -> None:
    table = lanes_table(shown(made(1.0, 1.1)))
    assert [record["lane"] for record in table.records] == [0, 1, None]
    assert table.records[1]["ratio"] == pytest.approx(1.1, rel=0.02)
    assert [row[:2] for row in table.rows] == [("0", "cuda:0"), ("1", "cuda:1"), ("all", "")]
    for format_ in FORMATS:
        assert "cuda:1" in answer([table], format_, "cs336-tui selftest --lanes")


def test_the_command_runs_a_cell_in_each_lane() -> None:
    words = command_of(SelftestCell(size="small", device="cuda"), LANES, Path("sessions"))
    assert words[words.index("--device") + 1] == "cuda:0,cuda:1"
    assert words[words.index("--lanes") + 1] == words[words.index("--repeats") + 1] == "2"


@pytest.mark.skipif(len(cores_here()) < 2, reason="two lanes need two cores")
def test_a_real_run_has_both_lanes_alone_and_beside_each_other_and_leaves_nothing() -> None:
    lanes = lanes_asked(2, "cpu", ENVIRONMENT)
    before = set(psutil.Process().children(recursive=True))
    found = run_lanes(TINY, lanes, Plan(starts=1, rounds=2, turn_s=0.5, steps=2), ENVIRONMENT)
    assert set(psutil.Process().children(recursive=True)) <= before
    (rounds,) = found.run.starts
    assert [sorted(each) for each in rounds] == [[0, 1]] * 2
    rows = json.loads(answer([lanes_table(found)], "json", "cs336-tui selftest --lanes"))["rows"]
    assert [row["lane"] for row in rows] == [0, 1, None]
    for number, row in enumerate(rows[:2]):
        sides = [[each[number][side].counted for each in rounds] for side in (0, 1)]
        assert [row["steps_alone"], row["steps_beside"]] == [sum(map(len, side)) for side in sides]
    assert any(row["steps_beside"] for row in rows), "a machine may be so busy that a lane had no time at all"


def test_a_lane_that_cannot_run_is_an_error_with_its_output() -> None:
    lanes = tuple(Lane(lane=n, device=f"cuda:{n + 90}") for n in (0, 1))
    with pytest.raises(click.ClickException, match=r"(?s)selftest: bench --lanes: ended with exit code 2; .*cuda:90"):
        run_lanes(SelftestCell(size="tiny", device="cuda"), lanes, Plan(starts=1, rounds=1), ENVIRONMENT)


def machine_with(*names: str) -> Environment:
    devices = tuple(DeviceInfo(name=name, label=f"a {name[:4]}", precisions=()) for name in ("cpu", *names))
    return Environment(host="h", os="o", cpu="c", cpu_count=2, memory_bytes=1, python="3", app="1", devices=devices)


@pytest.mark.parametrize("device", ["auto", "every", "cuda", "cuda:0,cuda:1"])
def test_each_gpu_is_a_lane_however_they_are_asked_for(device: str) -> None:
    lanes = lanes_asked("auto", device, machine_with("cuda:0", "cuda:1"))
    assert [lane.device for lane in lanes] == ["cuda:0", "cuda:1"]


def test_where_there_is_no_room_for_two_lanes_that_is_said() -> None:
    one_gpu = machine_with("cuda:0")
    with pytest.raises(SpecError, match="neighbours need two lanes, and cuda:0 has room for one"):
        lanes_asked("auto", "auto", one_gpu)
    with pytest.raises(SpecError, match="a lane needs a device of its own"):
        lanes_asked(2, "cuda:0", one_gpu)
    with pytest.raises(SpecError, match=r"lanes 10000: .* cores? here"):
        lanes_asked(10_000, "cpu", one_gpu)
    assert [lane.cores for lane in lanes_asked("auto", "cpu", one_gpu)] == list(cores_here())
