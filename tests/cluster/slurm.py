"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd with files, sockets and ports of its own.
It needs no privileges and touches nothing outside its folder."""

import contextlib
import ctypes
import datetime
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from tests.watching import PATIENCE_S

INSTALL = "apt-get install -y --no-install-recommends slurm-wlm munge"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
NODES = ("n1", "n2")
CPUS = GPUS = 2
"""Of each node; the GPUs are plain files, which suffices for Slurm to set CUDA_VISIBLE_DEVICES."""

Found = TypeVar("Found")
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={uid}
SlurmdUser={uid}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
EnforcePartLimits=NO
OverTimeLimit=0
KillWait=2
Prolog={folder}/prolog
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000 Gres=gpu:2 Feature=old
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000 Gres=gpu:2 Feature=new
PartitionName=ci Nodes=ALL Default=YES State=UP
PartitionName=short Nodes=ALL MaxTime=1 State=UP
PartitionName=closed Nodes=ALL State=DOWN
PartitionName=spare Nodes=ALL State=UP PreemptMode=CANCEL
PartitionName=urgent Nodes=ALL State=UP PriorityTier=10
"""


def missing() -> list[str]:
    """Programs that this machine lacks."""
    return [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]


class Slurm:
    """Each partition has both nodes: `ci` (no limit), `short` (1 minute), `closed` (down), and `urgent`, for whose jobs
    those of others are requeued, those of `spare` ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: Mapping[str, str] = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        """The environment in which a command reaches it."""

    def call(self, *words: str) -> str:
        """The output of one of Slurm's commands; it must succeed."""
        ran = subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ran.returncode == 0, f"{' '.join(words)}: {ran.stderr}"
        return ran.stdout

    def submit(self, *words: str, script: str = "exec sleep 1000") -> str:
        """The number of a batch job that sleeps."""
        output = f"--output={self.folder}/%j.out"
        return self.call("sbatch", "--parsable", output, *words, f"--wrap={script}").strip()

    def state(self, name: str, kind: str = "job", field: str = "JobState") -> str:
        """Slurm's word for the state of a job, such as ``RUNNING``, or of a node."""
        return self.call("scontrol", "show", kind, name).partition(f"{field}=")[2].split()[0]

    def until(self, true: Callable[[], Found], what: str = "it") -> Found:
        """Whatever `true` returns once it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := true()):
            assert time.monotonic() < deadline, f"waited a minute for {what}\n{self.told()}"
            time.sleep(0.02)
        return found

    def running(self, job: str) -> str:
        """Wait until a job runs; returns its node."""
        self.until(lambda: self.state(job) == "RUNNING", f"job {job} to run")
        return self.call("squeue", "-h", "-j", job, "-o", "%N").strip()

    @contextlib.contextmanager
    def broken(self) -> Iterator[None]:
        """While entered, no node can start a job."""
        fails = self.folder / "prolog.fails"
        fails.touch()
        try:
            yield
        finally:
            fails.unlink()

    def expire(self, job: str) -> None:
        """Let the time of a running job be up now; Slurm looks for such jobs every 30 s."""
        soon = datetime.datetime.now() + datetime.timedelta(seconds=2)
        self.call("scontrol", "update", f"JobId={job}", f"EndTime={soon:%Y-%m-%dT%H:%M:%S}")

    def emptied(self) -> None:
        """Wait until no job waits or runs."""
        self.until(lambda: not self.call("squeue", "--noheader"), "all jobs to end")

    def reset(self) -> None:
        """End all jobs and bring both nodes back."""
        self.call("scancel", "--full", f"--user={os.getuid()}")
        self.call("scancel", "--signal=KILL", "--full", f"--user={os.getuid()}")
        for node in NODES:
            if "DOWN" in (state := self.node_state(node)) or "DRAIN" in state:
                self.call("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.emptied()
        self.until(lambda: all(self.node_state(node) == "IDLE" for node in NODES), "idle nodes")

    def node_state(self, node: str) -> str:
        return self.state(node, "node", "State")

    def told(self) -> str:
        """The ends of its logs, for the message of a failed test."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as kept:
        sockets = [kept.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [made.getsockname()[1] for made in sockets]


def _die_with_parent() -> None:
    """Called in a daemon before it begins: it ends when these tests do, even killed ones."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextlib.contextmanager
def started() -> Iterator[Slurm]:
    """A Slurm that is up, in a new folder with a short name (a socket's path has at most 107 bytes); then gone."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    slurm = Slurm(folder)
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> None:
        with (folder / f"{words[0]}.said").open("ab") as said:
            daemon = subprocess.Popen(
                words,
                env=os.environ | slurm.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        daemons.append(daemon)

    try:
        folder.chmod(0o711)
        for name in ("state", *NODES):
            (folder / name).mkdir()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        host = socket.gethostname().partition(".")[0]
        ports = _free_ports(1 + len(NODES))
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(folder=folder, host=host, uid=os.getuid(), ports=ports)
        )
        (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
        (folder / "prolog").write_text("#!/bin/sh\n[ ! -e $0.fails ]\n")
        (folder / "prolog").chmod(0o755)
        for index in range(GPUS):
            (folder / f"gpu{index}").symlink_to("/dev/null")
        files = {"key-file": "key", "socket": "munge", "pid-file": "pid", "log-file": "munged.log", "seed-file": "seed"}
        start("munged", "--foreground", "--num-threads=2", *(f"--{key}={folder}/{file}" for key, file in files.items()))
        slurm.until((folder / "munge").exists, "munged")
        start("slurmctld", "-D")
        for node in NODES:
            start("slurmd", "-D", "-N", node)
        ready = "sinfo", "--noheader", "--Format=StateCompact:", "--partition=ci"
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(
            ready, env=os.environ | slurm.environment, capture_output=True, text=True
        ).stdout.split() != ["idle"]:
            assert time.monotonic() < deadline, f"Slurm did not come up\n{slurm.told()}"
            assert all(daemon.poll() is None for daemon in daemons), f"a daemon ended\n{slurm.told()}"
            time.sleep(0.02)
        yield slurm
        slurm.reset()
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":  # python -m tests.cluster.slurm: a shell in which Slurm is there
    with started() as here:
        os.environ.update(here.environment)
        print(f"SLURM_CONF={here.environment['SLURM_CONF']}; leave the shell to end it")
        sys.exit(subprocess.call([os.environ.get("SHELL", "/bin/sh")]))
