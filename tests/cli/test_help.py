"""Help lists the choices that a command really takes; every part of a report can be chosen."""

import json
import re
from itertools import pairwise
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cs336_tui.cli.ab import DEFAULTS
from cs336_tui.cli.help import HEADINGS, Command, under_headings
from cs336_tui.cli.main import COMMANDS, cli
from cs336_tui.cli.reports import REPORT_COMMANDS
from cs336_tui.config.spec import AXES
from cs336_tui.config.variants import RANGES
from cs336_tui.events.gpus import known_gpus
from cs336_tui.events.kernel_report import FUSED
from cs336_tui.events.reports import REPORTS
from cs336_tui.export.reports import _EXPORTS, _FROM_CELLS
from cs336_tui.export.writeups import LAYOUTS
from cs336_tui.tui.tab_list import TABS
from cs336_tui.worker.measure.report import _MAKERS
from tests.commands import COMMAND, DIMS, call
from tests.loading import loaded_with
from tests.samples import DEMO_LOG
from tests.terminal import Terminal
from tools import reference

EVERY = reference.commands()


def is_long(title: str) -> bool:
    command = EVERY[title]
    return isinstance(command, Command) and command.is_long


def help_of(command: str) -> str:
    """All help of a command as one line, without its line breaks."""
    done = CliRunner().invoke(cli, [command, "--help-all" if is_long(f"cs336-tui {command}") else "--help"])
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_ab_names_its_own_defaults_and_offers_nothing_that_it_refuses() -> None:
    said = help_of("ab")
    for begin, end, name in (("--steps N|TIME ", "--edition", "steps"), ("--warmup N|TIME ", "--st", "warmups"),
                             ("--pass LIST", "--precision", "passes")):  # fmt: skip
        usual = DEFAULTS[name] if isinstance(DEFAULTS[name], tuple) else (DEFAULTS[name],)
        assert f"[default: {','.join(map(str, usual))}]" in said.partition(begin)[2].partition(end)[0]
    for refused in ("auto[:MAX]", "--interval"):
        assert refused not in said


def test_the_names_of_gpus_are_listed() -> None:
    listed = CliRunner().invoke(cli, ["fit", "--gpu", "list"])
    assert (listed.exit_code, listed.output.splitlines()) == (0, [gpu.name for gpu in known_gpus()])


def test_an_interval_is_said_to_be_whole() -> None:
    assert "whole width of the interval, so 2% is ± 1 %" in help_of("bench")


def test_export_lists_every_layout_with_what_it_is() -> None:
    _, _, listed = help_of("export").partition("Layouts: ")
    for name, layout in LAYOUTS.items():
        # A name too long for its column has a line of its own, and a word may be broken at its hyphens or commas.
        assert f"{name}{layout.about}".replace(" ", "") in listed.replace(" ", ""), name


@pytest.mark.parametrize("title", EVERY)
def test_every_option_stands_once_under_a_heading(title: str) -> None:
    command = EVERY[title]
    context = click.Context(command, info_name=title)
    found = under_headings(command, context)
    shown = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    assert sorted(each.name or "" for options in found.values() for each in options) == sorted(
        each.name or "" for each in shown
    )
    assert list(found) == [title for title in HEADINGS if title in found]


def test_a_choice_has_its_heading_from_its_declaration() -> None:
    command = EVERY["cs336-tui bench"]
    found = under_headings(command, click.Context(command))
    of_option = {each.opts[0]: title for title, options in found.items() for each in options}
    for axis in AXES.values():
        if axis.option:
            assert of_option[f"--{axis.option}"] == axis.heading


def shown_options(text: str) -> set[str]:
    """The options that help shows, by their first names."""
    return set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("title", [title for title in EVERY if is_long(title)])
def test_help_of_many_options_begins_with_a_page_of_the_first(title: str) -> None:
    words = title.split()[1:]
    first, every = (
        CliRunner().invoke(cli, [*words, flag], prog_name="cs336-tui").output for flag in ("--help", "--help-all")
    )
    own = {each.opts[0] for each in EVERY[title].params if isinstance(each, click.Option) and not each.hidden}
    assert 12 <= len(shown_options(first)) <= 25
    assert {"--size", "--pass", "--help-all"} <= shown_options(first) | ({"--size", "--pass"} - own)
    assert len(shown_options(every)) > 30
    left = len(shown_options(every)) - len(shown_options(first))
    assert f"\n{left} more options: {title} --help-all\n" in first
    assert "more options" not in every


def test_help_of_bench_shows_about_fifteen_options() -> None:
    first = CliRunner().invoke(cli, ["bench", "--help"]).output
    assert len(shown_options(first) - {"--help", "--help-all"}) == 15
    whole = CliRunner().invoke(cli, ["export", "--help"]).output
    assert "--help-all" not in whole
    assert CliRunner().invoke(cli, ["export", "--help-all"]).output == whole


