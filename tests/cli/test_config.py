"""`cs336-tui config`: writes the file, reads and changes single settings, refuses what there is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cs336_tui.cli.main import cli
from cs336_tui.config.settings import KEYS, Settings, read_settings, template


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "cs336-tui" / "config.toml"


def said(*words: str) -> str:
    result = CliRunner().invoke(cli, ["config", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_file_is_written_once_and_then_shown(path: Path) -> None:
    assert said("--path") == f"{path}\n"
    assert not path.exists()
    assert said() == f"wrote {path}\n"
    assert path.read_text() == template()
    assert [line.partition(" = ")[0] for line in said().splitlines()[1:]] == list(KEYS)
    assert path.read_text() == template()


def test_single_settings_are_set_and_read_back(path: Path) -> None:
    values = {
        "theme": "cs336-light",
        "preset": "2026/warmup",
        "refresh": "5.0",
        "low_bandwidth": "true",
        "columns": "size,mean",
        "export_format": "latex",
        "keymap.app.run": "f5",
    }
    for key, value in values.items():
        said("set", key, value)
    assert {key: said("get", key).strip() for key in values} == values | {"columns": '["size", "mean"]'}
    assert read_settings(path).settings == Settings(
        "cs336-light", "2026/warmup", 5.0, True, ("size", "mean"), "latex", {"app.run": "f5"}
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "theme", "nowhere"), "theme: nowhere: expected one of colour-blind-safe"),
        (("set", "preset", "nowhere"), "preset: "),
        (("set", "refresh", "fast"), "refresh fast: expected a number"),
        (("set", "refresh", "99"), "refresh 99: expected 0.2 to 30"),
        (("set", "low_bandwidth", "maybe"), "expected true or false"),
        (("set", "columns", "size,nothing"), "columns: nothing: expected some of size"),
        (("set", "export_format", "docx"), "export_format: docx: expected one of markdown"),
        (("set", "keymap", "x"), "expected one of"),
        (("set", "keymap.app.run", "x"), "x is taken by queue.skip"),
        (("set", "colour", "x"), "colour: expected one of theme"),
        (("get", "colour"), "no such setting"),
        (("get", "keymap.app.run"), "not moved"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line_and_nothing_is_written(
    path: Path, words: tuple[str, ...], why: str
) -> None:
    result = CliRunner().invoke(cli, ["config", *words])
    assert result.exit_code != 0
    assert why in result.output
    assert not path.exists()


def test_what_is_wrong_in_the_file_is_told_beside_the_settings_in_force(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('refresh = "x"\ntheme = "cs336-light"\n')
    result = CliRunner().invoke(cli, ["config"])
    assert result.exit_code == 1
    assert "config.toml line 1, refresh: 'x': expected a number" in result.stderr
    assert 'theme = "cs336-light"' in result.stdout
