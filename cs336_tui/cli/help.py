"""Help: each option under a heading, in plain text, as wide as the terminal.

cloup lays it out; it is imported when help is asked for, so that it costs a command nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click
from click.core import ParameterSource

from cs336_tui.cli.suggestions import Source, offer
from cs336_tui.config.axis import Section
from cs336_tui.config.reading import exists
from cs336_tui.config.variants import did_you_mean, expected

F = TypeVar("F", bound=Callable[..., Any])

Heading = Literal[
    "The two sides",
    "The search",
    "Which table",
    "Which cells",
    Section,
    "Which device",
    "Jobs elsewhere",
    "Output",
    "Session",
    "The app",
    "Help",
]
HEADINGS: tuple[Heading, ...] = get_args(Heading)
"""In the order in which help has them."""
_MAX_WIDTH = 140
"""Columns; longer lines are hard to read."""
COLUMN = 29
"""Width of the names; a longer one has a line of its own."""
_PLAINER = {"INTEGER": " N", "FLOAT": " NUMBER", "TEXT": " NAME"}
_HELD = "\xa0"
"""A blank at which no line breaks, while it is laid out."""
_KEY = "cs336_tui.heading"
_ALL = "cs336_tui.help_all"
_MOST = 35
"""Options that help shows at once; of a command with more only those that are `_FIRST`."""
_FIRST = frozenset(
    "--a --b --base --head --by --over --goal --budget --replay --theme --preset --size --context --batch --pass "
    "--precision --device --warmup --steps --rounds --model --attention --compile --repeats --gpu --phase --part "
    "--min-mb --figures --save-preset --output --format --version --help --help-all".split()
)


def heading(title: Heading) -> Callable[[F], F]:
    """A decorator above options: it puts those below it, which have no heading yet, under this one."""

    def decorate(command: F) -> F:
        below: list[click.Parameter] = getattr(command, "__click_params__", [])
        for option in below:
            option.__dict__.setdefault(_KEY, title)
        return command

    return decorate


def options(*several: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorate(command: F) -> F:
        for option in reversed(several):
            command = option(command)
        return command

    return decorate


def under(title: Heading, *several: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator that stand under this heading in every command."""

    def decorate(command: F) -> F:
        there = len(getattr(command, "__click_params__", ()))
        command = options(*several)(command)
        for option in getattr(command, "__click_params__", ())[there:]:
            option.__dict__[_KEY] = title
        return command

    return decorate


def option(
    said: str, about: str, *, name: str | None = None, complete: Source | Sequence[str] = (), **attributes: Any
) -> Callable[[F], F]:
    """As `click.option`, its names as help has them, with the word for the value: ``--where KEY=VALUE``. `name` is that
    of its parameter, `complete` has the values that a shell completes. Help shows a default, unless it is none."""
    names = said.split()
    usual = attributes.get("default")
    attributes.setdefault("show_default", bool(usual) and isinstance(usual, str | int | float))
    if not names[-1].startswith("-"):
        attributes["metavar"] = names.pop()
    if complete:
        attributes["shell_complete"] = offer(complete)
    return click.option(*names, *filter(None, [name]), help=about, **attributes)


def option_under(title: Heading, said: str, about: str, **attributes: Any) -> Callable[[F], F]:
    """An `option` that stands under this heading in every command."""
    return under(title, option(said, about, **attributes))


def heading_of(option: click.Option) -> Heading:
    """The heading of an option; click makes ``--help`` and ``--version`` itself."""
    found: Heading | None = option.__dict__.get(_KEY)
    if found is None and option.expose_value:
        raise LookupError(f"{option.opts[0]} has no heading")
    return found or "Help"


def under_headings(command: click.Command, context: click.Context) -> Mapping[Heading, Sequence[click.Option]]:
    """The visible options of a command by their headings, in the order of help."""
    found: dict[Heading, list[click.Option]] = {title: [] for title in HEADINGS}
    for option in command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden:
            found[heading_of(option)].append(option)
    return {title: options for title, options in found.items() if options}


def record_of(option: click.Option, context: click.Context) -> tuple[str, str]:
    """An option's names and value, and what it means, as help has them."""
    names, about = option.get_help_record(context) or ("", "")
    if isinstance(option.type, click.Choice) and len(names) > COLUMN and not option.metavar:
        text, default, usual = re.split(r"( *\[default: |$)", about, maxsplit=1)
        names = f"{names.partition('[')[0]}NAME"
        about = f"{text} One of {', '.join(map(str, option.type.choices))}. {default.lstrip()}{usual}".strip()
    return re.sub(r" (INTEGER|FLOAT|TEXT)( RANGE)?$", lambda found: _PLAINER[found[1]], names), about


