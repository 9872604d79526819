"""`cs336-tui tune --dry-run`: what would be searched, and how long it would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cs336_tui.analysis.shortlist import Plan, lacking, plan_of, predictions_of, shortlist
from cs336_tui.cli.estimate import complete, unpredicted
from cs336_tui.cli.streams import TERMINAL, on_terminal, shown
from cs336_tui.cli.targets import (
    Counter,
    Machine,
    Predicts,
    deliver,
    predicting,
    read_machine,
    settle,
    to_json,
)
from cs336_tui.config.tuned_sweep import Search
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.gpus import GpuModel, find_gpu
from cs336_tui.export.subjects.tuning import plan_document, plan_heading, plan_table
from cs336_tui.export.writing.formats import plain_text
from cs336_tui.session.state import SessionState


def dry_run(
    search: Search,
    gpu: str | None,
    format_: str,
    output: Path | None,
    *,
    force: bool,
    state: SessionState | None = None,
    trusted: bool = False,
    predictor: Predicts | None = None,
    read: Callable[[], Machine] = read_machine,
) -> str:
    """The plan of a search on this machine, or on the GPU of that name, as text; empty when it went to a file. `state`
    is a session whose cells tell how fast it is; `trusted`: the code that it names, too. Raises `UserError` or
    `click.ClickException`."""
    machine: Machine | None = None

    def here() -> Machine:
        nonlocal machine
        machine = read()
        return machine

    asked = settle(search.start, gpu, None, here)
    tuning = search.tuning(asked.specs[0])
    target = asked.targets[tuning.base.device]
    refusal = machine.environment.refusal if machine else lacking(_device(find_gpu(gpu or target.name)))
    measured = unpredicted(state, asked, trusted=trusted) if state else ()
    with predicting(asked, predictor, [tuning, *measured]) as predicts:
        if state is not None:
            complete(state, measured, predicts, None)
        counter = Counter("predicting candidates")
        found = shortlist(tuning, target, refusal, lambda specs: predictions_of(predicts, specs, counter), every=True)
        counter.clear()
    return deliver(_render(plan_of(tuning, found, target, state), format_), output, force=force)


def _render(plan: Plan, format_: str) -> str:
    if format_ == "json":
        return to_json(plan_document(plan))
    table = plan_table(plan)
    if format_ == TERMINAL:
        return on_terminal([plan_heading(plan), table])
    return f"{plan_heading(plan)}\n\n{plain_text(table)}" if format_ == "table" else shown([table], format_)


def _device(gpu: GpuModel) -> DeviceInfo:
    """A GPU that need not be here, as torch would tell of it."""
    return DeviceInfo(
        name="cuda:0",
        label=gpu.name,
        precisions=gpu.precisions,
        memory_bytes=gpu.memory_bytes,
        capability=gpu.capability,
    )
