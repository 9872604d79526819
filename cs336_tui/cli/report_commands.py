"""The commands that predict and that find out where time and memory go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from cs336_tui.cli.flags import (
    DIRECTORY,
    WORDS,
    answer_options,
    choice_options,
    fit_check_option,
    gpu_option,
    options,
    report_options,
    session_dir_option,
    timeout_option,
)
from cs336_tui.config.spec import PASSES
from cs336_tui.events.reports import FUSED, RANGES


@click.command("estimate", short_help="Predict memory, FLOPs and time; runs nothing.")
@choice_options
@gpu_option
@click.option(
    "--peak",
    type=click.FloatRange(min=0, min_open=True),
    metavar="TFLOPS",
    help="The device's peak for this precision, where no data sheet is known or another one is meant.",
)
@click.option("--session", metavar="SESSION", help="The measured cells of this session tell how fast the device is.")
@options(*answer_options)
@session_dir_option
def estimate(**options: Any) -> None:
    """Predict what every combination of the choices needs: parameters, FLOPs, peak memory by category, time.

    Nothing is run: the model is followed on tensors without data. Says whether it fits this machine's device, or the
    one named by --gpu.
    """
    from cs336_tui.cli.estimate import estimate_command

    click.echo(estimate_command(**options), nl=False)


@click.command("fit", short_help="The largest batch or context length that fits.")
@choice_options
@click.option("--by", type=click.Choice(["batch", "context"]), default="batch", show_default=True, help="What grows.")
@click.option("--limit", type=click.IntRange(1), help="Look no further than this.")
@gpu_option
@click.option("--confirm", is_flag=True, help="Run what was found, and the next larger one, to see that it is so.")
@options(*answer_options)
@session_dir_option
def fit(**options: Any) -> NoReturn:
    """Find the largest batch (or context length) that fits, by bisection on the prediction.

    Exits with 0 when something fits, 1 when not even the smallest does or what was found did not run.
    """
    from cs336_tui.cli.fit import fit_command

    sys.exit(fit_command(**options))


_figures_option = click.option("--figures", type=DIRECTORY, help="Also write the figures here, as SVG, PDF and PNG.")


@click.command("kernels", short_help="Profile one step: kernels by time, kind, phase and part of the model.")
@choice_options
@click.option(
    "--phase",
    type=click.Choice(["zero_grad", "forward", "loss", "backward", "optimizer"]),
    help="Only the kernels of this phase, as one table.",
)
@click.option(
    "--part", type=click.Choice((*RANGES, FUSED)), help="Only the kernels of this part of the model, as one table."
)
@options(*report_options)
@fit_check_option
@timeout_option
@session_dir_option
def kernels(**options: Any) -> NoReturn:
    """Profile one step of every combination of the choices, apart from timing.

    Kernels on a GPU, operators by self time on a CPU: as nsys lists them, by kind, by part of the model, and matrix
    multiplication against softmax in attention. The Chrome trace is kept beside the session's log.
    """
    _report("kernels", options)


@click.command("memory", short_help="Record one step: what memory is held for, and where it was asked for.")
@choice_options
@click.option(
    "--min-mb", type=click.FloatRange(min=0), default=0.0, metavar="MB", help="Leave out allocations below this."
)
@_figures_option
@options(*report_options)
@fit_check_option
@timeout_option
@session_dir_option
def memory(**options: Any) -> NoReturn:
    """Record every allocation of one step of every combination of the choices.

    Peaks by phase, live bytes by category, the largest allocations with the line that asked for them, and what each
    Transformer block keeps for backward. On CUDA the snapshot for pytorch.org/memory_viz is kept beside the log.
    """
    _report("memory", options)


@click.command("precision", short_help="dtypes of the model by hooks, of a toy model, and rounding when adding up.")
@choice_options
@options(*report_options)
@timeout_option
@session_dir_option
def precision(**options: Any) -> NoReturn:
    """Show which dtypes every combination of the choices really computes in.

    By hooks on each module, on the course's toy model under autocast, and what adding 0.01 a thousand times comes to.
    """
    _report("precision", options)


@click.command("peak", short_help="Measure what this machine's devices do at best: matrix products and copies.")
@click.option(
    "--device", "devices", type=WORDS, default=(), help="auto, every, cpu, mps, cuda, cuda:N. [default: auto]"
)
@click.option("--precision", "precisions", type=WORDS, default=(), help="[default: all that the device can do]")
@click.option("--threads", type=click.IntRange(1), help="torch's intra-op threads. [default: torch's own]")
@click.option("--refresh", is_flag=True, help="Measure again what was measured before.")
@options(*answer_options)
@session_dir_option
def peak(session_dir: Path | None, **options: Any) -> None:  # noqa: ARG001  # every command takes it
    """Measure matrix products and copies on the spot, with the data sheet's figures beside them where known.

    Takes some seconds a precision; what was measured is remembered for this device, torch and thread count.
    """
    from cs336_tui.cli.peak import peak_command

    click.echo(peak_command(**options), nl=False)


def _report(kind: Any, given: dict[str, Any]) -> NoReturn:
    from cs336_tui.cli.reports import report_command

    sys.exit(report_command(kind, **given))


def _profiles(command: click.Command, passes: str) -> None:
    """Say what is looked at unless a pass is named, and leave out what one step has none of."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name == "passes":
            parameter.help = f"{', '.join(PASSES)}. [default: {passes}]"
        elif isinstance(parameter, click.Option) and parameter.name in ("warmups", "steps", "interval", "sync"):
            parameter.hidden = True


_profiles(kernels, "train-step")
_profiles(memory, "forward,train-step")
_profiles(precision, "train-step")
REPORT_COMMANDS = (estimate, fit, kernels, memory, precision, peak)
