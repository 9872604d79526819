"""Help lists the choices that a command really takes."""

from __future__ import annotations

from click.testing import CliRunner

from cs336_tui.cli.ab import DEFAULTS
from cs336_tui.cli.main import cli
from cs336_tui.export.writeups import LAYOUTS


def help_of(command: str) -> str:
    """Help of a command as one line, without its line breaks."""
    done = CliRunner().invoke(cli, [command, "--help"])
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_ab_names_its_own_defaults_and_offers_nothing_that_it_refuses() -> None:
    said = help_of("ab")
    assert f"[default: {DEFAULTS['steps']}]" in said.partition("--steps N|TIME ")[2].partition("--edition")[0]
    assert (
        f"[default: {','.join(map(str, DEFAULTS['warmups']))}]"
        in said.partition("--warmup N|TIME ")[2].partition("--st")[0]
    )
    assert f"[default: {','.join(DEFAULTS['passes'])}]" in said.partition("--pass LIST")[2].partition("--precision")[0]
    for refused in ("auto[:MAX]", "--interval"):
        assert refused not in said


def test_an_interval_is_said_to_be_whole() -> None:
    assert "whole width of the interval, so 2% is ± 1 %" in help_of("bench")


def test_export_lists_every_layout_with_what_it_is() -> None:
    _, _, listed = help_of("export").partition("Layouts: ")
    for name, layout in LAYOUTS.items():
        # A name too long for its column has a line of its own, and a word may be broken at its hyphens or commas.
        assert f"{name}{layout.about}".replace(" ", "") in listed.replace(" ", ""), name
