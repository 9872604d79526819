"""Two machines on this one, each a real sshd on a loopback port with a home of its own: host key, user key and ssh
config are made for the tests. It needs no privileges; root lends it /run/sshd, which sshd asks of root."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil

from cs336_tui import __version__
from cs336_tui.config.processes import lives
from cs336_tui.events import events as ev
from cs336_tui.events.codec import to_line
from cs336_tui.events.environment import DeviceInfo, Environment
from cs336_tui.runner.machine import Diagnosis
from tests.watching import PATIENCE_S

INSTALL = "apt-get install -y --no-install-recommends openssh-server openssh-client"
MACHINES = ("gpu1", "gpu2")
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_PRIVILEGED, _OURS = Path("/run/sshd"), 0o711
_DAEMON = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {home}/sshd.pid
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserRC no
ForceCommand {home}/login
"""
_LOGIN = """\
#!/bin/sh
echo "Welcome to {name}"
exec env -i HOME={home} PATH={home}/bin:/usr/bin:/bin USER=somebody TMPDIR={home} sh -c "$SSH_ORIGINAL_COMMAND"
"""
_PROGRAM = """\
#!{python}
import platform
if __name__ == "__main__":
    platform.node = lambda: "{name}"
    from cs336_tui.cli.main import main
    main()
"""
_STAND_IN = """\
#!{python} -SE
import os, signal, subprocess, sys, time

def answer(path):
    job = path.removesuffix(".json")
    say = open(job + ".jsonl", "a", buffering=1).write
    def stop(*_):
        say('{{"type":"SessionEnded","at":0.0,"reason":"interrupted"}}\\n')
        os._exit(130)
    signal.signal(signal.SIGTERM, stop)
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    os.makedirs(job + ".files")
    open(job + ".files/a trace.json", "wb").write(bytes(range(256)) * 5000)
    while True:
        if os.path.exists(job + ".say"):
            text = open(job + ".say").read()
            os.remove(job + ".say")
            say(text)
            if '"SessionEnded"' in text:
                os._exit(0)
        time.sleep(0.01)

if sys.argv[1] == "--version":
    print("cs336-tui {version}")
elif sys.argv[1] == "doctor":
    print(open("{home}/doctor.json").read())
else:
    print("it runs in", os.getcwd(), flush=True)
    answer(sys.argv[2])
"""
_CLIENT = """\
Host {name}
  Port {port}
"""
_SHARED = """\
Host shared
  Port {port}
  ControlMaster auto
  ControlPersist 10
  ControlPath {folder}/own-%C
"""
_ALL = """\
Host *
  HostName 127.0.0.1
  IdentityFile {folder}/user_key
  IdentityAgent none
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking accept-new
"""


def environment(host: str, cpu_count: int = 2) -> Environment:
    """A machine with a CPU of so many cores."""
    cpu = DeviceInfo(name="cpu", label="CPU", precisions=("fp32",))
    about = {"os": "Linux", "cpu": "a CPU", "memory_bytes": 8 * 10**9, "python": "3", "app": __version__}
    return Environment(host=host, cpu_count=cpu_count, devices=(cpu,), **about)  # type: ignore[arg-type]


def missing() -> list[str]:
    """Programs that this machine lacks."""
    return [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=_PATH) is None]


