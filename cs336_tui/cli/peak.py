"""`cs336-tui peak`: what devices do at best, measured on the spot, with the data sheet's figures beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import cast, get_args

import click

from cs336_tui.cli.files import file_options
from cs336_tui.cli.flags import WORDS, options, session_dir_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.streams import shown
from cs336_tui.cli.suggestions import devices, offer
from cs336_tui.cli.targets import Counter, child_processes, deliver, read_machine
from cs336_tui.config.spec import Precision, SpecError
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.events.peaks import DevicePeak, PeakCache, PeakError, peak_key
from cs336_tui.export.subjects.roofline import PeakRow, peak_table

Measure = Callable[[str, Precision], DevicePeak]
"""Measures a device (torch's name) in a precision; raises `PeakError`."""


@heading("What to run")
@click.option(
    "--device",
    "devices",
    type=WORDS,
    default=(),
    help="Where to measure: auto, every, cpu, mps, cuda, cuda:N. [default: auto]",
    shell_complete=offer(devices),
)
@click.option(
    "--precision",
    "precisions",
    type=WORDS,
    default=(),
    help="Precisions to measure. [default: all that the device can do]",
    shell_complete=offer(get_args(Precision)),
)
@heading("How it runs")
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="CPU threads of one operation (torch's intra-op threads). [default: torch's own]",
)
@click.option("--refresh", is_flag=True, help="Measure again, in place of remembered results.")
@options(*file_options("table"))
@session_dir_option
def peak_command(
    *,
    devices: Sequence[str],
    precisions: Sequence[str],
    format_: str,
    output: Path | None,
    force: bool,
    refresh: bool,
    measure: Measure | None = None,
    threads: int | None = None,
    cache: PeakCache | None = None,
    read: Callable[[], Environment] = lambda: read_machine().environment,
    session_dir: Path | None = None,  # noqa: ARG001  # every command takes it
) -> str:
    """Measure the peak of matrix products and copies, with the data sheet's figures beside it where known.

    Takes some seconds a precision; what was measured is remembered for this device, torch and thread count.

    \f
    `measure` does it, in child processes unless given. A peak that cannot be measured leaves its row with the reason;
    raises `click.ClickException` when that is all of them, `SpecError` for what a device cannot do.
    """
    environment, cache = read(), cache or PeakCache()
    asked = list(_asked(environment, devices, precisions))
    counted = Counter("measuring peaks", len(asked))
    rows = []
    with _measuring(threads) if measure is None else nullcontext(measure) as measures:
        for device, precision in asked:
            found, error = None if refresh else cache.get(peak_key(environment, device.name, precision, threads)), ""
            if found is None:
                try:
                    found = measures(device.name, precision)
                    # By the threads that were in force, so that it is never taken for a peak with others.
                    cache.put(peak_key(environment, device.name, precision, found.threads), found)
                except PeakError as failure:
                    error = str(failure)
            rows.append(PeakRow(device=device, precision=precision, peak=found, error=error))
            counted()
    if all(row.peak is None for row in rows):
        raise click.ClickException("; ".join(dict.fromkeys(row.error for row in rows)))
    return deliver(shown([peak_table(rows)], format_), output, force=force)


@contextmanager
def _measuring(threads: int | None) -> Iterator[Measure]:
    """Measures in child processes."""
    from cs336_tui.runner.machine import measure_peak

    with child_processes() as launcher:
        yield lambda device, precision: measure_peak(launcher, device, precision, threads)


def _asked(
    environment: Environment, devices: Sequence[str], precisions: Sequence[str]
) -> Iterator[tuple[DeviceInfo, Precision]]:
    for name in dict.fromkeys(environment.resolve(tuple(devices) or ("auto",))):
        info = environment.device(name)
        if info is None:
            have = ", ".join(each.name for each in environment.devices) or "none that torch can use"
            raise SpecError("device", name, f"this machine has {have}")
        for precision in dict.fromkeys(precisions or info.precisions):
            if precision not in info.precisions:
                can = f"{info.title} can do {', '.join(info.precisions)}"
                raise SpecError("precision", precision, can)
            yield info, cast(Precision, precision)


peak = command("peak")(peak_command)
