"""Time from the request for a kernel report to its table: child process, profiled step, report, rows."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import Event, ReportFinished, ReportStage
from cs336_tui.events.kernel_report import KernelReport
from cs336_tui.events.reports import ReportRequest
from cs336_tui.export.subjects.kernels import kernel_tables
from cs336_tui.export.writing.formats import render_all
from cs336_tui.runner.launcher import Launcher
from cs336_tui.runner.pipes import StopSignal
from cs336_tui.runner.ranks import ReportFold, run_here
from tests.samples import sized

MARK_S = 10.0


def a_spec(size: str, context: int, pass_: str) -> CellSpec:
    return CellSpec(
        **sized(size),
        arch="swiglu-rope",
        context_length=context,
        batch_size=4,
        pass_=pass_,  # type: ignore[arg-type]
        precision="fp32",
        device="cpu",
    )


def profile_once(spec: CellSpec, launcher: Launcher, folder: str) -> dict[str, float]:
    """Seconds of each part of one report, and of the whole."""
    events: list[Event] = []

    def record(new: Sequence[Event]) -> None:
        events.extend(new)

    begin = time.time()
    stop = StopSignal()
    request = ReportRequest(kind="kernels", spec=spec, folder=folder)
    run_here(launcher.start_report(0, request), [ReportFold(0)], record, stop)
    stop.close()
    (finished,) = (event for event in events if isinstance(event, ReportFinished))
    if not isinstance(finished.content, KernelReport):
        raise click.ClickException(f"{finished.status}: {finished.error}")
    arrived = time.time()
    render_all(kernel_tables(finished.content), "markdown")
    done = time.time()
    marks = [("starting", begin)]
    marks += [(event.stage, event.at) for event in events if isinstance(event, ReportStage)]
    marks += [("sending", finished.at), ("tables", arrived)]
    parts = {name: after - at for (name, at), (_, after) in itertools.pairwise([*marks, ("", done)])}
    return {"whole": done - begin, **parts}


@click.command()
@click.option("--size", default="small", show_default=True)
@click.option("--context", default=128, show_default=True)
@click.option("--pass", "pass_", default="train-step", show_default=True)
@click.option("--repeat", default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(size: str, context: int, pass_: str, repeat: int, output: Path | None) -> None:
    spec = a_spec(size, context, pass_)
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        launcher.prepare()
        launcher.start()
        cold = profile_once(a_spec("tiny", 16, "forward"), launcher, folder)  # the server is still importing torch
        runs = [profile_once(spec, launcher, folder) for _ in range(repeat)]
    names = list(dict.fromkeys(name for run in runs for name in run))
    rows = [[name, spread([run.get(name, 0.0) for run in runs], 2)] for name in names]
    whole = statistics.median(run["whole"] for run in runs)
    rows[0][1] += f"; at most {MARK_S:.0f}: {verdict(whole, 0, MARK_S)}"
    body = table([spec.title, f"s: median of {repeat} (least to greatest)"], rows)
    body += f"\n\nThe app has its fork server up by then; from nothing, a `tiny` forward took {cold['whole']:.2f} s."
    command = f"python -m benchmarks.profile_time --size {size} --context {context} --pass {pass_} --repeat {repeat}"
    publish("Profiling a step", command, body, output)


if __name__ == "__main__":
    main()
