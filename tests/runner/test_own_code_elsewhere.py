"""Looks for a user's own code without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cs336_tui.runner.machine import lacking_code


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "own" / "deep").mkdir(parents=True)
    for name in ("__init__", "model", "deep/__init__", "deep/layer"):
        (tmp_path / "own" / f"{name}.py").write_text("class Net: ...\nclass Norm: ...\nraise SystemExit('imported')\n")
    return str(tmp_path)


def test_code_that_is_there_lacks_nothing(folder: str) -> None:
    names = ("own.model:Net", "own.deep.layer:Norm.fast", "own:Net", "msgspec.json:encode")
    assert list(lacking_code(names, [folder])) == []
    assert "own" not in sys.modules


@pytest.mark.parametrize(
    ("name", "what"),
    [("own.other:Net", "own.other"), ("other.model:Net", "other"), ("own.model.more:Net", "own.model.more")],
)
def test_a_module_that_is_not_there_is_named(folder: str, name: str, what: str) -> None:
    assert list(lacking_code([name], [folder])) == [f"{what}: no such module in {folder} or what is installed"]


def test_a_name_that_its_module_does_not_have_is_named(folder: str) -> None:
    (said,) = lacking_code(["own.model:net", "own.model:Net"], [folder])
    assert said == f"own.model has no net ({folder}/own/model.py); did you mean Net?"


def test_a_folder_that_is_not_there_is_named(folder: str) -> None:
    assert list(lacking_code(["own.model:Net"], [folder, "/nowhere"])) == ["the folder /nowhere is not there"]
