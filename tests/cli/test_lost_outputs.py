"""Output that cannot be written is reported, printed instead and ends in exit code 1; no broken stream is a crash."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from cs336_tui.cli.run import HeadlessRun
from cs336_tui.events.events import SessionEnded, SessionStarted, StepsTimed
from cs336_tui.export.subjects.results import results_markdown
from cs336_tui.session.log import LogReader
from tests.commands import COMMAND, DIMS, call, once_measuring, run, running
from tests.runner.running import Running
from tests.samples import DEMO_LOG, a_spec, cell_end, cell_start, session_start, steps
from tests.watching import PATIENCE_S, endless_spec, small_spec, wait_gone

MANY_STEPS = [*DIMS, *"--context 8 --batch 1 --warmup 1 --steps 1000 --device cpu --threads 1 --pass forward".split()]


def test_a_folder_removed_during_a_run_is_noticed_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    running = Running(tmp_path / "s")
    running.begin(endless_spec())
    bench, watch = running.bench, running.watch
    running.once_measuring(steps=1)
    shutil.rmtree(tmp_path / "s")
    watch.until(lambda state: any("was removed while it was written" in notice.text for notice in state.notices))
    bench.cancel()
    running.finish()
    bench.close()
    assert bench.log_path.parent == tmp_path / "data" / "cs336-tui" / "sessions"
    assert str(bench.log_path) in bench.log_problem
    logged = list(LogReader(bench.log_path))
    assert logged == watch.events[-len(logged) :]
    assert isinstance(logged[0], SessionStarted)
    assert isinstance(logged[-1], SessionEnded)


def test_a_run_without_a_measured_step_leaves_an_earlier_file_as_it_is(tmp_path: Path) -> None:
    earlier, new, late = (tmp_path / f"{name}.md" for name in ("earlier", "new", "late"))
    for path in (earlier, late):
        path.write_text("hours of work")
    run = HeadlessRun()
    for path in (earlier, new):
        run.keep(path, results_markdown, overwrite=True)
    run.sink([*session_start([a_spec()]), *cell_start(0), *steps(0, [0.1]), cell_end(0, "cancelled")])
    assert (earlier.read_text(), "cancelled" in new.read_text()) == ("hours of work", True)
    unwritten, written = run.settle_files()
    assert unwritten == {earlier: f"{earlier}: no cell has a measured step so far; the earlier file is left as it is"}
    assert written == [new]
    run = HeadlessRun()
    run.keep(late, results_markdown, overwrite=True)
    run.sink([*session_start([a_spec()]), *cell_start(0), *steps(0, [], [0.1]), cell_end(0, "cancelled")])
    assert run.settle_files() == ({}, [late])
    assert "hours" not in late.read_text()


def on_streams(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    words = command.replace("cs336-tui", shlex.quote(COMMAND)).replace("DEMO", shlex.quote(str(DEMO_LOG)))
    return run("-c", words, cwd=cwd, program="sh", **environment)


def limited(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command with files limited to 20 kB, as on a full disk."""
    # Python would leave a module's bytecode cut off at the limit, which then no process can read.
    environment = {"XDG_DATA_HOME": str(cwd / "data"), "PYTHONDONTWRITEBYTECODE": "1"}
    return on_streams(f"ulimit -f 40; exec cs336-tui {shlex.join(words)}", cwd, **environment)


def assert_said_and_printed(done: subprocess.CompletedProcess[str], steps: int, *files: str) -> None:
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    for name in files:
        assert f"wrote {name}" not in lines
        assert [line for line in lines if line.startswith(f"not written: {name}: ")]
    assert [line for line in lines if line.startswith("not saved as asked: session log ")]
    (result,) = json.loads(done.stdout)["runs"]
    assert (result["status"], len(result["step_times_s"])) == ("ok", steps)


def test_a_full_disk_is_said_and_the_data_is_printed(tmp_path: Path) -> None:
    words = ["bench", *MANY_STEPS, *"--session-dir s -o out.json --format json --summary sum.md".split()]
    done = limited(*words, cwd=tmp_path)
    assert_said_and_printed(done, 1000, "out.json")
    assert not (tmp_path / "out.json").exists()
    assert "later steps are not saved" in done.stderr


def left_to_run(folder: Path) -> Path:
    """The log of a session whose one cell has no result."""
    bench = Running(folder).bench
    bench.add([(small_spec(measure_steps=1000), 1)], "a command")
    bench.close()
    return bench.log_path


