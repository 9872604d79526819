"""The time in which a cell measured, and whether others took the GPU or the host's cores then."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from cs336_tui.analysis.judgement import Finding
from cs336_tui.events.gpus import ORDINARY_REASONS
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import change_percent, counted, fixed_milliseconds, millisecond_decimals, named


def unseen(cell: CellState, otherwise: str) -> str:
    """Why the window's samples do not tell something of the GPU."""
    around = cell.surroundings
    if not around.samples:
        return f"no device sample fell into the {seconds(window_s(cell))} of measuring"
    return around.why or f"NVML {otherwise}"


def window_s(cell: CellState) -> float:
    """The time in which the cell measured, pauses between steps included if they are known."""
    assert cell.finished is not None
    known = cell.finished.measured_for_s
    return fsum(cell.step_times_s) if known is None else known


def milliseconds(time_s: float) -> str:
    return f"{fixed_milliseconds(time_s, millisecond_decimals(time_s, None))} ms"


def seconds(time_s: float) -> str:
    """Always in seconds, so that lengths of windows can be read side by side: ``3.0 s``, ``0.088 s``."""
    return f"{time_s:.1f} s" if time_s >= 1 else f"{time_s:.2g} s"


def core_words(number: float) -> str:
    """``1 core``, ``1.5 cores``."""
    return "1 core" if f"{number:.1f}" == "1.0" else f"{number:.1f} cores"


LEAST_WAIT = 0.05
"""Share of the window for which a thread of the cell waited for a core: more than a quiet machine and this app take."""
LEAST_OTHERS = 0.25
"""Cores that others use while none is free: more than this app and its sampling take."""
ALL_CORES = 0.95
"""Share of the cores from which on none is free."""
LEAST_STEAL = 0.05
"""Share of the cores' time that went to other machines of the same hypervisor."""
_QUIET = "repeat it when nothing else runs on this machine"


def contention(cell: CellState) -> Finding:
    """Use of the GPU or the host's cores by another process; ruled out only where all could be seen. On the host, cores
    in use decide: a process on a core's sibling slows a thread without making it wait. Waiting, load and steal add to
    them."""
    waited, cores = _waiting(cell), _cores(cell)
    beside = (_beside(cell),) if cell.neighbours else ()
    others = (waited, cores, *beside, _steal(cell), _load(cell))
    gpu = _gpu_users(cell)
    looks = (gpu, *others) if gpu else others
    if found := [look for look in looks if look.holds]:
        advice = ", or ".join(dict.fromkeys(look.advice for look in found))
        return Finding(True, ", and ".join(look.evidence for look in found), advice)
    host_seen = cores.holds is not None
    if gpu and gpu.holds is None:
        return Finding(None, gpu.evidence + (", while the host was free" if host_seen else ""))
    if not host_seen:
        return Finding(None, f"{cores.evidence}; {waited.evidence}")
    return Finding(False, ", ".join(look.evidence for look in looks if look.evidence))


def _gpu_users(cell: CellState) -> Finding | None:
    """None on a CPU."""
    device, around, after = cell.spec.device, cell.surroundings, cell.surroundings.others_after
    if device == "cpu":
        return None
    if not device.startswith("cuda"):
        return Finding(None, f"other processes on the GPU cannot be seen on {device}")
    if others := around.others or after:
        users = [f"{user.name} ({user.pid})" if user.name else f"process {user.pid}" for user in others.values()]
        when, names = "" if around.others else " right after measuring", named(users, between=", ")
        return Finding(True, f"also on the GPU{when}: {names}", "stop what else uses the GPU, or choose a free one")
    if around.others_known:
        samples = counted(around.others_known, "sample")
        return Finding(False, f"no other process on the GPU in {samples} while measuring")
    if after is not None:
        return Finding(False, "no other process on the GPU right after measuring")
    if around.others_stale:
        return Finding(None, "which processes use the GPU was read before measuring only")
    return Finding(None, unseen(cell, "did not tell other processes on the GPU apart, as in most containers"))


MOST_NEIGHBOURS = 4
"""Neighbours that are named; more are counted."""
_FEWER_LANES = "repeat it with --lanes 1, or with fewer lanes"


def neighbours(cell: CellState) -> str:
    """``cells 3 and 5``, as people count: those that ran beside it."""
    return _numbered("cell", [number + 1 for number in cell.neighbours])


def ran_beside(cell: CellState) -> str:
    """``ran beside cells 3 and 5, in lanes 1 and 2``; empty of a cell that ran alone."""
    if not cell.neighbours:
        return ""
    lanes = f", in {_numbered('lane', cell.neighbour_lanes)}" if cell.neighbour_lanes else ""
    return f"ran beside {neighbours(cell)}{lanes}"


def _numbered(what: str, numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    named = [str(number) for number in ordered[:MOST_NEIGHBOURS]]
    if more := len(ordered) - len(named):
        named.append(f"{more} more")
    listed = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]
    return f"{what}{'s' * (len(ordered) > 1)} {listed}"


