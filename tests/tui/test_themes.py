"""Themes: the bundled ones are readable and complete, a user's own are checked and never break the app."""

import contextlib
import os
import re
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import ComposeResult
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme
from textual.widgets import Input, OptionList

import cs336_tui
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.preferences import VARIABLE_DEFAULTS, ThemeError, ThemeSet, load_bundled, load_user, parse_theme
from tests.terminal import Terminal
from tests.tui.configuring import Host

BUNDLED = {theme.name: theme for theme in load_bundled().themes}
IN_COLOUR = [theme for theme in BUNDLED.values() if not theme.ansi]
BACKGROUNDS = ("background", "surface", "panel")
PHASES = (*(f"phase-{n}" for n in range(1, 5)), "sync", "phase-5")
TEXTS = ("foreground", "primary", "secondary", "accent", "success", "warning", "error", *VARIABLE_DEFAULTS)
ROOT = Path(cs336_tui.__file__).parents[1]

NEEDED = "background surface panel foreground primary secondary accent success warning error".split()
COLOURS = "\n".join(f'{name} = "#336699"' for name in NEEDED)
GOOD = f"[colors]\n{COLOURS}\n"


def colour(theme: Theme, variable: str) -> Color:
    variables = theme.to_color_system().generate() | theme.variables
    return Color.parse(variables[variable])


def luminance(color: Color) -> float:
    """Relative luminance of WCAG 2.1."""

    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.03928 else float(((share + 0.055) / 1.055) ** 2.4)

    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)


def contrast(one: Color, other: Color) -> float:
    """Contrast ratio of WCAG 2.1, 1 to 21."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


class Everything(Host):
    """Widgets whose styles use a theme's variables."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(ConfigurePane())
        self.register_theme(theme)
        self.theme = theme.name

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield Input("text")
        yield OptionList("one", "two")


def test_the_bundled_themes_are_there_and_sound() -> None:
    assert load_bundled().problems == ()
    assert set(BUNDLED) == {"cs336-dark", "cs336-light", "high-contrast", "colour-blind-safe", "terminal"}
    assert not BUNDLED["cs336-light"].dark


@pytest.mark.parametrize("name", [*BUNDLED, "textual-light", "nord", "ansi-dark"])
async def test_every_style_resolves_under_every_theme(name: str) -> None:
    app = Everything((BUNDLED | BUILTIN_THEMES)[name])
    async with app.run_test(size=(60, 30)) as pilot:
        await pilot.press("tab")
        app.action_command_palette()
        await pilot.pause()
        app.notify("a toast")
        await pilot.pause()


@pytest.mark.parametrize("theme", IN_COLOUR, ids=lambda theme: theme.name)
def test_text_stands_out_from_every_background(theme: Theme) -> None:
    wanted = 7.0 if theme.name == "high-contrast" else 4.5
    for background in BACKGROUNDS:
        for text in TEXTS:
            found = contrast(colour(theme, text), colour(theme, background))
            assert found >= wanted, f"{text} on {background}: {found:.2f}"


@pytest.mark.parametrize("theme", IN_COLOUR, ids=lambda theme: theme.name)
def test_muted_text_stands_out_too(theme: Theme) -> None:
    given_as = (theme.to_color_system().generate() | theme.variables)["text-muted"]
    for name in BACKGROUNDS:
        background = colour(theme, name)
        automatic = re.fullmatch(r"auto (\d+)%", given_as)
        text = background.get_contrast_text(int(automatic[1]) / 100) if automatic else Color.parse(given_as)
        assert contrast(background + text, background) >= 4.5, name


@pytest.mark.parametrize(
    ("one", "other"),
    [("ok", "bad"), ("caution", "bad"), ("ok", "caution"), ("warmup", "measured"), *pairwise(PHASES)],
)
def test_what_colour_blind_eyes_must_tell_apart_differs_in_lightness(one: str, other: str) -> None:
    theme = BUNDLED["colour-blind-safe"]
    assert contrast(colour(theme, one), colour(theme, other)) >= 1.5


def test_the_terminals_own_colours_are_all_that_the_terminal_theme_sends() -> None:
    script = "from cs336_tui.tui.app import Cs336App; Cs336App(theme='terminal').run()"
    with contextlib.closing(Terminal([sys.executable, "-c", script], columns=110, rows=32)) as terminal:
        terminal.until("Configure")
        terminal.send("\t\t ", seen="choose at least one")
        terminal.send(":", seen="Search for commands")
        terminal.send("quit", seen="asks while something runs")
        terminal.send("\x1b", seen=lambda screen: "Search for commands" not in screen and "asks while" not in screen)
        terminal.send("?", seen="Help")
        terminal.send("\x11")
        assert terminal.wait() == 0
        written = bytes(terminal.raw)
    assert re.search(rb"\x1b\[(?:\d+;)*3[0-7][;m]", written), "no colour at all: the search below would prove nothing"
    assert re.findall(rb"\x1b\[(?:\d+;)*[34]8[;:][25][;:][^m]*m", written) == []


