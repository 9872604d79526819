"""A fresh interpreter: what it says, and the packages that it loads."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def python(code: str, *words: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """A fresh interpreter that has run the code with these words, and ended well."""
    usual = {"capture_output": True, "text": True, "cwd": ROOT}
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, **(usual | options))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def loaded_with(modules: Iterable[str], *suspects: str) -> set[str]:
    """Those of the suspected packages that a fresh interpreter has loaded after importing `modules`."""
    # The answer goes through a descriptor of its own: a module may redirect standard output.
    code = f"""
import importlib, os, sys
answer = os.fdopen(os.dup(1), "w")
for name in {list(modules)!r}:
    importlib.import_module(name)
print("loaded", *({set(suspects)!r} & sys.modules.keys()), file=answer, flush=True)
"""
    result = python(code)
    assert result.stdout.startswith("loaded"), result.stdout + result.stderr
    return set(result.stdout.split()[1:])
