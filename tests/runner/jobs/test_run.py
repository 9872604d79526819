"""A job as the machines that run it do: its log, and two processes of this machine in place of two nodes."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.jobs.job import JobCell, JobRequest, Resources, log_path, request_path, write_request
from cs336_tui.runner.jobs.run import addresses_in, allocation_of, begin_log, nodes_of, work_over_nodes
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.states import CellState
from cs336_tui.session.store import load
from tests.watching import PATIENCE_S, Watch, endless_spec, small_spec

QUICK, LONG, ENDLESS, WIDE = range(4)


class Job:
    """A job whose cells are numbered by their place."""

    def __init__(self, folder: Path, specs: Sequence[CellSpec]) -> None:
        self.folder = folder
        cells = tuple(JobCell(number, spec) for number, spec in enumerate(specs))
        self.request = JobRequest(session="s", job="1", cells=cells, resources=Resources(nodes=2), device_interval_s=0)
        write_request(folder, self.request)

    def run(self) -> Watch:
        """Run the job, as Slurm does once more if it requeues it."""
        watch, allocation = Watch(), allocation_of(2)
        allocation = allocation._replace(cores=2)
        nodes = nodes_of(self.request, allocation)
        bench = Bench(watch, session_dir=self.folder, session="1", device_interval_s=0, nodes=nodes)
        bench.prepare()
        try:
            work_over_nodes(request_path(self.folder, "1"), self.request, bench, nodes, allocation, watch)
        finally:
            bench.close()
        return watch

    def node(self, number: int) -> SessionState:
        """The state that the log of a node tells."""
        path = log_path(self.folder, "1", number)
        return fold(LogReader(path) if path.exists() else ())


def nodes() -> list[psutil.Process]:
    """The processes of this one that are a node."""
    children = (each.as_dict(["pid", "cmdline"]) for each in psutil.Process().children())  # a zombie's is None
    return [psutil.Process(each["pid"]) for each in children if "--node" in (each["cmdline"] or ())]


@pytest.fixture
def _no_node_stays() -> Iterator[None]:
    """A test that fails leaves a node whose cell would never end."""
    yield
    for node in nodes():
        for process in [*node.children(recursive=True), node]:
            process.kill()


def results(state: SessionState) -> dict[int, str]:
    return {number: cell.status for number, cell in state.cells.items()}


@pytest.mark.usefixtures("_no_node_stays")
def test_wide_cells_run_first_then_each_node_its_share_and_a_lost_node_names_itself(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))  # a node that is killed leaves files there
    long = small_spec(measure_steps=20_000_000, steps_for=0.2)  # by its steps the longest
    job = Job(tmp_path, [small_spec(), long, endless_spec(), small_spec(ranks=4, parallel="none")])
    running = threading.Thread(target=job.run, daemon=True)
    running.start()

    def measures(cell: CellState | None) -> bool:
        return cell is not None and len(cell.step_times_s) > 0

    give_up_at = time.monotonic() + PATIENCE_S
    while not measures(job.node(1).cells.get(ENDLESS)):
        assert time.monotonic() < give_up_at
        running.join(0.1)
    (node,) = nodes()
    below = node.children(recursive=True)
    node.kill()
    running.join(PATIENCE_S)
    first, second = job.node(0), job.node(1)
    assert results(first) == {WIDE: "ok", LONG: "ok"}
    assert first.cells[WIDE].finished.at < first.cells[LONG].started_at
    assert first.cells[WIDE].finished.rank_nodes == ("process 0",) * 2 + ("process 1",) * 2
    lost = second.cells[ENDLESS].finished
    assert (results(second), lost.job_over) == ({QUICK: "ok", ENDLESS: "killed"}, True)
    assert lost.error == "node process 1 was lost: its process ended by signal 9"
    assert (first.ended.reason, second.ended.reason) == ("finished", "interrupted")
    assert psutil.wait_procs(below, PATIENCE_S)[1] == []

    assert results(job.run().state) == results(first)  # nothing is left to run


def test_nodes_are_reached_by_the_addresses_that_slurm_tells() -> None:
    told = "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=x OS=Linux 6 State=IDLE\nNodeName=n2 State=DOWN\n"
    assert addresses_in(told) == {"n1": "10.0.0.1", "n2": "n2"}


def test_a_log_begins_with_the_sessions_numbers_and_stays_as_it_is(tmp_path: Path):
    cells = [JobCell(number, small_spec(batch_size=number), number % 2 + 1) for number in (7, 8, 3)]
    cells.append(JobCell(4, small_spec(batch_size=4), 1, ("kernels",)))
    request = JobRequest(session="s", job="2", cells=tuple(cells), ddof=0)
    log = tmp_path / "2.jsonl"
    begin_log(log, request)
    state = load(log)
    assert list(state.waiting) == [7, 8, 3, 4]
    found = [(cell.cell, cell.spec.batch_size, cell.repeat) for cell in state.cells.values()]
    assert found == [(7, 7, 2), (8, 8, 1), (3, 3, 2), (4, 4, 1)]
    assert (state.wanted, state.ddof) == ({4: ("kernels",)}, 0)
    before = log.read_bytes()
    begin_log(log, request)
    assert log.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["2.jsonl"]