@pytest.mark.parametrize("title", EVERY)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_help_is_plain_text_that_fits_and_uses_the_width(
    title: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = EVERY[title].context_class(EVERY[title], info_name=title).get_help()
    assert "\x1b" not in text
    assert "\xa0" not in text
    assert not re.search(r"\[default: *\n *[^,\]]{1,20}\]", text)  # a short default stays on its line
    longest = max(map(len, text.splitlines()))
    assert longest < width
    if title == "cs336-tui bench":
        assert longest > width - 8


def test_the_commands_stand_in_groups() -> None:
    text = CliRunner().invoke(cli, ["--help-all"]).output
    groups = list(dict.fromkeys(listed.heading for listed in COMMANDS.values() if listed.about))
    assert groups == ["Run", "Results", "Look ahead", "Profile", "Cluster", "Maintain"]
    places = [
        text.index(f"\n{title}:\n") for title in (*groups, "What to run", "How long", "Output", "Session", "Help")
    ]
    assert all(before < after for before, after in pairwise(places))
    for name, listed in COMMANDS.items():
        assert bool(re.search(rf"^  {name} ", text, re.MULTILINE)) == bool(listed.about)


def test_help_on_a_terminal_has_colours_and_none_where_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        terminal = Terminal([COMMAND, "fit", "--help"], columns=100, env=environment)
        try:
            assert terminal.wait() == 0
            assert (b"\x1b[" in terminal.raw) == coloured
            assert "--by [batch|context]" in terminal.text() or b"--by [batch|context]" in terminal.raw
        finally:
            terminal.close()


def test_only_help_loads_its_library() -> None:
    modules = ["cs336_tui.cli.main", "cs336_tui.cli.bench", "cs336_tui.cli.launch"]
    assert loaded_with(modules, "cloup", "click.shell_completion") == set()


@pytest.mark.parametrize("command", ["sessions", "doctor", "compare"])
def test_json_and_its_format_are_one(command: str, tmp_path: Path) -> None:
    more = {"sessions": ["--session-dir", str(tmp_path)], "doctor": ["--code", "json:loads"]}
    folder = more.get(command, [f"{DEMO_LOG}:1", f"{DEMO_LOG}:2"])
    found = [CliRunner().invoke(cli, [command, *folder, *words]) for words in (["--json"], ["--format", "json"])]
    assert found[0].exit_code == 0
    assert found[0].output == found[1].output
    assert json.loads(found[0].output) is not None
    both = CliRunner().invoke(cli, [command, *folder, "--json", "--format", "table"])
    assert (both.exit_code, "contradict" in both.output) == (2, True)


_VALUES = {"--interval": "2%", "--annotate": "softmax=a:b", "--edition": "2026"} | {
    f"--{kind}-arg": "a=b" for kind in ("model", "attention", "optimizer")
}
"""Of options that do not take `1`."""


@pytest.mark.parametrize("title", [title for title in EVERY if " " in title])
def test_every_option_before_a_command_is_refused_with_what_to_do(title: str) -> None:
    _, *groups, name = title.split()
    own = {each for option in EVERY[title].params for each in (*option.opts, *option.secondary_opts)}
    for option in EVERY[" ".join(["cs336-tui", *groups])].params:
        for typed in (option.opts[0], *option.secondary_opts) if option.expose_value else ():
            words = [typed] if getattr(option, "is_flag", False) else [typed, _VALUES.get(typed, "1")]
            done = call(*groups, *words, name)
            wanted = f"write {typed} after {name}" if typed in own else f"leave out {typed}, which {name} does not have"
            assert (done.returncode, done.stdout, wanted in done.stderr) == (2, "", True), (words, done)
            assert done.stderr.count("\n") == 1


def test_several_options_before_a_command_are_one_line() -> None:
    said = call("--theme", "nosuch", "--size", "tiny", "--no-low-bandwidth", "estimate").stderr
    assert said == (
        "cs336-tui: options before a command do nothing: leave out --theme, --no-low-bandwidth, which estimate does not"
        " have; write --size after estimate, not before it\n"
    )
    assert call("--size", "tiny", "nosuch").stderr == "cs336-tui: no command 'nosuch'; `cs336-tui --help` lists them\n"


def test_every_part_of_a_compiled_model_can_be_asked_for() -> None:
    (option,) = [each for each in REPORT_COMMANDS["kernels"].params if each.name == "part"]
    assert tuple(option.type.choices) == (*RANGES, FUSED)


def test_a_report_is_printed_or_it_is_said_that_there_is_none(tmp_path: Path) -> None:
    words = [*DIMS, *"--pass train-step --context 8 --batch 1 --device cpu --threads 1".split()]
    words += ["--session-dir", str(tmp_path)]
    made = call("memory", *words)
    assert (made.returncode, made.stdout.count("**Largest allocations")) == (0, 1), made.stderr
    of_head = call("kernels", *words, "--phase", "forward", "--part", "head")
    assert (of_head.returncode, of_head.stdout.count("forward, head")) == (0, 1), of_head.stderr
    lost = call("memory", *words, "--timeout", "0.001")
    assert (lost.returncode, lost.stdout) == (1, "No report was made.\n"), lost.stderr


def test_every_report_is_made_shown_and_exported_by_someone() -> None:
    made = {kind: type_.content for kind, type_ in REPORTS.items() if type_.content is not None}
    assert made.keys() == _MAKERS.keys()
    assert set(made.values()) == _EXPORTS.keys()
    assert REPORTS.keys() - made.keys() == _FROM_CELLS.keys()
    assert {type_.tab for type_ in REPORTS.values()} <= {tab.id for tab in TABS.values()}
