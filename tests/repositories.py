"""Git repositories with code of a user's own, and all that a command must leave as it was."""

import subprocess
from pathlib import Path

MODEL = """
import time

from torch import nn

{first}

class LM(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size))

    def forward(self, tokens):
        time.sleep({sleep_s})
        return self.layers(tokens)
"""


def git(folder: Path, *words: str) -> str:
    identity = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    )
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout


def commit(folder: Path, name: str, *, sleep_s: float = 0.0, first: str = "", file: str = "my/model.py") -> None:
    """Commit a model whose forward takes so long, and tag it."""
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(MODEL.format(sleep_s=sleep_s, first=first))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", name)
    git(folder, "tag", name)


def make(folder: Path) -> Path:
    """A repository with the commit `base`, and a hook that would leave a trace."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, "base")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {folder.parent}/hook-ran\n")
    hook.chmod(0o755)
    return folder


def everything(folder: Path) -> dict[str, object]:
    """The user's files, the index to its last byte, stash, branches, tags and worktrees."""
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts}
    index = folder / ".git" / "index"
    return {
        "files": files,
        "index": (index.read_bytes(), index.stat().st_mtime_ns),
        "head": (folder / ".git" / "HEAD").read_text(),
        "refs": git(folder, "for-each-ref"),
        "stash": git(folder, "stash", "list"),
        "worktrees": git(folder, "worktree", "list", "--porcelain"),
        "hook": (folder.parent / "hook-ran").exists(),
    }
