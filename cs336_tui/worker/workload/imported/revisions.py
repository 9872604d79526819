"""The revision of a user's code: the hash of its file, and the commit of the git repository that has it."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported
from cs336_tui.worker.workload.imported.finding import find
from cs336_tui.worker.workload.imported.problems import is_users_file

_GIT_TIMEOUT_S = 3.0
_HASH_LETTERS = 12
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Environment variables that git sets for its hooks."""


def revisions_of(spec: CellSpec, model: nn.Module) -> str | None:
    """Revisions of all user code in a spec's step, model first; None without user code. The named model may only wrap
    classes of other files, so the user's files with classes of its modules follow."""
    names = [spec.model, spec.attention, spec.loss, *([spec.optimizer] if spec.pass_ == "train-step" else [])]
    found = [(name, find(name, spec.model_path)) for name in names if is_imported(name)]
    revisions: list[str] = []
    for name, thing in found:
        revisions.append(revision_of(thing))
        if name == spec.model:
            revisions += [revision_of(kind) for kind in _own_classes(model)]
    return "; ".join(dict.fromkeys(revisions)) or None


def _own_classes(model: nn.Module) -> list[type]:
    """The user's classes among those of its modules and their base classes, the outermost first."""
    kinds = dict.fromkeys(type(module) for module in model.modules())
    classes = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    files = ((kind, getattr(sys.modules.get(kind.__module__), "__file__", None)) for kind in classes)
    return [kind for kind, file in files if file and is_users_file(file, named_only=True)]


def revision_of(thing: Callable[..., Any]) -> str:
    """``model.py sha256 1a2b3c4d5e6f, git 0a1b2c3 with uncommitted changes``; without git if it is not tracked."""
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
    """Short hash of the repository's commit; None without git, or if it ignores the file."""
    commit = _git(file.parent, "rev-parse", "--short", "HEAD")
    own = _git(file.parent, "status", "--porcelain", "--ignored", "--untracked-files=all", "--", file.name)
    if not commit or own is None or own.startswith("!!"):
        return None
    dirty = own or _git(file.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{commit} with uncommitted changes" if dirty else commit


def _git(folder: Path, *words: str) -> str | None:
    """The output of a git command that only reads; None if it fails."""
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