def test_a_persons_theme_is_named_after_its_file_and_takes_what_it_leaves_out_from_its_colours(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD + '[variables]\nok = "#00ff00"\ntext-muted = "auto 70%"\n')
    found = load_user(tmp_path)
    assert found.problems == ()
    (theme,) = found.themes
    assert (theme.name, theme.dark, theme.ansi) == ("mine", True, False)
    assert theme.variables["ok"] == "#00ff00"
    assert theme.variables["bad"] == theme.error == "#336699"
    assert theme.variables.keys() >= VARIABLE_DEFAULTS.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dark = maybe", "not TOML: Invalid value (at line 1"),
        (GOOD + "[colors]\n", "not TOML:"),
        ("shade = 1\n" + GOOD, "unknown key 'shade': expected name, dark, ansi, colors, variables"),
        (GOOD.replace("panel", "pannel"), "unknown colour 'pannel': expected background, surface, panel"),
        (GOOD.replace('panel = "#336699"\n', ""), "colors.panel is missing"),
        ("", "colors.background is missing"),
        (GOOD.replace('panel = "#336699"', 'panel = "#33669"'), "colors.panel '#33669': expected \"#rrggbb\""),
        (GOOD.replace('panel = "#336699"', "panel = 336699"), "colors.panel 336699: expected"),
        (GOOD.replace('panel = "#336699"', 'panel = "ansi_red"'), "colors.panel 'ansi_red': expected"),
        ("ansi = true\n" + GOOD, "colors.background '#336699': expected ansi_default"),
        ("ansi = 1\n" + GOOD, "ansi 1: expected true or false"),
        ("name = 7\n" + GOOD, "name 7: expected text in quotes"),
        ('name = "a b"\n' + GOOD, "name 'a b': expected 1 to 40 letters"),
        ('name = "cs336-dark"\n' + GOOD, "name 'cs336-dark' is taken"),
        ('name = "nord"\n' + GOOD, "name 'nord' is taken"),
        ("colors = 5", "colors 5: expected a table"),
        (GOOD + '[variables]\nphase-6 = "#000000"', "unknown variable 'phase-6': expected warmup, measured, phase-1"),
        (GOOD + '[variables]\nok = "greenish"', "variables.ok 'greenish': expected"),
        (GOOD + '[variables]\nok = "#00ff00 50%"', "variables.ok '#00ff00 50%': expected"),
        (GOOD + '[variables]\nborder = "$primary"', "variables.border '$primary': expected"),
        (GOOD + '[variables]\nlink-style = "loud"', "variables.link-style 'loud': expected words of"),
        *((text, "") for text in (
            "dark = [1]", "variables = '" + "x" * 2**20 + "'", "a=" + "[" * 5000, "a=" + "{a=" * 5000,
            ".".join("a" * 60_000), "name = " + "9" * 5000, f"{GOOD}ansi = nan",
        )),
    ],
)  # fmt: skip
def test_a_broken_theme_is_left_out_at_once_with_one_line_that_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "broken.toml").write_text(text)
    (tmp_path / "good.toml").write_text(GOOD)
    began = time.perf_counter()
    found = load_user(tmp_path)
    assert time.perf_counter() - began < 1
    assert [theme.name for theme in found.themes] == ["good"]
    (problem,) = found.problems
    assert problem.startswith("broken.toml: ")
    assert said in problem
    assert "\n" not in problem


def test_of_two_themes_of_one_name_the_first_stays_and_no_folder_means_none(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text('name = "a"\n' + GOOD)
    found = load_user(tmp_path)
    assert [theme.name for theme in found.themes] == ["a"]
    assert found.problems == ("b.toml: name 'a' is taken by another theme",)
    assert load_user(tmp_path / "nowhere") == ThemeSet((), ())


@pytest.mark.timeout(20)
def test_files_that_cannot_be_read_are_told_not_raised(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    *problems, of_pipe = load_user(tmp_path).problems
    assert [problem.partition(":")[0] for problem in problems] == ["binary.toml", "folder.toml"]
    assert all("cannot be read" in problem for problem in problems)
    assert of_pipe == "pipe.toml: cannot be read: not a regular file"


@given(st.text())
def test_any_text_is_a_theme_or_a_theme_error(text: str) -> None:
    with pytest.raises(ThemeError):
        parse_theme(text, "any")


@given(
    line=st.integers(0, 30),
    key=st.sampled_from(["name", "ansi", "panel", "ok", "text", "link-style", "border"]),
    value=st.one_of(
        st.text(max_size=8).map(repr), st.integers().map(str), st.just("true"), st.just('"#12345678"'), st.just("[1]")
    ),
)
def test_a_theme_that_loads_can_be_used(line: int, key: str, value: str) -> None:
    lines = (ROOT / "themes" / "cs336-dark.toml").read_text().splitlines()
    lines.insert(line, f"{key} = {value}")
    with contextlib.suppress(ThemeError):
        assert parse_theme("\n".join(lines), "any").to_color_system().generate()
