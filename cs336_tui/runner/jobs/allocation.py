"""The nodes that a job of several has: Slurm's, or as many processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import NamedTuple

from cs336_tui.runner.jobs.job import LaunchError
from cs336_tui.runner.nodes.node import Node

_PATIENCE_S = 60
_SRUN = "srun", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--kill-on-bad-exit=0", "--quiet"
"""Starts one process that may use all that the job has on a node."""
_UNBOUND = "--cpu-bind=none"


class Allocation(NamedTuple):
    """The nodes of a job, the one that runs this process first; `cores` of each, None for those of the machine; the
    words that start a process on a node, before those that name the node."""

    nodes: tuple[Node, ...]
    cores: int | None = None
    srun: tuple[str, ...] = ()

    def command(self, node: Node, *words: str) -> list[str]:
        """The command that runs one of cs336-tui on a node."""
        there = [*self.srun, f"--nodelist={node.name}"] if self.srun else []
        return [*there, sys.executable, "-m", "cs336_tui", *words]


def allocation_of(number: int) -> Allocation:
    """The allocation of so many nodes in which this process runs. Raises `LaunchError`."""
    listed = os.environ.get("SLURM_JOB_NODELIST")
    if listed is None:
        return Allocation(tuple(Node(f"process {n}", "127.0.0.1") for n in range(number)))
    names = _told("scontrol", "show", "hostnames", listed).split()
    addresses = addresses_in(_told("scontrol", "show", "node", "--oneliner", listed))
    here = os.environ.get("SLURMD_NODENAME")
    nodes = sorted((Node(name, addresses.get(name, name)) for name in names), key=lambda node: node.name != here)
    cores = os.environ.get("SLURM_CPUS_ON_NODE", "")
    binds = not re.search(
        r"^TaskPlugin\s*=\s*(task/none|\(null\))\s*$", _told("scontrol", "show", "config"), re.MULTILINE
    )
    return Allocation(
        tuple(nodes), int(cores) if cores.isdecimal() else None, (*_SRUN, *((_UNBOUND,) if binds else ()))
    )


def addresses_in(told: str) -> dict[str, str]:
    """The address of each node, as ``scontrol show node --oneliner`` tells them: a node's name may not resolve."""
    found = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in told.splitlines())
    return {node["NodeName"]: node.get("NodeAddr") or node["NodeName"] for node in found if "NodeName" in node}


def _told(*words: str) -> str:
    try:
        ran = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{words[0]}: {error}") from None
    if ran.returncode:
        raise LaunchError(f"{' '.join(words)}: {ran.stderr.strip() or f'exit code {ran.returncode}'}")
    return ran.stdout
