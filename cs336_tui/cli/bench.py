"""`cs336-tui bench`: from flags to a run to data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cs336_tui.cli.run import HeadlessRun, Outputs, carry_out
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.order import Order, in_order, in_rounds
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.capabilities import fields_of_preset
from cs336_tui.session.log import default_session_dir


def bench_command(
    *,
    format_: str,
    output: Path | None,
    summary: str | None,
    force: bool,
    session_dir: Path | None,
    ddof: int,
    timeout: float | None,
    device_interval: float,
    in_process: bool,
    repeats: int,
    order: Order,
    oom_skip: bool,
    oom_explain: bool,
    fit_check: bool,
    nvtx: bool,
    preset_name: str | None = None,
    **choices: Any,
) -> int:
    """Run the chosen sweep and print or write its data; returns the exit code.

    Raises `SpecError` or `click.ClickException` for choices that cannot be run, before anything was.
    """
    sweep = sweep_from(preset_name=preset_name, **choices)
    if in_process and timeout is not None:
        raise click.UsageError("--timeout cannot end a cell that runs --in-process; use one or the other")
    run = HeadlessRun()
    bench = Bench(
        run.sink,
        session_dir=session_dir or default_session_dir(),
        ddof=ddof,
        timeout_s=timeout,
        device_interval_s=device_interval,
        in_process=in_process,
        skip_after_oom=oom_skip,
        explain_oom=oom_explain,
        check_fit=fit_check,
        nvtx=nvtx,
    )

    def work() -> None:
        resolved = bench.resolve(sweep, may_leave_out=fields_of_preset(preset_name, choices))
        bench.add(in_rounds(in_order(resolved.cells(), order), repeats), resolved.command(ddof))
        if len(resolved.checkpoints) > 1:  # their table holds measured peaks against predicted ones
            bench.predict_now(resolved.cells(), run.say)
        bench.work()

    return carry_out(bench, run, work, Outputs(format_, output, summary, overwrite=force))
