"""`cs336-tui run-job` and `run-ranks`: the processes of a job, on the machines that run it."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from cs336_tui.cli.flags import device_interval_option
from cs336_tui.cli.jobs import OF_REQUEST
from cs336_tui.cli.run import HeadlessRun, Outputs
from cs336_tui.runner.jobs.job import log_path, read_request


@click.command("run-job", hidden=True)
@click.argument("request", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--node", type=click.IntRange(0), default=0, help="A further node of the job; it runs its share alone.")
@click.option("--trust", "trusted", is_flag=True, help="Import the code that the request names, wherever it is.")
def run_job(request: Path, node: int, *, trusted: bool) -> int:
    """Run the cells of a job as the file REQUEST tells; its log is written beside that file."""
    from cs336_tui.cli.run import carry_out
    from cs336_tui.runner.bench import Bench
    from cs336_tui.runner.jobs.run import allocation_of, await_log, nodes_of, while_wanted, work_here, work_over_nodes
    from cs336_tui.runner.trust import check_log

    asked = read_request(request)
    check_log(asked.session, (cell.spec for cell in asked.cells), trusted=trusted)
    log = log_path(request.parent, asked.job, node)
    run = HeadlessRun()
    options = {
        "session_dir": log.parent,
        "session": log.stem,
        **{name: getattr(asked, name) for name in (*OF_REQUEST, "skip_after_oom", "device_interval_s")},
    }
    with ExitStack() as around:
        if asked.resources.nodes > 1 and not node:
            allocation = allocation_of(asked.resources.nodes)
            nodes = nodes_of(asked, allocation)
            bench = Bench(run.sink, nodes=nodes, **options)
            work = partial(work_over_nodes, request, asked, bench, nodes, allocation, run.recall, trusted=trusted)
        else:
            bench = Bench(run.sink, **options)
            if node:
                from cs336_tui.runner.node_process import Lifeline

                around.enter_context(Lifeline().held(bench.cancel))
                await_log(log)
            work = partial(work_here, asked, bench, run.recall, trusted=trusted)
        around.enter_context(while_wanted(request, bench.cancel))
        return carry_out(bench, run, work, Outputs(lambda _: "", None, overwrite=False))


@click.command("run-ranks", hidden=True)
@device_interval_option
def run_ranks(device_interval_s: float) -> None:
    """Start the ranks of a cell that standard input names, and tell their events on standard output.

    `run-job` starts it on each node of an allocation, for a cell of more ranks than a node has room for.
    """
    from cs336_tui.runner.nodes import serve

    serve(device_interval_s)
