"""Settings: read with what is wrong by line and key, written with comments, changed without losing any; and
`cs336-tui config`, which writes the file, reads and changes single settings, and refuses what there is not."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.cli.main import cli
from cs336_tui.config.settings import (
    KEYS,
    SettingError,
    Settings,
    changed,
    described,
    read_settings,
    save_setting,
    settings_path,
    template,
    write_template,
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_without_a_file_every_setting_has_its_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings_path() == tmp_path / "cs336-tui" / "config.toml"
    found = read_settings()
    assert (found.settings, found.problems, found.lines) == (Settings(), (), {})


def test_the_template_names_every_setting_and_changes_none(tmp_path: Path) -> None:
    path = write_template(tmp_path / "deep" / "config.toml")
    assert read_settings(path).settings == Settings()
    assert read_settings(path).problems == ()
    for key in KEYS:
        assert f"# {described()[key].about}" in path.read_text()
    with pytest.raises(SettingError, match="there already"):
        write_template(path)


def test_the_template_with_its_comments_taken_away_holds_the_defaults(tmp_path: Path) -> None:
    text = "\n".join(
        line.removeprefix("# ") if " = " in line and line.count(" ") < 5 else line for line in template().splitlines()
    )
    found = read_settings(written(tmp_path, text))
    assert found.problems == ()
    assert found.settings.keymap == {"app.run": "r"}
    assert found.settings.preset == "quick"
    assert found.lines.keys() == {*KEYS, "keymap.app.run"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# a\n\ntheme = 3", "config.toml line 3, theme: 3: expected a text in quotes"),
        ("refresh = 99", "config.toml line 1, refresh: 99: expected 0.2 to 30"),
        ("refresh = true", "config.toml line 1, refresh: True: expected a number"),
        ("low_bandwidth = 1", "config.toml line 1, low_bandwidth: 1: expected true or false"),
        ('columns = "size"', 'config.toml line 1, columns: \'size\': expected a list as ["size", "mean"]'),
        ("columns = [1]", 'config.toml line 1, columns: (1,): expected a list as ["size", "mean"]'),
        ("[keymap]\n'app.run' = 1", "config.toml line 1, keymap: {'app.run': 1}: expected a table"),
        ('a = 1\n"colour" = "x"', "config.toml line 2, colour: no such setting; expected one of theme, preset"),
        ("theme = 'a\nb = 1", "config.toml line 2, b: not TOML: "),
    ],
)
def test_what_is_wrong_is_told_by_line_and_key_and_has_its_default(tmp_path: Path, text: str, problem: str) -> None:
    found = read_settings(written(tmp_path, text))
    assert found.settings == Settings()
    assert any(each.startswith(problem) for each in found.problems), found.problems
    assert not any("\n" in each for each in found.problems)


def test_a_setting_takes_the_place_of_its_comment_and_later_of_its_value(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for theme in ("cs336-light", "high-contrast"):
        save_setting("theme", theme, path)
        assert read_settings(path).settings.theme == theme
    save_setting("keymap.app.run", "f5", path)
    save_setting("columns", ("size", "mean"), path)
    text = path.read_text()
    comments = [line for line in template().splitlines() if line.startswith("#")]
    gone = [line for line in comments if line not in text.splitlines()]
    assert gone == ['# theme = "cs336-dark"', "# columns = []", '# "app.run" = "r"']
    found = read_settings(path)
    assert found.settings == Settings(theme="high-contrast", keymap={"app.run": "f5"}, columns=("size", "mean"))


def test_a_list_over_several_lines_is_replaced_whole_and_a_key_of_a_table_is_not_taken_for_a_setting() -> None:
    text = 'columns = [\n  "a",  # one\n  "b",\n]\n# of mine\ntheme = "x"\n'
    assert changed(text, "columns", ("c",)) == 'columns = ["c"]\n# of mine\ntheme = "x"\n'
    table = '[keymap]\ntheme = "f5"\n'
    assert tomllib.loads(changed(table, "theme", "x")) == {"theme": "x", "keymap": {"theme": "f5"}}


def test_a_file_that_is_no_toml_is_left_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, "theme = 'x\n")
    with pytest.raises(SettingError, match="line 1"):
        save_setting("theme", "y", path)
    assert path.read_text() == "theme = 'x\n"


def test_a_link_stays_one(tmp_path: Path) -> None:
    kept = written(tmp_path, "# mine\n")
    link = tmp_path / "link.toml"
    link.symlink_to(kept)
    save_setting("theme", "x", link)
    assert link.is_symlink()
    assert kept.read_text().startswith('theme = "x"') or "# mine" in kept.read_text()


_VALUES = {
    "theme": st.text(max_size=8),
    "preset": st.text(max_size=8),
    "refresh": st.floats(0.2, 30),
    "low_bandwidth": st.booleans(),
    "columns": st.lists(st.text(max_size=5), max_size=3).map(tuple),
    "export_format": st.text(max_size=5),
    "keymap.app.run": st.text(max_size=5),
    "keymap.queue.skip": st.text(max_size=5),
}
_LINES = st.sampled_from(
    ["# note", "", 'theme = "a" # why', "refresh = 3", "[keymap]", '"app.run" = "x"', "# columns = []"]
)


@given(st.lists(_LINES, max_size=6), st.lists(st.sampled_from(list(_VALUES)), max_size=5), st.data())
def test_what_was_set_is_read_back_and_nothing_else_changes(
    lines: list[str], keys: list[str], data: st.DataObject
) -> None:
    text = "\n".join(lines)
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    for key in keys:
        value = data.draw(_VALUES[key])
        text = changed(text, key, value)
        outer, _, inner = key.partition(".")
        if inner:
            before.setdefault(outer, {})[inner] = value
        else:
            before[key] = list(value) if isinstance(value, tuple) else value
        assert tomllib.loads(text) == before
    assert [line for line in lines if line == "# note"] == [line for line in text.splitlines() if line == "# note"]


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "cs336-tui" / "config.toml"


def said(*words: str) -> str:
    """The output of `cs336-tui config`."""
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
        (("set", "columns", "size,nothing"), "columns: nothing: did you mean nesting"),
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
