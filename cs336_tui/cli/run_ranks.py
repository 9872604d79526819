"""`cs336-tui run-ranks`: the process on each node of an allocation that starts the node's ranks."""

from __future__ import annotations

import click

from cs336_tui.cli.flags import device_interval_option


@click.command("run-ranks", hidden=True)
@device_interval_option
def run_ranks(device_interval_s: float) -> None:
    """Start ranks of cells as standard input says, and tell their events on standard output.

    `run-job` starts it on each node of an allocation, for cells of more ranks than a node has room for.
    """
    from cs336_tui.runner.nodes.agent import serve

    serve(device_interval_s)
