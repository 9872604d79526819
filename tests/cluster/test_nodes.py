"""Jobs of two nodes with a real Slurm: ranks over both, a share of the cells for each, and what may happen to them."""

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.runner.jobs.job import JobCell, JobRequest, LaunchChoice, Resources, log_path, write_request
from cs336_tui.runner.jobs.slurm import SlurmLauncher
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import SessionState, fold
from cs336_tui.session.states import CellState
from tests.cluster.slurm import Slurm
from tests.commands import SMALL, bench
from tests.watching import endless_spec

DIED, LOST, HERE, THERE = range(4)


def test_ranks_over_two_nodes_come_to_the_gradients_of_one_process(slurm: Slurm, tmp_path: Path) -> None:  # noqa: ARG001
    asked = "--launcher slurm --partition ci --nodes 2 --lanes 1 --time 5:00 --format json".split()
    ranks = "--pass train-step --ranks 4,1 --parallel ddp,fsdp2".split()
    done = bench(*SMALL, *ranks, *asked, cwd=tmp_path)  # each of these is compared with one process first
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["status"], run["spec"]["ranks"], run["rank_nodes"]) for run in runs] == [
        *[("ok", 4, ["n1", "n1", "n2", "n2"])] * 2,
        ("ok", 1, []),
    ]
    for run in runs[:2]:
        assert run["step_times_s"] == [max(times) for times in zip(*run["rank_times_s"], strict=True)]
        assert run["skew"]["n"] == 3


class Job:
    """A job of two nodes; its cells are numbered by their place."""

    def __init__(self, slurm: Slurm, folder: Path, *specs: CellSpec) -> None:
        self.slurm, self.folder = slurm, folder
        cells = tuple(JobCell(number, spec) for number, spec in enumerate(specs))
        asked = Resources(nodes=2, cores_per_node=0)
        request = JobRequest(session="s", job="1", cells=cells, resources=asked, device_interval_s=0.2)
        write_request(folder, request)
        launcher = SlurmLauncher(LaunchChoice(launcher="slurm", partition="ci"))
        (self.id,) = launcher.submit([request], folder)

    def state(self, node: int = 0) -> SessionState:
        path = log_path(self.folder, "1", node)
        return fold(LogReader(path) if path.exists() and path.stat().st_size else ())

    def cell(self, number: int, node: int = 0) -> CellState | None:
        return self.state(node).cells.get(number)

    def until_measured(self, number: int, node: int = 0) -> None:
        def measured() -> bool:
            return bool((cell := self.cell(number, node)) and cell.status == "running" and cell.step_times_s)

        self.slurm.until(measured, f"cell {number}\n{self.said()}")

    def until_killed(self, number: int, node: int = 0) -> str:
        """Wait for the end of a cell; returns its error."""

        def killed() -> str:
            cell = self.cell(number, node)
            return cell.finished.error or "" if cell and cell.finished and cell.status == "killed" else ""

        return self.slurm.until(killed, f"the end of cell {number}\n{self.said()}")

    def ranks(self) -> list[int]:
        """The processes of the ranks that run."""
        samples = [each for each in LogReader(log_path(self.folder, "1")) if isinstance(each, ev.DeviceSampled)]
        return [rank.pid for rank in samples[-1].host.ranks] if samples else []

    def processes(self) -> list[Any]:
        """Whatever lives of the job, on either node."""
        found = []
        for each in psutil.process_iter():
            try:
                told = each.environ()
                if (told.get("SLURM_JOB_ID"), told.get("SLURM_CONF")) == (self.id, os.environ["SLURM_CONF"]):
                    found.append(each.cmdline())
            except psutil.Error:
                continue
        return found

    def said(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.out"))


def test_whatever_happens_to_ranks_nodes_and_the_job(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(slurm.folder))  # what a killed node cannot remove goes with it

    def wide(batch: int) -> CellSpec:
        return endless_spec(ranks=4, parallel="ddp", pass_="train-step", batch_size=batch)

    job = Job(slurm, tmp_path, wide(1), wide(2), endless_spec(batch_size=2), endless_spec())
    job.until_measured(DIED)
    slurm.until(lambda: len(job.ranks()) == 4, "samples of all ranks")
    psutil.Process(job.ranks()[3]).kill()
    assert job.until_killed(DIED).startswith("rank 3 on n2: the process was ended by SIGKILL")

    job.until_measured(LOST)
    slurm.call("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    assert job.until_killed(LOST).startswith("rank 2 on n2: its node was lost: ")
    assert job.until_killed(THERE, node=1).startswith("node n2 was lost: ")
    assert job.state(1).ended is not None

    job.until_measured(HERE)
    slurm.call("scontrol", "requeue", job.id)
    slurm.until(lambda: slurm.state(job.id) == "PENDING", "the job to wait again")
    if "DOWN" in slurm.node_state("n2"):  # it may have come back by itself
        slurm.call("scontrol", "update", "NodeName=n2", "State=RESUME")
    slurm.call("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    slurm.until(lambda: slurm.state(job.id) == "RUNNING", "the job to run again")
    job.until_measured(HERE)
    starts = [each.cell for each in LogReader(log_path(tmp_path, "1")) if isinstance(each, ev.CellStarted)]
    assert starts == [DIED, LOST, HERE, HERE]

    slurm.call("scancel", job.id)
    slurm.until(lambda: job.processes() == [], "its processes to end")
    assert job.state().ended is not None
    assert [job.cell(number).status for number in (DIED, LOST, HERE)] == ["killed", "killed", "cancelled"]
