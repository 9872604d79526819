"""`sessions`, `show`, `rename`, `annotate`, `delete`, `presets` and `resume`, as a person types them."""

import json
import subprocess
from pathlib import Path

import pytest

from cs336_tui.events.events import StepsTimed
from cs336_tui.events.reports import Report
from cs336_tui.session.log import LogReader
from tests.commands import DIMS, SMALL, call, running
from tests.made_kernels import a_kernel_report
from tests.made_memory import a_memory_report
from tests.samples import a_spec, report_events, session_start, write_log
from tests.watching import small_spec


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two sessions: an older one of two cells, and a newer one of one."""
    folder = tmp_path_factory.mktemp("sessions")
    for passes in ("forward,train-step", "inference"):
        done = call("bench", *SMALL, "--pass", passes, "--session-dir", str(folder), cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def command(*words: str, folder: Path, answer: str = "") -> subprocess.CompletedProcess[str]:
    return call(*words, answer=answer, environment={"XDG_CONFIG_HOME": str(folder)})


def in_folder(*words: str, folder: Path, answer: str = "") -> subprocess.CompletedProcess[str]:
    return command(*words, "--session-dir", str(folder), folder=folder, answer=answer)


def test_sessions_are_listed_newest_first_or_there_are_none(finished: Path) -> None:
    listed = json.loads(in_folder("sessions", "--json", folder=finished).stdout)
    assert [(info["cells"], info["ok"], info["left"]) for info in listed] == [(1, 1, 0), (2, 2, 0)]
    assert listed[0]["session"] > listed[1]["session"]
    assert Path(listed[0]["path"]).is_file()
    table = in_folder("sessions", folder=finished).stdout
    assert listed[0]["session"] in table
    assert "2: 2 ok" in table
    nowhere = finished / "none"
    done = in_folder("sessions", folder=nowhere)
    assert (done.returncode, done.stdout.startswith("No session in ")) == (0, True)
    assert json.loads(in_folder("sessions", "--json", folder=nowhere).stdout) == []


@pytest.mark.parametrize("words", [[], ["open"], ["show"]])
def test_a_log_or_a_folder_in_place_of_a_session_is_opened(words: list[str], tmp_path: Path) -> None:
    events = [*session_start([a_spec()])]
    for name in ("older", "newer"):
        log = write_log(tmp_path / f"{name}.jsonl", events)
    for there in (log, tmp_path):
        assert call(*words, str(there)).stdout.splitlines()[0].split() == [
            "session",
            log.stem if there == log else "older",
        ]
    missing = call(*words, str(tmp_path / "none.jsonl"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "none.jsonl" in missing.stderr


def test_a_log_with_options_is_shown_with_them_alone_and_without_phases(finished: Path, tmp_path: Path) -> None:
    log = max(finished.glob("*.jsonl"))
    shown = command(str(log), "--format", "json", folder=tmp_path)
    assert (shown.returncode, shown.stdout) == (
        0,
        command("show", str(log), "--format", "json", folder=tmp_path).stdout,
    )
    assert command(str(log), "-v", folder=tmp_path).returncode == 0
    brief, whole = (command("open", str(log), *more, folder=tmp_path) for more in ([], ["-v"]))
    assert (brief.returncode, whole.returncode) == (0, 0)
    assert len(brief.stdout) < len(whole.stdout) == len(command("show", str(log), "-v", folder=tmp_path).stdout)
    recording = command("open", "a.json", "-v", folder=tmp_path)
    assert (recording.returncode, "a recording opens without them" in recording.stderr) == (2, True)
    two = command(str(log), str(log), folder=tmp_path)
    assert (two.returncode, "a session is shown alone, one at a time" in two.stderr) == (2, True)
    phases = command(str(log), "--phase", "forward=f", folder=tmp_path)
    assert (phases.returncode, "--phase is for recordings of others" in phases.stderr) == (2, True)


def test_the_log_of_a_session_is_never_written_over(finished: Path, tmp_path: Path) -> None:
    log = tmp_path / "a.jsonl"
    log.write_bytes(next(finished.glob("*.jsonl")).read_bytes())
    before = log.read_bytes()
    for more in ((), ("--force",)):
        done = command("show", str(log), "--format", "csv", "-o", str(log), *more, folder=tmp_path)
        assert (done.returncode, "is the log of a session" in done.stderr) == (2, True)
    assert log.read_bytes() == before


def test_an_option_before_a_file_is_refused_as_before_a_command(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", session_start([a_spec()]))
    assert "leave out --theme, which open does not have" in call("--theme", "nord", str(log)).stderr


def test_the_reports_that_a_session_has_are_those_whose_command_is_named(tmp_path: Path) -> None:
    spec = a_spec()

    def last_line(*reports: Report) -> str:
        events = [*session_start([spec]), *report_events(*reports)]
        return call("show", str(write_log(tmp_path / "log.jsonl", events))).stdout.splitlines()[-1]

    only = last_line(a_memory_report())
    assert only == "`cs336-tui export log --report memory` shows what a report found."
    both = last_line(a_memory_report(), a_kernel_report())
    assert both == "`cs336-tui export log --report kernels` (or memory) shows what a report found."


def test_one_session_is_shown_with_its_name_note_and_results(finished: Path) -> None:
    (oldest, _) = sorted(finished.glob("*.jsonl"))
    assert in_folder("rename", oldest.stem, "laptop", folder=finished).returncode == 0
    assert in_folder("annotate", oldest.stem, "on battery", folder=finished).returncode == 0
    shown = in_folder("show", oldest.stem, folder=finished).stdout
    assert "(laptop)" in shown
    assert "note     on battery" in shown
    assert "| train-step |" in shown
    last = in_folder("show", folder=finished).stdout
    assert "| inference |" in last
    assert "laptop" in in_folder("sessions", folder=finished).stdout


@pytest.mark.parametrize(
    "words", [["show"], ["rename", "x"], ["delete", "--yes"], ["resume"]], ids=lambda words: words[0]
)
def test_a_session_that_does_not_exist_is_bad_usage(words: list[str], finished: Path) -> None:
    verb, *more = words
    for name, says in (("1999", "no session '1999'"), ("20", "fits 2")):
        done = in_folder(verb, name, *more, folder=finished)
        assert done.returncode == 2
        assert says in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert len(list(finished.glob("*.jsonl"))) == 2


def test_deleting_asks(tmp_path: Path) -> None:
    assert in_folder("bench", *SMALL, "--pass", "forward", folder=tmp_path).returncode == 0
    kept = in_folder("delete", "last", folder=tmp_path, answer="n\n")
    assert "kept" in kept.stdout
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    deleted = in_folder("delete", "last", folder=tmp_path, answer="y\n")
    assert "for good?" in deleted.stderr
    assert "deleted" in deleted.stdout
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_killed_sweep_is_resumed_into_the_same_session(tmp_path: Path) -> None:
    words = [*DIMS, *"--context 8 --batch 1,2 --warmup 1 --steps 1500 --device cpu --threads 1 --pass forward".split()]
    with running("bench", *words, "--session-dir", str(tmp_path), cwd=tmp_path) as killed:
        assert any(line.startswith("[1/2]") for line in killed.stderr)
        killed.kill()
    (log,) = tmp_path.glob("*.jsonl")
    before = log.read_bytes()
    done = in_folder("resume", "--format", "json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 cells have a result; 1 of 2 cells left to run" in done.stderr
    runs = json.loads(done.stdout)["runs"]
    assert [(run["status"], len(run["step_times_s"])) for run in runs] == [("ok", 1500)] * 2
    assert log.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert [path.suffix for path in tmp_path.iterdir() if path.is_file()] == [".jsonl"]
    again = in_folder("resume", folder=tmp_path)
    assert (again.returncode, "nothing left to run" in again.stderr) == (0, True)


def test_failed_cells_run_again_only_when_asked(tmp_path: Path) -> None:
    assert in_folder("bench", *SMALL, "--pass", "forward", "--timeout", "0.001", folder=tmp_path).returncode == 1
    assert in_folder("resume", folder=tmp_path).returncode == 1
    again = in_folder("resume", "--failed", folder=tmp_path)
    assert again.returncode == 0, again.stderr


def test_the_smallest_run_first_unless_told_otherwise_round_after_round(tmp_path: Path) -> None:
    for more, expected in (((), [8, 64]), (("--order", "as-given", "--repeats", "2"), [64, 8, 64, 8])):
        words = (*SMALL, "--context", "64,8", "--pass", "forward", *more, "--format", "json")
        runs = json.loads(in_folder("bench", *words, folder=tmp_path).stdout)["runs"]
        assert [run["spec"]["context_length"] for run in runs] == expected
    assert [run["repeat"] for run in runs] == [1, 1, 2, 2]
    timed = [event.cell for event in LogReader(max(tmp_path.glob("*.jsonl"))) if isinstance(event, StepsTimed)]
    assert list(dict.fromkeys(timed)) == [0, 1, 2, 3]


def test_presets_are_listed_and_shown_and_own_ones_are_run(tmp_path: Path) -> None:
    listed = command("presets", folder=tmp_path).stdout
    assert "2026/benchmarking_script" in listed
    assert "2026/nested_checkpointing" not in listed
    assert "2025/" not in listed
    assert "2025/warmup" in command("presets", "--edition", "2025", folder=tmp_path).stdout
    assert all(f"{name}  " in command("presets", "--all", folder=tmp_path).stdout for name in ("8gb", "2024/timeit"))
    shown = command("presets", "show", "2024/timeit", folder=tmp_path).stdout
    assert 'arch = "gelu-learned"' in shown
    own = tmp_path / "cs336-tui" / "presets"
    own.mkdir(parents=True)
    spec = small_spec()
    (own / "mine.toml").write_text(
        f'about = "mine"\npass = "forward"\ndevice = "every"\nsteps = 2\ncontext = 8\nbatch = 1\nthreads = 1\n'
        f"d_model = {spec.d_model}\nd_ff = {spec.d_ff}\nnum_layers = 1\nnum_heads = 2\nvocab_size = 64\n"
    )
    (own / "wrong.toml").write_text("colour = 1\n")
    listed = command("presets", folder=tmp_path)
    assert "mine" in listed.stdout
    assert "preset wrong: unknown key colour" in listed.stderr
    done = in_folder("bench", "--preset", "mine", "--format", "json", folder=tmp_path)
    assert {run["status"] for run in json.loads(done.stdout)["runs"]} == {"ok"}
    unknown = in_folder("bench", "--preset", "none", folder=tmp_path)
    assert unknown.returncode == 2
    assert "preset none: expected one of quick" in unknown.stderr