class _Context(click.Context):
    def make_formatter(self) -> click.HelpFormatter:
        from cloup import HelpFormatter, HelpTheme, Style

        plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        theme = HelpTheme() if plain else HelpTheme(heading=Style(bold=True), col1=Style(fg="cyan"))
        formatter = HelpFormatter(max_width=_MAX_WIDTH, col1_max_width=COLUMN, theme=theme)
        written = formatter.getvalue
        formatter.getvalue = lambda: written().replace(_HELD, " ")  # type: ignore[method-assign]
        return formatter


def write_sections(formatter: click.HelpFormatter, sections: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> None:
    """Write titled lists, all with their second column in the same place."""
    from cloup import HelpFormatter, HelpSection

    assert isinstance(formatter, HelpFormatter)

    def held(about: str) -> str:
        return re.sub(r"\[default: .{1,24}?\]", lambda found: found[0].replace(" ", _HELD), about)

    made = [HelpSection(title, [(names, held(about)) for names, about in rows]) for title, rows in sections if rows]
    formatter.write_many_sections(made)


def _show(context: click.Context, option: click.Parameter, value: bool) -> None:
    """Print help and end, as click does, with its colours."""
    context.meta[_ALL] = "--help-all" in option.opts
    if value and not context.resilient_parsing:
        from cs336_tui.cli.streams import Styled

        click.echo(Styled(f"{context.get_help()}\n"), nl=False)
        context.exit()


_HELP_ALL, _ALIAS = (
    click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show, hidden=hidden,
        help="Show all options and exit.",
    )
    for hidden in (False, True)
)  # fmt: skip


class Choice(click.Choice[str]):
    """One of some names; another one is told the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return f"{value}: {expected(value, self._normalized_mapping(ctx).values())}"


class Command(click.Command):
    """A command whose help has its options under headings."""

    context_class = _Context
    callback: Callable[..., Any]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        if option := super().get_help_option(ctx):
            option.callback = _show
        return option

    @property
    def is_long(self) -> bool:
        """True if help shows the first of its options alone."""
        return sum(isinstance(each, click.Option) and not each.hidden for each in self.params) > _MOST

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL if self.is_long else _ALIAS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left, is_whole = 0, ctx.meta.get(_ALL) or not self.is_long
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for title, of in under_headings(self, ctx).items():
            kept = [each for each in of if is_whole or not _FIRST.isdisjoint(each.opts)]
            sections.append((title, [record_of(each, ctx) for each in kept]))
            left += len(of) - len(kept)
        write_sections(formatter, sections)
        if left:
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} --help-all")


class Group(Command, click.Group):
    """A command of commands whose help has its options under headings."""

    command_class = Command
    file_command = ""
    """The command that takes a file in place of its name; empty if none does."""
    elsewhere: Mapping[str, str] = {}
    """Words by which other tools call what commands do, and these commands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named. Raises `click.UsageError` where there is none, and for options before it, which it
        would not see."""
        is_known = ctx.resilient_parsing or args[0].startswith("-") or self.get_command(ctx, args[0])
        is_file = not is_known and (exists(Path(args[0])) or args[0].endswith(".jsonl"))
        if is_file and self.file_command:
            args = [self.file_command, *args]
        elif not is_known:
            meant = self.elsewhere.get(args[0].lower())
            near = f"did you mean {meant}?" if meant else did_you_mean(args[0], self.list_commands(ctx))
            raise click.UsageError(f"no command {args[0]!r}; {near or f'`{ctx.command_path} --help` lists them'}")
        name, command, rest = super().resolve_command(ctx, args)
        before: list[str] = []
        for option in () if ctx.resilient_parsing else self.params:
            known = option.name or ""
            if isinstance(option, click.Option) and ctx.get_parameter_source(known) == ParameterSource.COMMANDLINE:
                off = option.secondary_opts and ctx.params[known] is False
                before.append((option.secondary_opts if off else option.opts)[0])
        if command is not None and before:
            raise click.UsageError(_misplaced(before, command, str(name)))
        return name, command, rest


def _misplaced(before: Sequence[str], command: click.Command, name: str) -> str:
    """Advice on options that stand before a command."""
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    foreign, movable = (", ".join(each for each in before if (each in own) == is_own) for is_own in (False, True))
    parts = (
        foreign and f"leave out {foreign}, which {name} does not have",
        movable and f"write {movable} after {name}, not before it",
    )
    return f"options before a command do nothing: {'; '.join(filter(None, parts))}"


def command(name: str, cls: type[Command] = Command, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """As `click.command`, for a command whose options have headings."""
    return click.command(name, cls=cls, **attributes)
