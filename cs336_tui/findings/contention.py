"""Whether others took the GPU or the host's cores while a cell measured."""

from __future__ import annotations

from typing import NamedTuple

from cs336_tui.findings.window import percent, samples, seconds, unseen, window_s
from cs336_tui.session.cell_state import CellState

LEAST_WAIT = 0.05
"""Share of the window for which a thread of the cell stood ready and had no core; a step is about as much too long.
The chores of a quiet machine and this app's own take less; one busy process on the same core takes half of it."""
LEAST_OTHERS = 0.25
"""Cores that others use while none is free: more than this app and its sampling take."""
ALL_CORES = 0.95
"""Share of the cores from which on none is free."""
LEAST_STEAL = 0.05
"""Share of the cores' time that went to other machines of the same hypervisor."""
_QUIET = "repeat it when nothing else runs on this machine"


class Contention(NamedTuple):
    """Whether there was contention of one kind or of any, None where that could not be seen; the evidence, and what to
    do about it."""

    holds: bool | None
    evidence: str
    advice: str = ""


def contention(cell: CellState) -> Contention:
    """By another process on the GPU, or on the host. It is ruled out only where all of that could be seen; of the host
    either the waiting or the cores in use will do, and load and steal add to them."""
    waited, cores = _waiting(cell), _cores(cell)
    others = (waited, cores, _steal(cell), _load(cell))
    gpu = _gpu_users(cell)
    looks = (gpu, *others) if gpu else others
    if found := [look for look in looks if look.holds]:
        return Contention(
            True,
            ", and ".join(look.evidence for look in found),
            ", or ".join(dict.fromkeys(look.advice for look in found)),
        )
    host_seen = waited.holds is not None or cores.holds is not None
    if gpu and gpu.holds is None:
        return Contention(None, gpu.evidence + (", while the host was free" if host_seen else ""))
    if not host_seen:
        return Contention(None, f"{waited.evidence}, and {cores.evidence}")
    return Contention(False, ", ".join(look.evidence for look in looks if look.evidence))


def _gpu_users(cell: CellState) -> Contention | None:
    """None on a CPU."""
    device, around = cell.spec.device, cell.surroundings
    if device == "cpu":
        return None
    if not device.startswith("cuda"):
        return Contention(None, f"other processes on the GPU cannot be seen on {device}")
    if around.others:
        users = [f"{user.name} ({user.pid})" if user.name else f"process {user.pid}" for user in around.others.values()]
        named = ", ".join(users[:3]) + (f" and {len(users) - 3} more" if len(users) > 3 else "")
        return Contention(True, f"also on the GPU: {named}", "stop what else uses the GPU, or choose a free one")
    if not around.others_known:
        return Contention(None, unseen(cell, "did not tell other processes on the GPU apart, as in most containers"))
    return Contention(False, f"nobody else on the GPU in {samples(around.others_known)} of the window")


def _waiting(cell: CellState) -> Contention:
    """The cell's threads stood ready and had no core. On a CPU all of torch's threads compute, and the share is that of
    one of them on average; elsewhere one at a time enqueues, and all waiting is counted as its."""
    assert cell.finished is not None
    waited_s, within_s = cell.finished.cpu_wait_s, window_s(cell)
    if waited_s is None or not within_s:
        return Contention(None, "this system does not tell how long threads waited for a core")
    threads = _threads(cell) if cell.spec.device == "cpu" else 1
    share = waited_s / (within_s * threads)
    who = f"each of its {threads} threads" if threads > 1 else "the cell"
    text = f"{who} waited for a core for {percent(share)} of the {seconds(within_s)} of measuring"
    cores = cell.surroundings.cpu_count or (cell.environment.cpu_count if cell.environment else None)
    if cores and threads > cores:
        return Contention(share >= LEAST_WAIT, f"{text}, on {cores} cores", f"--threads {cores}")
    return Contention(share >= LEAST_WAIT, text, _QUIET)


def _cores(cell: CellState) -> Contention:
    """No core was free, and others used some of them."""
    around = cell.surroundings
    busy, others, cores = around.busy_cores, around.other_cores, around.cpu_count
    if not around.samples:
        return Contention(None, unseen(cell, ""))
    if busy is None or others is None or not cores:
        return Contention(None, "which cores were in use is not known")
    text = f"others used {others:.1f} of {cores} cores, with {min(busy, cores):.1f} in use in all"
    return Contention(busy >= ALL_CORES * cores and others >= LEAST_OTHERS, text, _QUIET)


def _steal(cell: CellState) -> Contention:
    steal = cell.surroundings.steal
    if steal is None:
        return Contention(None, "")
    text = f"the hypervisor gave {percent(steal)} of the cores' time to others"
    return Contention(steal >= LEAST_STEAL, text, "use a machine that is not shared")


def _load(cell: CellState) -> Contention:
    """Runnable processes over the last minute, the cell's own threads among them: it takes more than these and the
    cores to blame others."""
    around = cell.surroundings
    if around.load_1m is None or not around.cpu_count:
        return Contention(None, "")
    own = _threads(cell)
    text = f"a load of {around.load_1m:.1f} on {around.cpu_count} cores, {own} of it the cell's own at most"
    return Contention(True, text, _QUIET) if around.load_1m > around.cpu_count + own else Contention(False, "")


def _threads(cell: CellState) -> int:
    return (cell.in_force and cell.in_force.threads) or cell.spec.threads or 1
