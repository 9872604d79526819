"""Worktrees of commits are outside of the repository, and gone however the process ends that asked for them."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from cs336_tui.runner import worktrees as module
from cs336_tui.runner.worktrees import Repository, WorktreeError
from tests.repositories import commit, everything, git, make
from tests.watching import PATIENCE_S

HOLDS = """
import sys
from cs336_tui.runner.worktrees import Repository
repository = Repository.here()
with repository.worktrees(repository.commit("base"), repository.commit("HEAD")) as trees:
    print(trees[0].parent, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """That of the current folder, with two commits, changes of each kind and a stash."""
    folder = make(tmp_path / "repository")
    (folder / "my" / "model.py").write_text("stashed")
    git(folder, "stash")
    commit(folder, "slower", sleep_s=0.01)
    (folder / "my" / "model.py").write_text("changed")
    (folder / "staged.py").write_text("staged")
    git(folder, "add", "staged.py")
    (folder / "untracked.py").write_text("untracked")
    monkeypatch.chdir(folder)
    return Repository.here()


def once_gone(root: Path, folder: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while folder.exists() or str(folder) in git(root, "worktree", "list"):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)  # nothing announces that a folder is gone


def test_each_commit_has_its_files_and_all_else_stays(repository: Repository) -> None:
    before = everything(repository.root)
    with repository.worktrees(repository.commit("base"), repository.commit("HEAD")) as (base, head):
        assert not base.is_relative_to(repository.root)
        assert "time.sleep(0.0)" in (base / "my" / "model.py").read_text()
        assert "time.sleep(0.01)" in (head / "my" / "model.py").read_text()
        assert git(head, "branch", "--show-current") == ""
        (head / "__pycache__").mkdir()
        (head / "my" / "model.py").write_text("what a cell leaves there")
    assert everything(repository.root) == before
    assert not base.parent.exists()


def test_a_folder_whose_name_is_not_utf_8_is_a_repository_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(tmp_path / os.fsdecode(b"caf\xe9"))
    monkeypatch.chdir(folder)
    assert Repository.here().root == folder
    with Repository.here().worktrees("HEAD") as (tree,):
        assert (tree / "my" / "model.py").exists()
    with pytest.raises(WorktreeError, match=r"git worktree: .*caf"):
        Repository.here().git("worktree", "remove", str(folder))


def test_a_list_of_worktrees_that_fails_is_asked_for_again(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    git = mock.Mock(side_effect=[WorktreeError("busy"), ""])
    monkeypatch.setattr(Repository, "git", git)
    module.hold(repository, tmp_path / "trees", [])
    assert git.call_count == 2


def test_the_variables_of_a_hook_lead_to_no_other_index(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository.root / ".git" / "index"))
    before = everything(repository.root)
    with repository.worktrees(repository.commit("base")):
        pass
    assert everything(repository.root) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_they_are_gone_after_a_signal(repository: Repository, number: signal.Signals) -> None:
    before = everything(repository.root)
    environment = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True, env=environment,
    )  # fmt: skip
    folder = Path(process.stdout.readline().strip())
    assert (folder / "0" / "my" / "model.py").exists()
    os.killpg(process.pid, number)
    process.communicate()
    once_gone(repository.root, folder)
    assert everything(repository.root) == before


def test_a_commit_that_cannot_be_checked_out_leaves_nothing(repository: Repository) -> None:
    before = everything(repository.root)
    lost = "0" * 40
    with pytest.raises(WorktreeError, match="git worktree: "), repository.worktrees(repository.commit("base"), lost):
        pass
    assert everything(repository.root) == before


def test_without_a_process_that_holds_them_nothing_is_left(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with pytest.raises(WorktreeError, match="temporary"), repository.worktrees():
        pass
    temporary.mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nosuch"))
    with pytest.raises(WorktreeError, match="nosuch"), repository.worktrees():
        pass
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("asked", ["nosuch", "--all", "", "HEAD:my/model.py"])
def test_what_is_no_commit_is_refused(repository: Repository, asked: str) -> None:
    with pytest.raises(WorktreeError, match="no commit"):
        repository.commit(asked)


def test_a_folder_without_repository_and_one_with_the_temporary_files_are_refused(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(repository.root / "my"))
    with pytest.raises(WorktreeError, match="set TMPDIR"), repository.worktrees(repository.commit("base")):
        pass
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorktreeError, match="git rev-parse: "):
        Repository.here()


def test_paths_of_the_repository_are_moved_and_those_installed_in_it_stay(repository: Repository) -> None:
    tree = Path("/tree")
    assert repository.moved("my", tree) == "/tree/my"
    assert repository.moved("..", tree) == str(repository.root.parent)
    inside = repository.root / ".venv" / "lib" / "site-packages"
    assert repository.moved(inside, tree) == str(inside)
