"""No command runs what a session's log names, unless the command line names it or says --trust."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from cs336_tui.cli.problems import problems
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellFinished, Event, JobSubmitted
from cs336_tui.runner.jobs.job import JobCell, JobRequest, LaunchChoice, folder_of, request_path, write_choice
from tests.cli import a_machine, here
from tests.commands import SMALL, call
from tests.made_predictions import MadePredictor
from tests.samples import ENVIRONMENT, START, cell_start, session_start, steps, write_log
from tests.watching import small_spec
from tests.worker.workload.own_code import PLAIN


class Foreign(NamedTuple):
    """Somebody's code, which writes down that it was imported, beside the user's folder."""

    here: Path
    folder: Path

    @property
    def marks(self) -> list[str]:
        found = self.folder / "marks"
        return found.read_text().splitlines() if found.exists() else []

    def spec(self, **changes: object) -> CellSpec:
        return small_spec(**({"model": "evil:Odd", "model_path": (str(self.folder),)} | changes))

    def log(self, specs: Sequence[CellSpec], *more: Event) -> Path:
        """A session of these cells, of which the first has a result and the others were stopped."""
        path = self.here / "sessions" / "2026-01-01T00-00-00-evil.jsonl"
        path.parent.mkdir(exist_ok=True)
        events = [*session_start(specs, environment=ENVIRONMENT), *cell_start(0), *steps(0, (0.1,), (0.1, 0.1))]
        events.append(CellFinished(at=START + 20, cell=0, status="ok"))
        events += [CellFinished(at=START + 21, cell=n, status="cancelled") for n in range(1, len(specs))]
        return write_log(path, [*events, *more])

    def say(self, *words: str) -> tuple[int, str]:
        done = call(*words, cwd=self.here)
        return done.returncode, done.stderr


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    found = Foreign(tmp_path / "here", tmp_path / "foreign")
    found.here.mkdir()
    found.folder.mkdir()
    mark = f"with open({str(found.folder / 'marks')!r}, 'a') as file: file.write('imported\\n')\n"
    (found.folder / "evil.py").write_text(mark + PLAIN)
    return found


ESTIMATE = ["estimate", *SMALL, "--session"]
TUNE = ["tune", *SMALL, "--over", "attention=naive,sdpa", "--dry-run", "--session"]


@pytest.mark.parametrize("words", [ESTIMATE, TUNE], ids=["estimate", "tune"])
def test_what_promises_to_run_nothing_imports_nothing_that_a_log_names(foreign: Foreign, words: list[str]) -> None:
    log = str(foreign.log([foreign.spec(), foreign.spec(batch_size=2)]))
    code, said = foreign.say(*words, log)
    assert (code, foreign.marks) == (0, [])
    assert said == (
        "note: evil:Odd is named by a log alone, so it is not imported, and the speed of its cells is left out; "
        "--trust imports it\n"
    )
    code, said = foreign.say(*words, log, "--trust")
    assert (code, set(foreign.marks)) == (0, {"imported"})


def test_not_even_what_lies_in_the_current_folder(foreign: Foreign) -> None:
    (foreign.here / "evil.py").write_text((foreign.folder / "evil.py").read_text())
    log = str(foreign.log([foreign.spec(model_path=(str(foreign.here),))]))
    assert foreign.say(*ESTIMATE, log)[0] == 0
    assert foreign.marks == []


def test_problems_predicts_nothing_of_a_foreign_log(foreign: Foreign, capsys: pytest.CaptureFixture[str]) -> None:
    log, predictor = foreign.log([foreign.spec()]), MadePredictor()

    def asked(*, trusted: bool) -> list[CellSpec]:
        predictor.asked.clear()
        with a_machine(predictor, here()._replace(environment=on_cpu)):
            problems.callback(
                session=str(log), edition="2026", gpu=None, trusted=trusted, format_="json", output=None,
                overwrite=False, session_dir=log.parent,
            )  # fmt: skip
        return [spec for spec in predictor.asked if spec.brings_own_code]

    on_cpu = msgspec.structs.replace(ENVIRONMENT, devices=ENVIRONMENT.devices[:1])
    assert asked(trusted=False) == []
    assert "evil:Odd is named by a log alone" in capsys.readouterr().err
    assert asked(trusted=True) == [foreign.spec()]


def test_resume_refuses_a_folder_elsewhere_in_one_line_and_leaves_the_log(foreign: Foreign) -> None:
    log = foreign.log([foreign.spec(), foreign.spec(batch_size=2)])
    before = log.read_bytes()
    code, said = foreign.say("resume", str(log))
    assert (code, foreign.marks) == (2, [])
    assert said == (
        f"cs336-tui: session {log.stem} would import evil:Odd from {foreign.folder}/evil.py, which is not the current "
        "folder's own code; if you trust it, say --trust\n"
    )
    assert log.read_bytes() == before
    assert not log.with_suffix(".writer").exists()


def test_resume_says_what_it_imports_from_the_current_folder_and_trusts_others_on_demand(foreign: Foreign) -> None:
    log = foreign.log([small_spec(), foreign.spec()])
    done = call("resume", str(log), cwd=foreign.folder)  # as whoever wrote it does
    assert done.returncode == 0
    assert f"imports evil:Odd from {foreign.folder}/evil.py\n" in done.stderr
    log = foreign.log([small_spec(), foreign.spec()])
    code, said = foreign.say("resume", str(log), "--trust")
    assert code == 0
    assert f"imports evil:Odd from {foreign.folder}/evil.py\n" in said
    assert len(foreign.marks) >= 2


def test_a_command_line_that_names_code_has_it_run(foreign: Foreign) -> None:
    words = ["--model", "evil:Odd", "--model-path", str(foreign.folder), "--session-dir", str(foreign.here)]
    code, said = foreign.say("bench", *SMALL, "--pass", "forward", *words)
    assert code == 0, said
    assert foreign.marks


@pytest.fixture
def programs(foreign: Foreign, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for what a launcher starts, which write down that they were."""
    folder = foreign.folder / "programs"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct", "sinfo"):
        path = folder / name
        path.write_text(f"#!/bin/sh\necho {name} >>{foreign.folder}/marks\nexit 1\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("words", [["resume"], ["watch", "--format", "json"], ["cancel"]], ids=lambda words: words[0])
def test_jobs_are_not_launched_by_what_came_with_a_log(foreign: Foreign, words: list[str]) -> None:
    job = JobSubmitted(at=START + 30, job="1", launcher="slurm", id="evil/1", cells=(1,))
    log = foreign.log([small_spec(), small_spec(batch_size=2)], job)
    write_choice(folder_of(log), LaunchChoice(launcher="slurm"))
    (folder_of(log) / "launcher.mark").write_text("0" * 64)
    code, said = foreign.say(*words, str(log))
    assert (code, foreign.marks) == (2, [])
    assert said.splitlines()[-1].startswith(
        f'cs336-tui: session {log.stem} has jobs that no command of yours launched here: {{"launcher":"slurm"'
    )
    assert said.splitlines()[-1].endswith("; if you trust it, say --trust")


def test_the_request_of_a_job_is_no_command_line(foreign: Foreign) -> None:
    path = request_path(foreign.here, "1")
    path.write_bytes(msgspec.json.encode(JobRequest(session="s", job="1", cells=(JobCell(0, foreign.spec()),))))
    code, said = foreign.say("run-job", str(path))
    assert (code, foreign.marks, said.count("\n")) == (2, [], 1)
    assert foreign.say("run-job", str(path), "--trust")[0] == 0
    assert foreign.marks
