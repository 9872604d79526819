"""Which source a user's code is of: its hash, and the revision of the git repository that has it."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from cs336_tui.spec import RunSpec
from cs336_tui.variants import is_imported
from cs336_tui.workload.imported.finding import find

_GIT_TIMEOUT_S = 3.0
_HASH_LETTERS = 12
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Environment variables that git sets for its hooks."""


def revisions_of(spec: RunSpec) -> str | None:
    """Of all that a spec's step takes from the user, model first; None where it takes nothing."""
    names = [spec.model, spec.attention, spec.loss, *([spec.optimizer] if spec.pass_ == "train-step" else [])]
    found = [revision_of(find(name, spec.model_path)) for name in names if is_imported(name)]
    return "; ".join(dict.fromkeys(found)) or None


def revision_of(thing: Callable[..., Any]) -> str:
    """``model.py sha256 1a2b3c4d5e6f, git 0a1b2c3 with uncommitted changes``; no git where git does not have it."""
    owner = getattr(thing, "__self__", None)  # of the apply of an autograd function
    try:
        file = inspect.getsourcefile(owner if isinstance(owner, type) else inspect.unwrap(thing))
    except TypeError:
        file = None
    if file is None or not Path(file).is_file():
        return "source unknown"
    return _revision(str(Path(file).resolve()))


@lru_cache(maxsize=64)
def _revision(file: str) -> str:
    path = Path(file)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:_HASH_LETTERS]
    git = _git_revision(path)
    return f"{path.name} sha256 {digest}{f', git {git}' if git else ''}"


def _git_revision(file: Path) -> str | None:
    """Short hash of the commit that the file's repository is at; None if git is not there or ignores the file."""
    commit = _git(file.parent, "rev-parse", "--short", "HEAD")
    own = _git(file.parent, "status", "--porcelain", "--ignored", "--untracked-files=all", "--", file.name)
    if not commit or own is None or own.startswith("!!"):
        return None
    dirty = own or _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with uncommitted changes" if dirty else commit


def _git(folder: Path, *words: str) -> str | None:
    """What git says, which only reads; None if it cannot."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