class Machine:
    """One of the two, by its name for ssh. Its files and processes are told by its `home`."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        self.name, self.home, self._port = name, folder / name, port
        (self.home / "bin").mkdir(parents=True)
        words = {"name": name, "home": self.home, "folder": folder, "port": port, "python": sys.executable}
        (self.home / "sshd_config").write_text(_DAEMON.format(**words))
        _write_program(self.home / "login", _LOGIN.format(**words))
        self.program = self.home / "bin" / "cs336-tui"
        _write_program(self.program, _PROGRAM.format(**words))
        self.stand_in = self.home / "stand-in"
        """Answers as cs336-tui does, without torch. Its job writes what the test tells it to: `say`."""
        _write_program(self.stand_in, _STAND_IN.format(version=__version__, **words))
        self.quick = self.home / "quick"
        """cs336-tui, which is spared to look at its machine before the first job."""
        quick = f'#!/bin/sh\n[ "$*" = "doctor --json" ] && exec cat {self.home}/doctor.json\nexec {self.program} "$@"\n'
        _write_program(self.quick, quick)
        (self.home / "doctor.json").write_bytes(msgspec.json.encode(Diagnosis(environment(name))))
        self._daemon: subprocess.Popen[bytes] | None = None

    def say(self, job: str, *events: ev.Event) -> None:
        """Let the stand-in's job, ``SESSION/JOB``, write these events to its log."""
        said, draft = self.jobs / f"{job}.say", self.jobs / f"{job}.draft-of-say"
        draft.write_bytes(b"".join(map(to_line, events)))
        until(lambda: not said.exists(), "the job to listen")
        draft.rename(said)

    @property
    def jobs(self) -> Path:
        """The folder of its jobs."""
        return self.home / ".local" / "share" / "cs336-tui" / "jobs"

    def start(self) -> None:
        """Let it be reached; no more than that if it is already."""
        if self._daemon is not None:
            return
        words = (shutil.which("sshd", path=_PATH), "-D", "-f", self.home / "sshd_config", "-E", self.home / "sshd.log")
        self._daemon = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        until(self._answers, f"sshd of {self.name}")

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, (self.home / "sshd.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False

    def cut(self) -> None:
        """End all connections to it; what they have started goes on."""
        if self._daemon is not None:
            for process in psutil.Process(self._daemon.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.name() == "sshd":
                        process.kill()

    def stop(self) -> None:
        """Let nobody reach it; what runs there goes on."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGSTOP)  # else it may take a new connection once the others are cut
            self.cut()
            self._daemon.kill()
            self._daemon.wait()
            self._daemon = None

    def processes(self, *words: str) -> list[psutil.Process]:
        """Those that were started by a login, and their offspring, with these words in their command line."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home) and lives(process.pid):
                    line = " ".join(process.cmdline())
                    if all(word in line for word in words):
                        found.append(process)
        return found

    def reboot(self) -> None:
        """Nothing of before runs any more, and the kernel has begun anew."""
        for process in reversed(self.of_jobs()):  # a shell that outlives its job would record how that ended
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.cut()
        for file in self.jobs.glob("*/*.boot"):
            file.write_text("a boot before this one\n")

    def of_jobs(self) -> list[psutil.Process]:
        """Those of jobs, with the shells that look after them."""
        marked = [each for each in self.processes() if "CS336_TUI_JOB" in _environment(each)]
        return [*marked, *self.processes("CS336_TUI_JOB=")]

    def reset(self) -> None:
        """Empty and within reach."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.home / ".local", ignore_errors=True)
        self.start()


class Machines:
    """Both, and what a user's environment needs to reach them."""

    def __init__(self, folder: Path) -> None:
        for key in ("host_key", "user_key"):
            words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        ports = _free_ports(len(MACHINES) + 1)
        self.all = {name: Machine(name, folder, port) for name, port in zip(MACHINES, ports, strict=False)}
        hosts = zip((*MACHINES, "nowhere"), ports, strict=True)
        config = "".join(_CLIENT.format(name=name, port=port) for name, port in hosts)
        config += _SHARED.format(port=ports[0], folder=folder) + _ALL.format(folder=folder)
        (folder / "config").write_text(config)
        (folder / "bin").mkdir()
        real = shutil.which("ssh", path=_PATH)
        _write_program(folder / "bin" / "ssh", f'#!/bin/sh\nexec {real} -F {folder}/config "$@"\n')
        self.environment: Mapping[str, str] = {
            "PATH": f"{folder}/bin{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "XDG_RUNTIME_DIR": str(folder),
        }
        self._sockets = folder / "cs336-tui-ssh"

    def __getitem__(self, name: str) -> Machine:
        return self.all[name]

    def shared_by_user(self) -> list[Path]:
        """Sockets of connections to the host ``shared`` where the user's config has them."""
        return list(self._sockets.parent.glob("own-*"))

    def kill_masters(self) -> int:
        """Kill the processes here that hold shared connections; returns their number."""
        killed = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ssh: {self._sockets.parent}"):
                    process.kill()
                    killed += 1
        return killed


def until(true: Callable[[], object], what: str) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"waited a minute for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def started() -> Iterator[Machines]:
    """Both machines, within reach, in a new folder with a short name; then gone."""
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    machines = None
    around = contextlib.ExitStack()
    try:
        if os.getuid() == 0:
            around.enter_context(_lent_folder())
        machines = Machines(folder)
        for machine in machines.all.values():
            machine.start()
        yield machines
    finally:
        for machine in machines.all.values() if machines else ():
            machine.stop()
            for process in machine.processes():
                with contextlib.suppress(psutil.Error):
                    process.kill()
        if machines:
            machines.kill_masters()
        around.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _lent_folder() -> Iterator[None]:
    """The folder that sshd asks of root, which its service makes at boot. One made here, known by its mode, is removed
    by the last of the processes that use it."""
    while True:
        with contextlib.suppress(FileExistsError):
            _PRIVILEGED.mkdir(mode=_OURS)
        with contextlib.suppress(FileNotFoundError):
            held = os.open(_PRIVILEGED, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(held, fcntl.LOCK_SH)
            if _PRIVILEGED.exists() and os.path.samestat(os.fstat(held), _PRIVILEGED.stat()):
                break
            os.close(held)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # others use it
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_IMODE(os.fstat(held).st_mode) == _OURS:
                _PRIVILEGED.rmdir()
        os.close(held)


def _environment(process: psutil.Process) -> Mapping[str, str]:
    try:
        found: Mapping[str, str] = process.environ()
    except psutil.Error:
        return {}
    return found


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as kept:
        sockets = [kept.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [made.getsockname()[1] for made in sockets]


def _die_with_parent() -> None:
    """Called in a daemon before it begins: it ends when these tests do, even killed ones."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


if __name__ == "__main__":  # python -m tests.cluster.sshd: a shell in which `ssh gpu1` and `ssh gpu2` work
    with started() as here:
        os.environ.update(here.environment)
        print("ssh gpu1, ssh gpu2; leave the shell to end them")
        sys.exit(subprocess.call([os.environ.get("SHELL", "/bin/sh")]))
