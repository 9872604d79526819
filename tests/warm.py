"""The installed command with torch loaded: a fork of a process that keeps it, which each worker of the tests has.

The fork server of a command imports torch for two seconds of processor time. Here it is a fork as well, made while the
command has one thread, and it sleeps until the command starts it. All else is the command's own: its script, imports,
arguments, streams, session, environment, and its parent, the process that runs the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import process, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ptyprocess import PtyProcess

_LOADED = (
    *("numpy", "torch", "torch.distributed", "torch._dynamo", "torch.profiler._cupti_monitor"),
    "torch._subclasses.fake_tensor",
)
_STREAMS = (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))
_SET_CHILD_SUBREAPER = 36
_MOST_BYTES = 1 << 17
_FREE = 1000  # a descriptor above those in use


class WarmPopen(subprocess.Popen[Any]):
    """A command as `subprocess.Popen` starts it; the first word is the path of its script."""

    def _execute_child(self, *arguments: Any) -> None:
        method = super()._execute_child  # type: ignore[misc]
        if sys.platform != "linux":
            method(*arguments)
            return
        given = inspect.signature(method).bind(*arguments).arguments
        pipes = {name: given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")}
        ends = (pipes["p2cread"], pipes["c2pwrite"], pipes["errwrite"])
        streams = [own if end == -1 else end for own, end in enumerate(ends)]
        try:
            self.pid = _start(
                given["args"], given["cwd"], given["env"], streams, own_session=given["start_new_session"]
            )
        finally:
            self._close_pipe_fds(*pipes.values())  # type: ignore[attr-defined]
        self._child_created = True


def in_terminal(
    words: Sequence[str], env: Mapping[str, str], dimensions: tuple[int, int], cwd: Path | None = None
) -> PtyProcess:
    """A command in a terminal of so many rows and columns, as `ptyprocess.PtyProcess.spawn` starts it."""
    from ptyprocess import PtyProcess

    if sys.platform != "linux":
        return PtyProcess.spawn(list(words), env=env, dimensions=dimensions, cwd=cwd)
    own, other = os.openpty()
    termios.tcsetwinsize(own, dimensions)
    try:
        return PtyProcess(_start(words, cwd, env, [other] * 3, own_session=True), own)
    finally:
        os.close(other)


def _start(
    words: Sequence[str],
    cwd: Path | str | None,
    env: Mapping[str, str] | None,
    streams: list[int],
    *,
    own_session: bool,
) -> int:
    """Start a command and adopt it; returns its PID."""
    adopt = ctypes.CDLL(None).prctl
    keeper = _keeper()
    adopt(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        asked = (
            os.getpid(),
            list(words),
            str(cwd or Path.cwd()),
            dict(os.environ if env is None else env),
            own_session,
        )
        socket.send_fds(keeper, [pickle.dumps(asked)], streams)
        return int(keeper.recv(100))
    finally:
        adopt(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@cache
def _keeper() -> socket.socket:
    """The way to the keeper of this process, which ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # else numpy starts threads
    subprocess.Popen([sys.executable, "-P", __file__, str(its.fileno())], pass_fds=[its.fileno()], env=env)
    its.close()
    return ours


def _keep(asked: socket.socket) -> None:
    """Start what is asked for until nobody can ask; returns in a command that is to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    for name in _LOADED:
        with contextlib.suppress(ImportError):  # some releases of torch lack some of them
            importlib.import_module(name)
    gc.freeze()
    gc.enable()
    while True:
        message, streams, *_ = socket.recv_fds(asked, _MOST_BYTES, 3)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        if (between := os.fork()) == 0:
            if (command := os.fork()) == 0:
                parent, words, cwd, env, own_session = pickle.loads(message)
                _take(streams, own_session=own_session)
                _begin(parent, words, cwd, env)
                return
            os.write(tell, b"%d" % command)
            os._exit(0)  # so that the process of the tests adopts the command
        os.waitpid(between, 0)
        asked.send(os.read(told, 100))
        for each in (told, tell, *streams):
            os.close(each)


def _take(streams: list[int], *, own_session: bool) -> None:
    """Make these the standard streams of this process, which has no other files then."""
    if own_session:
        os.setsid()
    for own, each in enumerate(streams):
        os.dup2(each, own)
    if own_session and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.closerange(3, 1 << 20)
    system: Any = sys
    for own, (name, mode, errors) in enumerate(_STREAMS):
        stream = open(own, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(system, name, stream)
        setattr(system, f"__{name}__", stream)
    system.stderr.reconfigure(line_buffering=True)


def _begin(parent: int, words: list[str], cwd: str, env: dict[str, str]) -> None:
    """Make this process one that Python has just started with these words, and make its fork server."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    multiprocessing: Any = process
    multiprocessing.ORIGINAL_DIR = cwd
    tempfile.tempdir = None  # which torch asked for
    while os.getppid() != parent:
        time.sleep(0.001)
    server, ask_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (server_pid := os.fork()) == 0:
        ask_server.close()
        _serve(server)
    server.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = words
    starts: Any = util
    start = starts.spawnv_passfds
    pids = [server_pid]

    def start_server(path: bytes, arguments: list[str], passed: Sequence[int]) -> int:
        if not pids or "multiprocessing.forkserver" not in arguments[-1]:
            return int(start(path, arguments, passed))
        message = pickle.dumps((arguments[-1], list(passed), dict(os.environ)))
        with ask_server:
            socket.send_fds(ask_server, [message], list(passed))
        return pids.pop()

    starts.spawnv_passfds = start_server


def _serve(asked: socket.socket) -> NoReturn:
    """Run a fork server once it is asked for; ends with the command."""
    message, passed, *_ = socket.recv_fds(asked, _MOST_BYTES, 8)
    if not message:
        os._exit(0)
    program, numbers, env = pickle.loads(message)
    free = [fcntl.fcntl(each, fcntl.F_DUPFD, _FREE) for each in passed]
    os.closerange(3, _FREE)
    for each, number in zip(free, numbers, strict=True):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["-c"]
    try:
        exec(program, {})
    finally:  # the interpreter's own end would take torch a while
        atexit._run_exitfuncs()
        os._exit(0)


if __name__ == "__main__":
    _keep(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_path(sys.argv[0], run_name="__main__")