def _beside(cell: CellState) -> Finding:
    """Cells in other lanes that took cores which this one may use while none was free, or beside which its GPU was
    slowed down. That they ran at all is not enough."""
    who, around = neighbours(cell), cell.surroundings
    if slowed := [reason for reason in around.reasons if reason not in ORDINARY_REASONS]:
        window = f"{counted(around.reasons_known, 'sample')} while measuring"
        most = max(around.reasons[reason] for reason in slowed)
        text = f"its GPU was slowed down ({', '.join(slowed)}) in {most} of {window}, beside {who}"
        return Finding(True, text, _FEWER_LANES)
    cores, busy, used = around.cpu_count, around.busy_cores, around.beside_cores
    if _has_own_cores(cell):
        return Finding(False, f"{who} ran beside it, which has cores of its own")
    if busy is None or used is None or not cores:
        return Finding(None, f"{who} ran beside it; the cores that they used are not known")
    text = f"{who}, beside it, used {used:.1f} of {counted(cores, 'core')} ({min(busy, cores):.1f} busy in all)"
    return Finding(busy >= ALL_CORES * cores and used >= LEAST_OTHERS, text, _FEWER_LANES)


def _has_own_cores(cell: CellState) -> bool:
    """True if it may use part of the cores only, as in a lane on a CPU: its neighbours use others."""
    usable, cores = _usable_cores(cell), cell.surroundings.cpu_count
    return bool(usable and cores and usable < cores)


def waiting_share(cell: CellState) -> float | None:
    """Share of the measured time in which a finished cell's threads waited for a core; None if unknown. The one that
    waited longest counts, as a step waits for its slowest thread. If only the sum over all is known, it is shared by
    torch's threads on a CPU; elsewhere it is one thread's, as one enqueues."""
    assert cell.finished is not None
    longest_s, sum_s, within_s = cell.finished.longest_cpu_wait_s, cell.finished.cpu_wait_s, window_s(cell)
    waited_s = sum_s / _torch_threads(cell) if longest_s is None and sum_s is not None else longest_s
    return None if waited_s is None or not within_s else waited_s / within_s


def _torch_threads(cell: CellState) -> int:
    """The threads that a step's work is shared by."""
    return _threads(cell) if cell.spec.device == "cpu" else 1


def _waiting(cell: CellState) -> Finding:
    """Wait of the cell's threads for a core."""
    assert cell.finished is not None
    share, threads = waiting_share(cell), _torch_threads(cell)
    if share is None:
        return Finding(None, "this system does not tell how long threads waited for a core")
    of_all = f"each of its {threads} threads" if threads > 1 else "its thread"
    who = of_all if cell.finished.longest_cpu_wait_s is None else "a thread"
    holds = share >= LEAST_WAIT
    text = f"{who} was runnable but waiting {change_percent(share)} of the time"
    cores, ranks = _usable_cores(cell), _ranks_here(cell)
    if cores and threads * ranks > cores:
        advice = f"--threads {cores // ranks}" if cores >= ranks else f"at most {counted(cores, 'rank')} here"
        of_ranks = f" of {ranks} ranks" * (ranks > 1)
        text += f", with {counted(threads * ranks, 'thread')}{of_ranks} on {counted(cores, 'core')}"
        return Finding(holds, text, advice)
    if cell.neighbours and not _has_own_cores(cell):
        return Finding(holds, f"{text}, beside {neighbours(cell)}", _FEWER_LANES)
    return Finding(holds, text, _QUIET)


def _ranks_here(cell: CellState) -> int:
    """The most ranks of the cell on one machine."""
    assert cell.finished is not None
    nodes = cell.finished.rank_nodes
    return max(map(nodes.count, nodes), default=cell.spec.ranks)


def _cores(cell: CellState) -> Finding:
    """No core was free, and others used some of them. Samples are of the whole machine: of a process that may use part
    of its cores they do not tell which ones the others took, unless all were in use."""
    around = cell.surroundings
    busy, others, cores, usable = around.busy_cores, around.other_cores, around.cpu_count, _usable_cores(cell)
    if not around.samples:  # the time of the first sample after the window tells
        if around.other_cores_around is None:
            return Finding(None, unseen(cell, ""))
        text = f"other processes used {core_words(around.other_cores_around)} around the time of measuring"
        is_free = around.other_cores_around < LEAST_OTHERS
        return Finding(False, text) if is_free else Finding(None, f"{text}, into which no sample fell")
    if busy is None or others is None or not cores or not usable:
        return Finding(None, "which cores were in use is not known")
    text = f"other processes used {others:.1f} of {counted(cores, 'core')} ({min(busy, cores):.1f} busy in all)"
    if usable < cores:
        text += f", while the cell may use {usable} only"
    full = busy >= ALL_CORES * cores or (None if busy >= ALL_CORES * usable else False)
    return Finding(full if others >= LEAST_OTHERS else False, text, _QUIET)


def _steal(cell: CellState) -> Finding:
    steal = cell.surroundings.steal
    if steal is None:
        return Finding(None, "")
    text = f"the hypervisor took {change_percent(steal)} of the cores' time"
    return Finding(steal >= LEAST_STEAL, text, "use a machine that is not shared")


def _load(cell: CellState) -> Finding:
    """Runnable processes over the last minute: blamed if more than the cores and the cell's own threads together."""
    around = cell.surroundings
    if around.load_1m is None or not around.cpu_count:
        return Finding(None, "")
    own = _threads(cell) * _ranks_here(cell)
    if around.load_1m <= around.cpu_count + own:
        return Finding(False, "")
    load = f"load average {around.load_1m:.1f} on {counted(around.cpu_count, 'core')}"
    return Finding(True, f"{load} (this cell's share: {own} at most)", _QUIET)


def _threads(cell: CellState) -> int:
    return (cell.in_force and cell.in_force.threads) or cell.spec.threads or 1


def _usable_cores(cell: CellState) -> int | None:
    """Those that the cell's process may run on, else the machine's."""
    assert cell.finished is not None
    machine = cell.environment.cpu_count if cell.environment else None
    return cell.finished.usable_cores or cell.surroundings.cpu_count or machine
