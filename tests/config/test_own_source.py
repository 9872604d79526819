"""A name of a user's own is looked for in the source of its module, which is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.own_source import why_not_there
from cs336_tui.config.spec import SpecError
from cs336_tui.config.tuned_sweep import search_of

SOURCE = """
from torch import nn
import os.path, json as text
class LM(nn.Module): ...
def make(): ...
async def wait(): ...
a, (b, *c) = 1, (2, 3)
small: int = 4
with open("x") as handle: ...
try:
    from fast import attend
except ImportError as problem:
    def attend(): ...
match a:
    case {"k": [first, *others]} as whole: ...
raise SystemExit("imported")
"""
BOUND = "nn os text LM make wait a b c small handle attend problem first others whole LM.of make.x.y".split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pkg").mkdir()
    for name in ("mine", "pkg/__init__", "pkg/model"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / "pkg" / "deep.py").write_text("class Deep: ...")
    return tmp_path


@pytest.mark.parametrize("name", BOUND)
def test_what_a_module_binds_may_be_there(name: str, folder: Path) -> None:
    assert why_not_there(f"mine:{name}", [str(folder)]) == ""
    assert why_not_there(f"pkg.model:{name}", [str(folder)]) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:nope", "mine has no nope ({}/mine.py)"),
        ("mine:lm.of", "mine has no lm ({}/mine.py); did you mean LM?"),
        ("mine:path", "mine has no path ({}/mine.py)"),
        ("pkg:Deep", "pkg has no Deep ({}/pkg/__init__.py); it is in pkg.deep: write pkg.deep:Deep"),
    ],
)
def test_what_it_does_not_bind_is_not(name: str, said: str, folder: Path) -> None:
    assert why_not_there(name, ["/nowhere", str(folder)]) == said.format(folder)


@pytest.mark.parametrize(
    "source",
    [
        "from other import *",
        "def __getattr__(name): ...",
        "globals()['nope'] = 1",
        "import sys; setattr(sys.modules[__name__], 'no' + 'pe', 1)",
        "exec(open('x').read())",
        "def broken(:",
        "\0",
    ],
)
def test_names_that_a_module_makes_as_it_runs_may_be_there(source: str, folder: Path) -> None:
    (folder / "mine.py").write_text(source)
    assert why_not_there("mine:nope", [str(folder)]) == ""


@pytest.mark.parametrize("name", ["absent:nope", "pkg.absent:nope", "pkg:deep", "json:nope", "numpy:nope"])
def test_modules_that_are_not_in_the_folders_and_modules_of_a_package_may_be_there(name: str, folder: Path) -> None:
    assert why_not_there(name, [str(folder)]) == ""


@pytest.mark.parametrize(
    "choices",
    [
        {"models": ("mine:nope",)},
        {"attentions": ("naive", "mine:nope")},
        {"optimizers": ("mine:nope",)},
        {"loss": "mine:nope"},
        {"ranks": (2,), "parallels": ("mine:nope:25MB",)},
        {"models": ("mine:LM",), "annotations": (("softmax", "mine:nope"),)},
    ],
)
def test_a_sweep_refuses_code_that_cannot_be_there(choices: dict[str, Sequence[str]], folder: Path) -> None:
    with pytest.raises(SpecError, match=r" mine:nope: mine has no nope \(.*mine.py\)"):
        sweep_from(model_path=(str(folder),), passes=("train-step",), **choices)


def test_a_search_refuses_code_that_cannot_be_there(folder: Path) -> None:
    start = sweep_from(passes=("train-step",))
    over, path = ["attention=naive,mine:nope"], (str(folder),)
    with pytest.raises(SpecError, match="attention mine:nope: mine has no nope"):
        search_of(start, over, "step", 600.0, {}, model_path=path)
