"""The commands that show how far numbers can be trusted: two cells in turns, the tool against a bare script."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import click

from cs336_tui.flags import answer_options, choice_options, options, session_dir_option, timeout_option


@click.command("ab", short_help="Run two cells in turns, step by step, and say which is faster.")
@click.option("--a", "a", required=True, metavar="CHOICES", help='What A has of its own, such as "--precision bf16".')
@click.option("--b", "b", required=True, metavar="CHOICES", help="What B has of its own.")
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
    up and times a step of the one, then one of the other. Exits with 0 when both were timed, 1 when one was not.
    """
    from cs336_tui.headless.ab import ab_command

    sys.exit(ab_command(**options))


@click.command("selftest", short_help="Hold this tool's step times against those of a bare script, on this machine.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, mps, cuda, cuda:N")
@click.option("--size", help="[default: tiny on a CPU, small elsewhere]")
@click.option("--quick", is_flag=True, help="Fewer starts and shorter turns: wider intervals in about a minute.")
@options(*answer_options)
@session_dir_option
def selftest(**options: Any) -> NoReturn:
    """Time the same cell with a bare script, with `cs336-tui bench` and with the app, in turns.

    Prints the ratios of means and of stds with their intervals, with device sampling on and off, and whether they are
    within the marks. Exits with 0 when they are, 1 when one is not, 3 when the machine is too noisy to tell.
    """
    from cs336_tui.headless.selftest import selftest_command

    sys.exit(selftest_command(**options))


TRUST_COMMANDS = (ab, selftest)
