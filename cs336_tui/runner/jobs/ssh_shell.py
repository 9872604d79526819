"""A shell on another machine, by the user's own ``ssh``: its config, agent, keys and connections that are open already.

Nothing here asks for or sees a password or a key. One shell is kept open for each host, so that a query costs the
machine that measures a few small processes, and no login.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO

from cs336_tui.config.axis import UserError

CONNECT_S = 10
"""Seconds within which a host must answer."""
_KEEP_S = 30
"""Seconds for which ssh keeps a connection open after the last use."""
_PIECE = 1 << 16


class Unreachable(UserError):
    """A host cannot be reached, or no longer; the message is ssh's own last line."""

    exit_code = 1


def ssh_command(host: str, *command: str) -> list[str]:
    """The user's ssh to the host, which asks nothing and forwards nothing. A connection is shared with later calls: in
    the place that the user's config names, else in one of our own."""
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S}",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "ClearAllForwardings=yes",
        "ForwardAgent=no",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "RequestTTY=no",
        "LogLevel=ERROR",
        *_sharing(host),
    ]
    return ["ssh", *(part for option in options for part in ("-o", option)), "--", host, *command]


def _sharing(host: str) -> list[str]:
    """Options with which connections are shared, unless the user's config says how."""
    try:
        found = subprocess.run(
            ["ssh", "-G", "--", host], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CONNECT_S
        )
    except FileNotFoundError:
        raise Unreachable("there is no ssh here: install an OpenSSH client") from None
    except subprocess.TimeoutExpired:
        return []
    theirs = dict(line.partition(" ")[::2] for line in found.stdout.splitlines())
    if theirs.get("controlpath", "none") != "none":
        return []
    folder = _control_folder()
    if folder is None:
        return []
    return ["ControlMaster=auto", f"ControlPath={folder}/%C", f"ControlPersist={_KEEP_S}"]


def _control_folder() -> Path | None:
    """A folder for the sockets of connections that nobody else may enter; None if there can be none. Its path is
    short, as that of a socket must be."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime, "cs336-tui-ssh") if runtime else Path("/tmp", f"cs336-tui-ssh-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if ours and len(str(folder)) < 40 else None


class HostShell:
    """Runs scripts of ``sh`` on a host, one after another. It connects when it is first used, and anew after a failure.
    One thread at a time."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._command: list[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._prelude = ""

    def define(self, functions: str) -> None:
        """Shell functions that later scripts may call."""
        self._prelude = functions

    def run(self, script: str, *, within_s: float = 20.0) -> bytes:
        """The script's standard output. Raises `Unreachable`, then the script may have run
        or not."""
        process = self._connected(time.monotonic() + CONNECT_S + 5)
        try:
            return self._ask(process, script, time.monotonic() + within_s)
        except (OSError, EOFError, TimeoutError) as error:
            raise self._lost(error) from None

    def _connected(self, give_up_at: float) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._command = self._command or ssh_command(self.host, "exec sh")
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe would be held open by a connection in background
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # Ctrl+C is for us to act on
        )
        try:
            self._ask(self._process, self._prelude or ":", give_up_at)
        except (OSError, EOFError, TimeoutError) as error:
            raise self._lost(error) from None
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], script: str, give_up_at: float) -> bytes:
        """The output of the script; whatever came before, such as a login's greeting, is passed over."""
        assert process.stdin is not None
        assert process.stdout is not None
        begin, end = f"--{secrets.token_hex(16)}", f"--{secrets.token_hex(16)}"
        text = f"printf '%s\\n' {begin}\n{{ {script}\n}} </dev/null 2>/dev/null\nprintf '%s\\n' {end}\n"
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        left, found = memoryview(text.encode()), bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdin, selectors.EVENT_WRITE)
            ready.register(process.stdout, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select(max(give_up_at - time.monotonic(), 0)):
                    if key.fileobj is process.stdin:
                        left = left[os.write(process.stdin.fileno(), left[:_PIECE]) :]
                        if not left:
                            ready.unregister(process.stdin)
                        continue
                    piece = os.read(process.stdout.fileno(), _PIECE)
                    if not piece:
                        raise EOFError
                    found += piece
                    if found.endswith(f"{end}\n".encode()):
                        return bytes(found[: -len(end) - 1]).partition(f"{begin}\n".encode())[2]
                if time.monotonic() > give_up_at:
                    raise TimeoutError

    def _lost(self, error: Exception) -> Unreachable:
        """The reason why there is no answer, and no connection from now on."""
        process, said = self._process, b""
        if process is not None:
            if isinstance(error, TimeoutError):
                self._forget_connection()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        if self._said is not None:
            self._said.seek(0)
            said = self._said.read()
        self.close()
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return Unreachable(lines[-1].removeprefix("ssh: ").rstrip(".\r"))
        if isinstance(error, TimeoutError):
            return Unreachable("it does not answer")
        return Unreachable("the connection was closed")

    def _forget_connection(self) -> None:
        """Let the next call open a connection of its own: one that is shared and stalled would hold it up, too."""
        for option in self._command or ():
            if option.startswith("ControlPath="):
                command = ["ssh", "-o", option, "-O", "exit", "--", self.host]
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=2)

    def close(self) -> None:
        """Close the shell; what it has started goes on."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.kill()
            process.wait()
        if self._said is not None:
            self._said.close()
            self._said = None
