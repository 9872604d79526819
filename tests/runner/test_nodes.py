"""Cells whose ranks are spread over nodes: two processes of this machine in place of two nodes."""

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from unittest import mock

import msgspec
import psutil
import pytest

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.reports import RankMemoryReport
from cs336_tui.runner import node_process
from cs336_tui.runner import nodes as module
from cs336_tui.runner.launcher import STOPPED_BY_USER, Launcher, StartError
from cs336_tui.runner.node_process import Node, NodeProcess, Word, Work
from cs336_tui.runner.nodes import Nodes, Spread, split
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.session.states import CellState
from cs336_tui.worker.ranks import Place
from tests.runner.running import Running
from tests.samples import ENVIRONMENT
from tests.watching import PATIENCE_S, endless_spec, small_spec, wait_gone

CODE = Path(__file__).parent / "ranks"
FOUR_GPUS = msgspec.structs.replace(
    ENVIRONMENT, devices=tuple(DeviceInfo(name=f"cuda:{n}", label="GPU", precisions=()) for n in range(4))
)


def over_nodes(parallel: str, **changes: object) -> CellSpec:
    given = {"ranks": 4, "num_layers": 2, "pass_": "train-step", "model_path": (str(CODE),)}
    return small_spec(**given | changes, parallel=parallel)


def command(node: Node) -> Sequence[str]:
    """The process of a node, which its command line names."""
    code = "from cs336_tui.cli.main import main; main(['run-ranks', '--device-interval', '0.2'])"
    return [sys.executable, "-c", code, node.name]


def children_named(word: str) -> list[psutil.Process]:
    """Processes that this one started and whose command line has this word; those that have ended have none."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.Error):
            if word in each.cmdline():
                found.append(each)
    return found


class OnNodes(Running):
    """A bench whose machine has two nodes of two cores each."""

    def __init__(self, folder: Path) -> None:
        nodes = [Node("n1", "127.0.0.1"), Node("n2", "localhost")]
        super().__init__(folder, nodes=Nodes(nodes, command, cores=2))

    def begin_endless(self, spec: CellSpec | None = None) -> None:
        """Run a cell on another thread; returns once it has measured steps."""
        number = len(self.cells)
        self.begin(msgspec.structs.replace(spec or over_nodes("ddp"), measure_steps=10_000_000))
        self.watch.until(lambda state: number in state.cells and len(state.cells[number].step_times_s) > 1)

    def of_node(self, name: str) -> psutil.Process:
        (found,) = children_named(name)
        return found

    def ranks_of(self, name: str) -> list[psutil.Process]:
        """The processes of the node's ranks, first to last."""
        found = {pid: None for event in self.watch.of(ev.DeviceSampled) for pid in [r.pid for r in event.host.ranks]}
        below = {each.pid for each in self.of_node(name).children(recursive=True)}
        return [psutil.Process(pid) for pid in found if pid in below]

    @property
    def last(self) -> CellState:
        return self.cells[-1]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnNodes]:
    # A node that is killed leaves its temporary files.
    with mock.patch.dict(os.environ, {"TMPDIR": str(tmp_path_factory.mktemp("t"))}):
        made = OnNodes(tmp_path_factory.mktemp("nodes"))
        yield made
        made.bench.close()
    assert children_named("n1") + children_named("n2") == []


def test_ranks_are_spread_over_as_few_nodes_as_have_room() -> None:
    assert split(4, 2, 8) == [2, 2]
    assert split(6, 4, 8) == [3, 3]
    assert split(5, 4, 8) == [3, 2]
    assert split(5, 2, 2) == [3, 2]  # on a CPU they share cores
    nodes = Nodes([Node("a", ""), Node("b", "")], command, cores=8)
    on_gpus = {ranks: nodes.ranks_here(small_spec(ranks=ranks, device="cuda:0"), FOUR_GPUS) for ranks in (1, 4, 5, 8)}
    assert on_gpus == {1: None, 4: None, 5: 3, 8: 4}
    assert nodes.ranks_here(small_spec(ranks=4, device="cuda:1"), FOUR_GPUS) == 2
    assert nodes.ranks_here(small_spec(ranks=8, threads=1), FOUR_GPUS) is None
    assert nodes.ranks_here(small_spec(ranks=8, threads=2), FOUR_GPUS) == 4


def test_a_node_that_cannot_start_is_tried_twice_and_a_stop_ends_the_wait(tmp_path: Path) -> None:
    ready, ends, silent = "echo {}; cat >&2", "echo srun: error: down >&2; exit 3", "cat >&2"

    def started(first: str, second: str, *, stopped: bool = False) -> Spread:
        scripts = {"n1": first, "n2": second}
        nodes = Nodes([Node(name, "") for name in scripts], lambda node: ["sh", "-c", scripts[node.name]], cores=2)
        stop = StopSignal()
        if stopped:
            stop.set()
        work, environment = Work(0, over_nodes("ddp")), FOUR_GPUS
        return nodes.start(work, environment, Launcher(tmp_path), lambda _: None, stop)

    before = psutil.Process().children()
    why = r"need 2 nodes, and 1 are left; n2: its process ended with exit code 3: srun: error: down"
    with pytest.raises(StartError, match=why):
        started(ready, ends)
    with pytest.raises(StartError, match=STOPPED_BY_USER):
        started(ready, silent, stopped=True)
    assert set(psutil.Process().children()) <= set(before)