def test_resuming_on_a_full_disk_is_the_same(tmp_path: Path) -> None:
    log = left_to_run(tmp_path / "s")
    assert_said_and_printed(limited("resume", str(log), "-o", "out.json", "--format", "json", cwd=tmp_path), 1000)
    assert list(LogReader(log))  # what it holds can be read


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs to mount a file system of 256 kB")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_from_a_disk_that_fills_the_log_goes_on_elsewhere(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (small_disk / "filler").write_bytes(bytes(190_000))
    where = ["--session-dir", str(small_disk / "s"), "-o", str(small_disk / "out.json"), "--format", "json"]
    done = run("bench", *MANY_STEPS, *where, cwd=tmp_path)
    assert_said_and_printed(done, 1000, str(small_disk / "out.json"))
    (log,) = (tmp_path / "data" / "cs336-tui" / "sessions").glob("*.jsonl")
    assert done.stderr.splitlines()[-1] == f"session log: {log}"
    measured = [t for event in LogReader(log) if isinstance(event, StepsTimed) for t in event.times_s]
    assert len(measured) == 1001  # each once, those that did not fit in the first place too
    with (small_disk / "more").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:  # until there is no room at all
            file.write(bytes(4096))
    (old,) = (small_disk / "s").glob("*.jsonl")
    again = run("resume", str(old), cwd=tmp_path)
    assert again.returncode == 1
    assert again.stderr == f"cs336-tui: session log {old}: No space left on device; free some space\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cs336-tui export DEMO > /dev/full", "No space left on device"),
        ("cs336-tui export DEMO --format json > /dev/full", "No space left on device"),
        ("cs336-tui export DEMO >&-", "Bad file descriptor"),
        ("cs336-tui sessions --session-dir . < /dev/null > /dev/full", "No space left on device"),
    ],
)
def test_output_that_is_lost_is_one_line(command: str, said: str, tmp_path: Path) -> None:
    done = on_streams(command, tmp_path)
    assert (done.returncode, done.stderr) == (1, f"cs336-tui: standard output: {said}\n")


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full <&-"])
def test_a_run_bears_the_loss_of_other_streams(streams: str, tmp_path: Path) -> None:
    words = shlex.join([*MANY_STEPS, "--steps", "3", "--session-dir", "s", "--format", "json"])
    done = on_streams(f"cs336-tui bench {words} {streams}", tmp_path)
    assert done.returncode == 0
    assert [result["status"] for result in json.loads(done.stdout)["runs"]] == ["ok"]
    (log,) = (tmp_path / "s").glob("*.jsonl")
    assert list(LogReader(log))  # nothing was printed into it


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ["show", LONG],
        ["export", "DEMO", "--figures", LONG],
        ["export", "DEMO", "-o", LONG],
        ["summary", "DEMO", "-o", LONG],
        ["sessions", "--session-dir", LONG],
        ["bench", *DIMS, "--session-dir", LONG],
        ["show", os.fsdecode(b"caf\xe9")],
        ["rename", "DEMO", os.fsdecode(b"caf\xe9")],
    ],
)
def test_arguments_that_no_file_can_have_are_refused_in_one_line(words: list[str], tmp_path: Path) -> None:
    words = [str(DEMO_LOG) if word == "DEMO" else word for word in words]
    # The arguments of a process alone are looked at for bytes that are no text.
    done = (call if all(map(str.isprintable, words)) else run)(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("cs336-tui: ")
    assert done.stderr.count("\n") == 1


def test_a_module_name_that_no_file_can_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    words = [*MANY_STEPS, "--steps", "3", "--model", f"reference,{LONG}:LM", "--format", "json"]
    done = call("bench", *words, "--session-dir", "s", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no module " in done.stderr


def test_a_fork_server_that_is_killed_each_time_is_named(tmp_path: Path) -> None:
    with running("bench", *MANY_STEPS, "--session-dir", str(tmp_path), cwd=tmp_path) as process:
        while process.poll() is None:
            for child in psutil.Process(process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if "forkserver" in " ".join(child.cmdline()):
                        child.kill()
            time.sleep(0.01)
        out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err.startswith("cs336-tui: no child process can be started: the fork server ended: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("kilobytes", [400_000, 550_000])
def test_with_too_little_memory_for_torch_the_reason_is_one_line(kilobytes: int, tmp_path: Path) -> None:
    """With the first limit torch's import fails, with the second perhaps the fork server itself."""
    words = shlex.join([*MANY_STEPS, "--session-dir", "s"])
    done = on_streams(f"ulimit -v {kilobytes}; cs336-tui bench {words}", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"cs336-tui: \S.*\n", done.stderr)


ENDLESS = [*MANY_STEPS, "--steps", "10000000", "--session-dir", "s"]


@pytest.mark.parametrize("stalled", [os.openpty, os.pipe])
def test_standard_error_that_takes_nothing_holds_up_neither_run_nor_end(
    stalled: Callable[[], tuple[int, int]], tmp_path: Path
) -> None:
    _, write = stalled()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 1000)
    os.set_blocking(write, True)
    with running("bench", *ENDLESS, cwd=tmp_path, stderr=write) as process:
        once_measuring(process, tmp_path / "s")
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        out, _ = process.communicate(timeout=10.0)
    assert process.returncode == 130
    assert "cancelled" in out
    assert all(wait_gone(each.pid) for each in family)


def test_under_nohup_a_hang_up_is_not_heard(tmp_path: Path) -> None:
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    as_nohup = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with running("bench", *ENDLESS, cwd=tmp_path, preexec_fn=as_nohup, **silent) as process:
        log = once_measuring(process, tmp_path / "s")
        process.send_signal(signal.SIGHUP)
        size = log.stat().st_size
        give_up_at = time.monotonic() + PATIENCE_S
        while process.poll() is None and log.stat().st_size < size + 1000 and time.monotonic() < give_up_at:
            time.sleep(0.05)
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE_S) == 130
    assert log.stat().st_size > size


@pytest.mark.parametrize(
    "command",
    [
        "ulimit -f 0; cs336-tui rename copy.jsonl x",
        "ulimit -f 1; cs336-tui export DEMO -o page.html --format html",
        "ulimit -f 1; cs336-tui export DEMO --figures figures",
        "ulimit -f 1; cs336-tui summary DEMO -o summary",
        "mkdir gone; cd gone; rmdir ../gone; cs336-tui bench --size tiny",
    ],
)
def test_what_the_system_refuses_is_one_line(command: str, tmp_path: Path) -> None:
    shutil.copy(DEMO_LOG, tmp_path / "copy.jsonl")
    done = on_streams(command, tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        r"cs336-tui: [^\n]*(File too large|file too large|folder has been removed)[^\n]*\n", done.stderr
    )
    assert {path.name for path in tmp_path.iterdir()} <= {"copy.jsonl", "figures"}
    assert not list(tmp_path.glob("figures/*"))
    assert list(LogReader(tmp_path / "copy.jsonl"))
