"""`cs336-tui comm`: time collectives of several ranks without a screen."""

from __future__ import annotations

from typing import Any

from cs336_tui.cli.bench import run_sweeps
from cs336_tui.cli.files import data_options
from cs336_tui.cli.flags import (
    bench_options,
    comm_options,
    ddof_option,
    lanes_option,
    options,
    order_options,
)
from cs336_tui.cli.help import command
from cs336_tui.cli.jobs import launch_options
from cs336_tui.config.axis import SpecError
from cs336_tui.config.ranks import BYTES_OF_ELEMENT


@command("comm")
@comm_options
@ddof_option
@options(*data_options)
@lanes_option
@options(*order_options)
@options(*launch_options)
@bench_options
def comm(**given: Any) -> int:
    """Time operations of torch.distributed: every combination of operation, size, ranks, backend and precision.

    A step is the slowest rank's; each begins at a barrier. Comma lists make a sweep. Before it is timed, an operation
    runs once on known numbers and is checked. Sizes are of the whole array: 10MB is 10^7 bytes, 10MiB 10 x 2^20.
    algbw is the size over the mean time, busbw that times 2(n-1)/n of all-reduce, (n-1)/n of all-gather,
    reduce-scatter and all-to-all, 1 of broadcast, for n ranks. Progress and exit codes are those of bench.
    """
    for name in given["precisions"] or ():
        if name not in BYTES_OF_ELEMENT:
            raise SpecError("dtype", name, f"a message is {' or '.join(BYTES_OF_ELEMENT)}")
    return run_sweeps(workload="collective", in_process=False, nvtx=False, **given)
