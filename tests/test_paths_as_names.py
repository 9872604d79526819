"""A path given in place of a model's name: the message says the exact name to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.config.spec import SpecError
from tests.samples import a_spec


def refusal(name: str) -> str:
    with pytest.raises(SpecError) as refused:
        a_spec(model=name)
    return str(refused.value).removeprefix(f"model {name}: that is a path; ")


def test_of_a_repository_that_is_no_package_the_module_alone_is_named(tmp_path: Path) -> None:
    """nanoGPT's train.py says ``from model import GPT``, so that nanoGPT.model:GPT would be another module."""
    (repository := tmp_path / "nanoGPT").mkdir()
    (file := repository / "model.py").write_text("")
    assert refusal(f"{file}:GPT") == f"write model:GPT and give the folder: --model-path {repository}"
    assert refusal(f"{repository}/model:GPT") == f"write model:GPT and give the folder: --model-path {repository}"


def test_of_a_package_the_folder_above_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "minGPT" / "mingpt").mkdir(parents=True)
    for file in ("__init__.py", "model.py"):
        (package / file).write_text("")
    above = f"write mingpt.model:GPT and give the folder: --model-path {package.parent}"
    assert refusal(f"{package}/model.py:GPT") == above
    monkeypatch.chdir(package.parent)
    assert refusal("mingpt/model.py:GPT") == "write mingpt.model:GPT"


def test_a_file_in_the_current_folder_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("")
    assert refusal("./model.py:GPT") == "write model:GPT"
