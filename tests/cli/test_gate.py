"""`cs336-tui gate` as CI calls it: answers, exit codes, and a repository that stays as it was."""

import json
import os
import signal
import subprocess
from pathlib import Path
from unittest import mock

import pytest

import cs336_tui
from cs336_tui.session.load import load
from tests.commands import DIMS, call, once_measuring, running, stopped
from tests.repositories import commit, everything, git, make
from tests.runner.test_worktrees import once_gone
from tests.watching import PATIENCE_S

CELL = [*"--model my.model:LM --context 8 --batch 1 --warmup 1 --steps 5 --device cpu --threads 1".split(), *DIMS]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository whose last commit takes three times as long as its first one, `base`."""
    found = make(tmp_path / "repository")
    commit(found, "steady", sleep_s=0.01)
    commit(found, "slower", sleep_s=0.03)
    return found


def gate(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    where = ("--session-dir", str(folder.parent / "sessions"))
    return call("gate", *where, *CELL, *words, cwd=folder, environment=environment)


def test_a_slower_commit_exits_with_1_and_leaves_the_repository_as_it_was(folder: Path) -> None:
    (folder / "my" / "model.py").write_text("this is not measured")
    before = everything(folder)
    done = gate(folder, "--base", "steady", "--format", "json")
    assert done.returncode == 1, done.stderr
    assert everything(folder) == before
    assert "note: changes that are not committed are not measured" in done.stderr
    *rounds, every = json.loads(done.stdout)["rows"]
    assert [row["round"] for row in rounds] == [1, 2, 3, 4, 5], "the first look decides"
    assert (every["passing"], every["by"], every["verdict"]) == ("slower", 0.02, "slower")
    assert 2 < every["low"] < every["ratio"] < every["high"] < 4
    assert (every["level"], every["a_n"], every["b_n"]) == (pytest.approx(0.99), 25, 25)
    head, base = (git(folder, "rev-parse", "--short=9", name).strip() for name in ("HEAD", "steady"))
    assert json.loads(done.stdout)["caption"].startswith(
        f"A is HEAD ({head}), B is steady ({base}). A and B in turns: "
    )
    (log,) = (folder.parent / "sessions").glob("*.jsonl")
    cells = list(load(log).cells.values())
    assert len({cell.pid for cell in cells}) == len(cells) == 10, "each cell has a process of its own"
    starts = [cell.steps_began_at for cell in cells]
    assert [starts[2 * number] < starts[2 * number + 1] for number in range(5)] == [True, False, True, False, True]
    again = call("export", str(log), "--report", "ab", "--format", "json")
    assert json.loads(again.stdout)["rows"][-1]["ratio"] == every["ratio"]
    (command,) = load(log).commands
    assert command.startswith(f"cs336-tui gate --base {base}")
    assert {"--by 2%", "--budget 120s", "--model my.model:LM"} <= {f"--{pair.strip()}" for pair in command.split("--")}
    assert "model-path" not in command


def test_a_commit_that_is_as_fast_exits_with_0_for_github(folder: Path) -> None:
    commit(folder, "as-fast", sleep_s=0.01)
    summary = folder.parent / "summary.md"
    summary.write_text("before\n")
    words = ("--base", "steady", "--by", "50%", "--format", "github", "-o", str(folder.parent / "gate.md"))
    done = gate(folder, *words, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 0, done.stderr
    text = (folder.parent / "gate.md").read_text()
    assert text.startswith("## not slower: A takes ")
    assert text.count("<details>") == text.count("</details>") == 1
    assert text.count("\n| all ") == 2, "the answer is folded out, too"
    assert summary.read_text() == f"before\n{text}"


def test_a_budget_that_is_too_short_exits_with_3_also_where_the_summary_cannot_be_written(folder: Path) -> None:
    words = ("--base", "steady", "--budget", "0.5s", "--format", "github")
    done = gate(folder, *words, GITHUB_STEP_SUMMARY=str(folder / "nosuch" / "summary.md"))
    assert done.returncode == 3, done.stderr
    assert "cannot tell: " in done.stdout
    assert "the summary of GitHub is not written: " in done.stderr


@pytest.mark.parametrize("error", [RuntimeError("no reason"), OSError("no room")])
def test_an_error_of_any_kind_is_no_slower_commit(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cs336_tui.cli.ab.Bench", mock.Mock(side_effect=error))
    done = gate(folder, "--base", "steady")
    assert (done.returncode, "cannot tell: " in done.stderr, str(error) in done.stderr) == (3, True, True), done.stderr


def test_a_side_that_fails_and_one_that_cheats_cannot_be_told(folder: Path) -> None:
    commit(folder, "broken", first="raise RuntimeError('broken')")
    done = gate(folder, "--base", "steady")
    assert (done.returncode, "A failed" in done.stdout, "broken" in done.stdout) == (3, True, True), done.stderr
    cheat = "import torch\ntorch.manual_seed(0)\ntime.perf_counter_ns = time.perf_counter = lambda: 0"
    commit(folder, "cheats", first=cheat)
    done = gate(folder, "--base", "steady")
    assert (done.returncode, "A is not compared: work-outside-steps" in done.stdout) == (3, True), done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--base", "nosuch"], "no commit 'nosuch'"),
        (["--base", "base", "--by", "two"], "--by"),
        (["--base", "base", "--warmup", "1,2"], "comes to 2 cells"),
        (["--base", "base", "--steps", "1s"], "the same number of steps"),
        (["--base", "base", "--ranks", "2"], "a gate is of one rank"),
        (["--base", "base", "--model", "reference"], "no code of your own"),
        (["--base", "base", "--model", "json:loads"], "json:loads is not of this repository"),
        (["--base", "base", "--model", "new:LM"], "new:LM is not in the commit"),
        (["--base", "base", "--model", "my.model:GPT"], "--head HEAD"),
    ],
)
def test_bad_input_exits_with_2(folder: Path, words: list[str], said: str) -> None:
    (folder / "new.py").write_text("class LM: ...")
    before = everything(folder)
    done = gate(folder, *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert everything(folder) == before


def test_an_installed_package_without_a_file_of_its_own_is_not_of_the_repository(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed" / "spaced").mkdir(parents=True)
    (tmp_path / "installed" / "spaced" / "model.py").write_text("class LM: ...")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    done = gate(folder, "--base", "base", "--model", "spaced.model:LM")
    assert (done.returncode, "spaced.model:LM is not of this repository" in done.stderr) == (2, True), done.stderr


def test_code_comes_from_the_worktrees_also_where_the_users_folder_is_on_the_path(folder: Path) -> None:
    commit(folder, "in-src", file="src/lm/model.py", first="assert '/0/' in __file__ or '/1/' in __file__")
    (folder / "src" / "lm" / "model.py").write_text("raise SystemExit('the working tree')")
    words = ("--base", "in-src", "--model", "lm.model:LM", "--by", "90%", "--session-dir", str(folder / "s"))
    path = os.pathsep.join((str(folder / "src"), str(Path(cs336_tui.__file__).parents[1])))
    with running("gate", *CELL, *words, cwd=folder, env=os.environ | {"PYTHONPATH": path}) as process:
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_it_the_worktrees_go(folder: Path, number: signal.Signals) -> None:
    before = everything(folder)
    sessions = folder.parent / "sessions"
    words = ("--base", "base", "--session-dir", str(sessions), "--budget", "10m", "--steps", "100000")
    with running("gate", *CELL, *words, cwd=folder) as process:
        log = once_measuring(process, sessions)
        (tree,) = (path for path in load(log).cells[0].spec.model_path if path.endswith("/0"))
        assert Path(tree).is_dir()
        if number == signal.SIGKILL:
            process.kill()
            process.communicate()
        else:
            stopped(process, number)
    once_gone(folder, Path(tree).parent)
    assert everything(folder) == before
