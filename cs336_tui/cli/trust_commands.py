"""The commands that show how far numbers can be trusted: two cells in turns, the tool against a bare script."""

from __future__ import annotations

import shlex
import sys
from typing import Any, NoReturn

import click

from cs336_tui.cli.flags import answer_options, choice_options, options, session_dir_option, timeout_option
from cs336_tui.config.spec import PASSES


@click.command(add_help_option=False)
@choice_options
def _choices(**_: Any) -> None:
    """Takes the words of one side of `ab`."""


class Side(click.ParamType[dict[str, Any]]):
    """The words of one side as the choices that they make, by name."""

    name = "CHOICES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            made = _choices.make_context(None, shlex.split(str(value))).params
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        except click.UsageError as error:
            self.fail(f"{value!r}: {error.format_message()}", param, ctx)
        return {name: choice for name, choice in made.items() if choice is not None and choice != ()}


@click.command("ab", short_help="Run two cells in turns, step by step, and say which is faster.")
@click.option("--a", "a", type=Side(), required=True, help='What A has of its own, such as "--precision bf16".')
@click.option("--b", "b", type=Side(), required=True, help="What B has of its own.")
@choice_options
@click.option(
    "--rounds", type=click.IntRange(2), default=5, show_default=True, help="Fresh processes, one after another."
)
@options(*answer_options)
@timeout_option
@session_dir_option
def ab(**options: Any) -> NoReturn:
    """Run two cells in turns, so that a machine that drifts, drifts for both.

    The options given beside --a and --b hold for both. In each round one fresh process builds both models, warms both
    up and times a step of the one, then one of the other. Each side must come to one cell; unless chosen, it has
    --pass forward, --warmup 5 and --steps 20. Exits with 0 when both were timed in every round, 1 when one was not, 130
    when interrupted; rounds that are whole count.
    """
    from cs336_tui.cli.ab import ab_command

    sys.exit(ab_command(**options))


def _own_defaults(command: click.Command) -> None:
    """Say what a side has unless chosen, and leave out automatic counts, which two cells in turns cannot have."""
    own = {
        "passes": f"{', '.join(PASSES)}. [default: forward]",
        "warmups": "Warm-up steps. [default: 5]",
        "steps": "Measured steps of a round. [default: 20]",
    }
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name in own:
            parameter.help = own[parameter.name]
            if parameter.name != "passes":
                parameter.metavar = "N"
        elif isinstance(parameter, click.Option) and parameter.name == "interval":
            parameter.hidden = True


_own_defaults(ab)


@click.command("selftest", short_help="Hold this tool's step times against those of a bare script, on this machine.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, cuda, cuda:N")
@click.option("--size", help="[default: tiny on a CPU, small elsewhere]")
@click.option("--quick", is_flag=True, help="Fewer starts and rounds: about a minute, and wider intervals.")
@options(*answer_options)
@session_dir_option
def selftest(**options: Any) -> NoReturn:
    """Time the same cell with a bare script, with `cs336-tui bench` and with the app, in turns.

    Prints the ratios of means and of stds with their intervals, device sampling on and off, and whether they are within
    the marks: on a CPU means within 2 % and stds at most 1.2, on a GPU 1 % and 1.1. Takes about three minutes. Every
    step time is kept in the session folder. Exits with 0 for a pass, 1 when a ratio is past its mark or a program
    failed, 3 when that cannot be told, 130 when interrupted.
    """
    from cs336_tui.cli.selftest import selftest_command

    sys.exit(selftest_command(**options))


TRUST_COMMANDS = (ab, selftest)