def test_ranks_over_nodes_train_what_one_process_does_and_find_what_torchrun_tells(runner: OnNodes) -> None:
    ways = ("adapters:TellsItsPlace", "adapters:Sums")  # tests/cluster has more
    right, wrong = runner.run(*map(over_nodes, ways))
    assert right.status == "ok", right.finished.error
    assert right.step_times_s == [max(times) for times in zip(*right.times.rank_s, strict=True)]
    assert (len(right.times.rank_s), len(right.finished.rank_peak_bytes)) == (4, 4)
    assert right.finished.skew.n == 3
    assert "its ranks ran on 2 nodes: n1 (2), n2 (2)" in right.finished.remarks
    printed = "".join(event.text for event in runner.watch.of(ev.ChildOutput) if event.cell == right.cell)
    places = re.findall(r"\[rank (\d)\] place (\d) of 4, local (\d) of 2, node (\d), store (True)", printed)
    assert sorted(set(places)) == [(str(n), str(n), str(n % 2), str(n // 2), "True") for n in range(4)]
    assert re.match(r"rank \d on n[12]: .* all are 4 times as large", wrong.finished.error)


def test_a_report_has_all_ranks(runner: OnNodes) -> None:
    runner.bench.ask_report("memory", over_nodes("zero1"))
    runner.bench.work()
    (report,) = runner.watch.state.reports.values()
    assert isinstance(report.content, RankMemoryReport), report.error
    assert {moment.rank for moment in report.content.moments} == {0, 1, 2, 3}


def test_a_rank_killed_on_another_node_is_named_with_it(runner: OnNodes) -> None:
    runner.begin_endless()
    runner.watch.until(lambda _: len(runner.ranks_of("n2")) == 2)
    ranks = runner.ranks_of("n1") + runner.ranks_of("n2")
    ranks[3].kill()
    runner.finish()
    assert (runner.last.status, runner.last.finished.error.partition(";")[0]) == (
        "killed",
        "rank 3 on n2: the process was ended by SIGKILL (Killed)",
    )
    assert all(wait_gone(rank.pid) for rank in ranks)


def test_a_rank_that_hangs_is_named_with_its_node(runner: OnNodes) -> None:
    runner.bench.timeout_s = 3.0
    try:
        (cell,) = runner.run(over_nodes("adapters:Hangs", measure_steps=10_000_000))
    finally:
        runner.bench.timeout_s = None
    assert cell.status == "killed"
    assert re.search(r"rank 3 on n2 hangs in \w+ \(adapters.py:\d+\); rank 0 on n1 waits in", cell.finished.error)


def test_a_collective_over_nodes_ends_well_with_all_ranks(runner: OnNodes) -> None:
    asked = {"ranks": (4,), "sizes": ("1KB",), "devices": ("cpu",), "threads": 1}
    (cell,) = runner.run(*sweep_from(workload="collective", **asked).cells())
    assert (cell.status, len(cell.times.rank_s)) == ("ok", 4)


def test_a_collective_has_all_ranks_and_a_stop_ends_them(runner: OnNodes) -> None:
    asked = {"ranks": (4,), "sizes": ("1KB",), "devices": ("cpu",), "threads": 1}
    runner.begin_endless(*sweep_from(workload="collective", **asked).cells())
    runner.bench.cancel()
    runner.finish()
    assert (runner.last.status, len(runner.last.times.rank_s)) == ("cancelled", 4)


def test_a_lost_node_ends_its_cell_and_is_left_out_after_the_second_time(
    runner: OnNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of in (module, node_process):
        monkeypatch.setattr(of, "SILENT_S", 4.0)
    monkeypatch.setattr(module, "ENDING_S", 0.5)
    for by, why in ((signal.SIGKILL, "its process ended by signal 9"), (signal.SIGSTOP, "silent for 4 s")):
        runner.begin_endless()
        runner.watch.until(lambda _: runner.ranks_of("n2"))
        ranks = runner.ranks_of("n2")
        os.kill(runner.of_node("n2").pid, by)
        runner.finish()
        assert runner.last.status == "killed"
        assert runner.last.finished.error == f"rank 2 on n2: its node was lost: {why}"
        assert all(wait_gone(rank.pid) for rank in ranks)
    (cell,) = runner.run(over_nodes("none"))
    assert cell.status == "failed"
    assert cell.finished.error == "its ranks need 2 nodes, and 1 are left; n2: silent for 4 s"


def test_a_node_ends_with_all_that_it_started_when_its_orders_end(tmp_path: Path) -> None:
    process = NodeProcess(Node("n3", "127.0.0.1"), command(Node("n3", "")), tmp_path / "errors")

    def heard(wanted: Callable[[Word], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not any(wanted(word) for word in process.words(1.0)):
            assert time.monotonic() < give_up_at

    heard(lambda _: True)
    process.give(msgspec.json.encode(Work(0, endless_spec(), place=Place(here=1))))
    heard(lambda word: b"DeviceSampled" in bytes(word.event))
    (node,) = children_named("n3")
    started = [node, *node.children(recursive=True)]
    process.hang_up()  # as the kernel does when the process at the other end is killed
    assert psutil.wait_procs(started, PATIENCE_S)[1] == []
    process.close()
