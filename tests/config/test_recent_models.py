"""Recently run models and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cs336_tui.config.presets import MOST_RECENT, RecentModel, models_in, recent_models, remember
from cs336_tui.config.sweep import Sweep


def named(name: str, *path: str, **args: str) -> RecentModel:
    return RecentModel(model=name, args=tuple(args.items()), path=path)


def test_a_sweep_brings_its_own_models_with_what_they_are_run_with() -> None:
    sweep = Sweep(
        models=("reference", "my.model:LM", "x:y"),
        model_args=(("dropout", "0"),),
        model_path=("/repo",),
        annotations=(("softmax", "my.model:softmax"),),
    )
    first, second = models_in(sweep)
    assert first == RecentModel(
        model="my.model:LM",
        args=(("dropout", "0"),),
        path=("/repo",),
        annotations=(("softmax", "my.model:softmax"),),
    )
    assert second.model == "x:y"
    assert models_in(Sweep()) == ()


def test_the_newest_comes_first_once_and_no_more_than_so_many_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "state" / "recent.json"
    assert recent_models(file) == ()
    for number in range(MOST_RECENT + 3):
        remember([named(f"m:M{number}", "/repo")], file)
    assert [model.model for model in recent_models(file)] == [f"m:M{n}" for n in range(MOST_RECENT + 2, 2, -1)]
    kept = remember([named("m:M5", "/repo", dropout="0.1")], file)
    assert kept == recent_models(file)
    assert kept[0] == named("m:M5", "/repo", dropout="0.1")
    assert [model.model for model in kept].count("m:M5") == 1, "the latest arguments take the place of the earlier"
    assert remember([named("m:M5", "/elsewhere")], file)[1] == kept[0], "another folder is another model"
    assert [path.name for path in file.parent.iterdir()] == ["recent.json"], "no draft is left"


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"model": 1}', b"\xff\xfe", b'[{"args": []}]'])
def test_a_corrupt_file_is_no_more_than_an_empty_one(text: bytes, tmp_path: Path) -> None:
    file = tmp_path / "recent.json"
    file.write_bytes(text)
    assert recent_models(file) == ()
    assert remember([named("m:M")], file) == (named("m:M"),)
    assert recent_models(file) == (named("m:M"),)


def test_a_file_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    assert remember([named("m:M")], tmp_path / "taken" / "recent.json") == (named("m:M"),)
    (tmp_path / "folder.json").mkdir()
    assert remember([named("m:M")], tmp_path / "folder.json") == (named("m:M"),)
    assert recent_models(tmp_path / "folder.json") == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.json", "taken"]
