"""Worktrees of commits in a temporary folder, held by a process of their own. That process makes them, waits for the
end of its standard input, and removes them: so they go however this process ends. Run as a script it is the holder,
which has Python's own modules only."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_OF_ANOTHER_CALL = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY",
)  # fmt: skip
"""Variables that git sets for its hooks; with them it would write into the user's index."""
_ENDS_IN_S = 60.0
_TRIES = 50


class WorktreeError(ValueError):
    """The repository cannot give these commits; one line says why."""


class Commit(NamedTuple):
    """A commit as the user named it, and its hash."""

    asked: str
    hash: str

    def __str__(self) -> str:
        return self.asked if self.hash.startswith(self.asked) else f"{self.asked} ({self.hash[:9]})"


class Repository(NamedTuple):
    """A git repository and the folder of its working tree."""

    root: Path

    @classmethod
    def here(cls) -> Repository:
        """The one of the current folder. Raises `WorktreeError`."""
        return cls(Path(_git(Path.cwd(), "rev-parse", "--show-toplevel")).resolve())

    def commit(self, asked: str) -> Commit:
        """Raises `WorktreeError` if there is no such commit."""
        try:
            found = "" if asked.startswith("-") else _git(self.root, "rev-parse", "--verify", f"{asked}^{{commit}}")
        except WorktreeError:
            found = ""
        if not found:
            raise WorktreeError(f"no commit {asked!r} in {self.root}; a clone without history has to fetch it first")
        return Commit(asked, found)

    @property
    def has_changes(self) -> bool:
        """True if tracked files differ from the last commit."""
        return bool(_git(self.root, "status", "--porcelain", "--untracked-files=no"))

    def holds(self, path: str | Path) -> bool:
        """True of a path of the working tree, but for what is installed in it."""
        place = Path(path).resolve()
        return place.is_relative_to(self.root) and not {"site-packages", "dist-packages"} & set(place.parts)

    def moved(self, folder: str | Path, tree: Path) -> str:
        """The folder's place in a worktree; a folder that is not of the repository stays."""
        place = Path(folder).resolve()
        return str(tree / place.relative_to(self.root)) if self.holds(place) else str(place)


@contextlib.contextmanager
def worktrees(repository: Repository, *commits: Commit) -> Iterator[tuple[Path, ...]]:
    """While entered there is a worktree of each commit. Raises `WorktreeError`."""
    parent = Path(tempfile.gettempdir()).resolve()
    if repository.holds(parent):
        raise WorktreeError(f"temporary files go to {parent}, in the repository itself; set TMPDIR to another folder")
    folder = Path(tempfile.mkdtemp(prefix="cs336-tui-gate-", dir=parent))
    words = [sys.executable, "-I", "-S", __file__, str(repository.root), str(folder), *(each.hash for each in commits)]
    holder = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if (said := holder.stdout.readline().strip()) != _READY:
            raise WorktreeError(said or "the process that holds the worktrees ended")
        yield tuple(folder / str(number) for number in range(len(commits)))
    finally:
        holder.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            holder.wait(_ENDS_IN_S)
        holder.stdout.close()


_READY = "ready"


def hold(root: Path, folder: Path, hashes: Sequence[str]) -> None:
    """Make the worktrees, say so, and remove them at the end of standard input. No hook of the user's runs."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    try:
        for number, commit in enumerate(hashes):
            _git(root, "worktree", "add", "--detach", "--quiet", str(folder / str(number)), commit)
        print(_READY, flush=True)
        sys.stdin.read()
    except (WorktreeError, OSError) as error:
        with contextlib.suppress(OSError):
            print(error, flush=True)
    for _ in range(_TRIES):  # while a process that is about to end still writes there
        for number in range(len(hashes)):
            with contextlib.suppress(WorktreeError):
                _git(root, "worktree", "remove", "--force", "--force", str(folder / str(number)))
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists() and str(folder) not in _git(root, "worktree", "list", "--porcelain"):
            return
        time.sleep(0.1)


def _git(folder: Path, *words: str) -> str:
    """The output of a git command. Raises `WorktreeError` with the last line of its errors."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_CALL}
    try:
        done = subprocess.run(
            ["git", "-c", f"core.hooksPath={os.devnull}", "-C", str(folder), *words],
            capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except OSError as error:
        raise WorktreeError(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        raise WorktreeError(f"git {words[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout.strip()


if __name__ == "__main__":
    hold(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
