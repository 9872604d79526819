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
from typing import Any, NamedTuple

_READY, _TRIES = "ready", 50


class WorktreeError(ValueError):
    """The repository cannot give these commits; one line says why."""


class Repository(NamedTuple):
    """A git repository, by the folder of its working tree."""

    root: Path

    @classmethod
    def here(cls) -> Repository:
        """The one of the current folder. Raises `WorktreeError`."""
        return cls(Path(cls(Path.cwd()).git("rev-parse", "--show-toplevel")).resolve())

    def git(self, *words: str) -> str:
        """The output of a git command, of which no hook runs. Raises `WorktreeError` with the last line of errors."""
        # Git sets variables for its hooks, with which a command here would write into the user's index.
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "CONFIG" in name}
        env["GIT_OPTIONAL_LOCKS"] = "0"
        command = ["git", "-c", f"core.hooksPath={os.devnull}", "-C", str(self.root), *words]
        try:
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=env)
        except OSError as error:
            raise WorktreeError(f"git cannot be run: {error.strerror}") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise WorktreeError(f"git {words[0]}: {(lines or ['failed'])[-1]}")
        return os.fsdecode(done.stdout).strip()

    def commit(self, asked: str) -> str:
        """The hash of a commit. Raises `WorktreeError` if there is no such commit."""
        with contextlib.suppress(WorktreeError):
            if not asked.startswith("-"):
                return self.git("rev-parse", "--verify", f"{asked}^{{commit}}")
        raise WorktreeError(f"no commit {asked!r} in {self.root}; a clone without history has to fetch it first")

    def holds(self, path: str | Path) -> bool:
        """True of a path of the working tree, but for what is installed in it."""
        place = Path(path).resolve()
        return place.is_relative_to(self.root) and not {"site-packages", "dist-packages"} & set(place.parts)

    def moved(self, folder: str | Path, tree: Path) -> str:
        """The folder's place in a worktree; a folder that is not of the repository stays."""
        place = Path(folder).resolve()
        return str(tree / place.relative_to(self.root) if self.holds(place) else place)

    @contextlib.contextmanager
    def worktrees(self, *commits: str) -> Iterator[tuple[Path, ...]]:
        """While entered there is a worktree of each commit. Raises `WorktreeError`."""
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        try:
            parent = Path(tempfile.gettempdir()).resolve()
            if self.holds(parent):
                raise WorktreeError(f"temporary files go to {parent}, in the repository; set TMPDIR to another folder")
            folder = Path(tempfile.mkdtemp(prefix="cs336-tui-gate-", dir=parent))
            command = [sys.executable, "-I", "-S", __file__, str(self.root), str(folder), *commits]
            try:
                holder = subprocess.Popen(command, text=True, start_new_session=True, **streams)
            except OSError:
                folder.rmdir()
                raise
        except OSError as error:
            raise WorktreeError(f"no worktree can be made: {error}") from None
        with holder:
            if (said := holder.stdout.readline().strip() if holder.stdout else "") != _READY:
                raise WorktreeError(said or "the process that holds the worktrees ended")
            yield tuple(folder / str(number) for number in range(len(commits)))


def hold(repository: Repository, folder: Path, commits: Sequence[str]) -> None:
    """Make the worktrees, say so, and remove them at the end of standard input."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    trees = [str(folder / str(number)) for number in range(len(commits))]
    try:
        for tree, commit in zip(trees, commits, strict=True):
            repository.git("worktree", "add", "--detach", "--quiet", tree, commit)
        print(_READY, flush=True)
        sys.stdin.read()
    except (WorktreeError, OSError) as error:
        with contextlib.suppress(OSError, UnicodeError):
            print(error, flush=True)
    for _ in range(_TRIES):  # while a process that is about to end still writes there
        for tree in trees:
            with contextlib.suppress(WorktreeError):
                repository.git("worktree", "remove", "--force", "--force", tree)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(WorktreeError):
            if not folder.exists() and str(folder) not in repository.git("worktree", "list", "--porcelain"):
                return
        time.sleep(0.1)


if __name__ == "__main__":
    hold(Repository(Path(sys.argv[1])), Path(sys.argv[2]), sys.argv[3:])
