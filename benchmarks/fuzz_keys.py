"""Fuzz test of the app in a real pty: keys, clicks, pastes and resizes must not crash it or alter the terminal."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks import hostile
from benchmarks.reporting import publish, table
from tests.terminal import Terminal

QUIT = b"\x11"
PATIENCE_S = 120.0
TAKEN_AND_RESTORED = (
    (b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?1000h", b"\x1b[?1000l"), (b"\x1b[?2004h", b"\x1b[?2004l"),
    (b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[>", b"\x1b[<u"),
)  # fmt: skip
"""Control sequences that change a terminal and restore it: screen, mouse, bracketed paste, cursor, key codes."""
_SIZES = ((120, 40), (80, 24), (200, 60), (40, 12), (20, 5), (10, 3), (1, 1), (300, 10), (5, 90), (109, 30))
_PLAIN = b"1234567890pilrsbecw?:tnxkvfgmoad/+-= \t\t\t\r\r\r\x1b\x1b\x7f\x10"
_NAMED = (
    b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D", b"\x1b[H", b"\x1b[F", b"\x1b[5~", b"\x1b[6~", b"\x1b[2~", b"\x1b[3~",
    b"\x1b[Z", b"\x1bOP", b"\x1b[15~", b"\x1b[1;5A", b"\x1b[1;2B", b"\x1b[3;5~", b"\x1b[I", b"\x1b[O",
)  # fmt: skip
_ODD = (
    b"\x1b[99999999999u", b"\x1b[1114112u", b"\x1b[55296u", b"\x1b[97;;99999999999u", b"\x1b[97;5:3u", b"\x1b[0u",
    b"\x1b[4294967296;2u", b"\x1b[97;99999999999u", b"\x1b[?2026;1$y", b"\x1b[?2048;1$y", b"\x1b[9;9R",
    b"\x1b[999999;999999R",
    b"\x1b[48;0;0;0;0t", b"\x1b[48;24;80;0;0t", b"\x1b[48;1;1;1;1t", b"\xff\xfe", b"\xc3", b"\x00", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\x1b[", b"\x1b]0;x", b"\x1b[<", b"\x1b[<0;0;0M", b"\x1b[<0;-5;3M", b"\x1b[<999;99999;99999m", b"\x1bP", b"\x9b1u",
    b"\x1b[200~", b"\x1b[201~", b"\x1b[;;;;;;;;u", b"\x1b" * 20, b"\x1b[1;" + b"9" * 40 + b"u",
    "\u202e\U0001f600".encode(),
)  # fmt: skip


def an_input(chance: random.Random) -> bytes | tuple[int, int]:
    """Bytes of a key, a click, a paste or random ones; or a size (columns, rows)."""
    kind = chance.random()
    if kind < 0.5:
        return bytes([chance.choice(_PLAIN)])
    if kind < 0.64:
        return chance.choice(_NAMED)
    if kind < 0.68:
        byte = chance.randrange(256)
        return bytes([byte]) if byte not in b"\x11\x03q" or chance.random() < 0.02 else b"j"
    if kind < 0.72:
        code, modifiers = chance.choice([chance.randrange(2**17), chance.randrange(2**34)]), chance.randrange(300)
        return b"\x1b[%d;%du" % (code if code != 113 else 97, modifiers & ~4)
    if kind < 0.90:
        return a_click(chance)
    if kind < 0.94:
        text = chance.choice([*hostile.TEXTS, "a\nb\n\nc", "1,2,3", "x" * 5000, "my.model:LM"]).encode()
        return b"\x1b[200~" + text + chance.choice([b"\x1b[201~"] * 9 + [b"\x1b[201"])
    if kind < 0.98:
        return chance.choice(_ODD)
    return chance.choice([*_SIZES, (chance.randrange(1, 250), chance.randrange(1, 80))])


def a_click(chance: random.Random) -> bytes:
    """A mouse input in SGR codes: one click or two, a drag, a movement, the wheel, outside of the screen too."""
    x, y = chance.randrange(1, chance.choice([20, 80, 130])), chance.randrange(1, chance.choice([6, 24, 42]))
    press, release = b"\x1b[<0;%d;%dM" % (x, y), b"\x1b[<0;%d;%dm" % (x, y)
    match chance.randrange(6):
        case 0 | 1:
            return press + release
        case 2:
            return (press + release) * chance.choice([2, 3])
        case 3:
            return press + b"\x1b[<32;%d;%dM" % (x + 9, y) + release
        case 4:
            return b"\x1b[<%d;%d;%dM" % (chance.choice([64, 65, 66, 67]), x, y)
        case _:
            return b"\x1b[<35;%d;%dM" % (x, y)


_TELLING = """
import sys, traceback
from textual.app import App
ended = App._handle_exception
def telling(self, error):
    with open("crash.txt", "a") as file:
        traceback.print_exception(error, file=file)
    ended(self, error)
App._handle_exception = telling
from cs336_tui.cli.main import main
main()
"""
"""Starts the app, which writes why it crashed to a file too: on a small screen a traceback cannot be read."""


class Played(NamedTuple):
    """Result of a seed's inputs: inputs that the app took, starts of the app, problem."""

    inputs: int
    starts: int
    took_s: float
    problem: str = ""


@contextlib.contextmanager
def an_app(home: Path, words: list[str]) -> Iterator[Terminal]:
    """The app in a terminal, its files in a folder of its own."""
    folders = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    command = ["env", "-C", str(home), sys.executable, "-c", _TELLING, "--session-dir", str(home / "sessions"), *words]
    terminal = Terminal(command, env=folders | {"HOME": str(home)}, emulate=False)
    try:
        yield terminal
    finally:
        terminal.close()


def send(terminal: Terminal, what: bytes | tuple[int, int]) -> None:
    """Send an input to the terminal; does nothing if the app has ended."""
    with contextlib.suppress(OSError):
        if isinstance(what, tuple):
            terminal.resize(*what)
        while not isinstance(what, tuple) and what and not terminal.is_over:
            what = what[os.write(terminal.process.fd, what[:512]) :]


def taken(terminal: Terminal) -> None:
    """Wait until the app has handled all inputs, which its answer to a change of size shows."""
    size = terminal.process.getwinsize()
    send(terminal, (size[1] + 1 if size[1] < 250 else 100, size[0]))
    before = terminal.bytes_written
    give_up_at = time.monotonic() + PATIENCE_S
    while terminal.bytes_written == before and not terminal.is_over and time.monotonic() < give_up_at:
        time.sleep(0.005)


def problem_of(terminal: Terminal, home: Path) -> str:
    """Problem of an app that has ended; empty if there is none."""
    raw = bytes(terminal.raw)
    if terminal.process.exitstatus != 0:
        why = home / "crash.txt"
        said = why.read_text() if why.exists() else raw[-2000:].decode(errors="replace")
        return f"ended with {terminal.process.exitstatus}, signal {terminal.process.signalstatus}: {said[-6000:]}"
    with contextlib.suppress(termios.error):
        usual = termios.ICANON | termios.ECHO | termios.ISIG
        if termios.tcgetattr(terminal.process.fd)[3] & usual != usual:
            return "the terminal is still in raw mode"
    if missing := [code for taken, code in TAKEN_AND_RESTORED if raw.rfind(code) <= raw.rfind(taken)]:
        return f"the terminal was not given back: {missing}"
    return ""


def play(words: list[str], count: int, seed: str, log: bytes, batch: int) -> Played:
    """Send `count` inputs to the app, `batch` at a time without waiting; restart it when an input quits it."""
    chance, done, starts, began = random.Random(seed), 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        (home / "sessions").mkdir()
        (home / "sessions/2026-01-01T00-00-00-good.jsonl").write_bytes(log)
        while done < count:
            starts += 1
            with an_app(home, words) as terminal:
                terminal.until_bytes(b"\x1b[?1049h")
                if chance.random() < 0.5:
                    taken(terminal)
                while done < count and not terminal.is_over:
                    for _ in range(batch):
                        send(terminal, an_input(chance))
                    done += batch
                    taken(terminal)
                for last in (b"\x1b[201~", b"\x1b\x1b", QUIT):
                    send(terminal, last)
                    taken(terminal)
                try:
                    terminal.wait(PATIENCE_S)
                except AssertionError:
                    return Played(done, starts, time.monotonic() - began, "did not end when it was told to")
                if problem := problem_of(terminal, home):
                    return Played(done, starts, time.monotonic() - began, problem)
    return Played(done, starts, time.monotonic() - began)


LIVE = "--size tiny --context 16 --batch 1 --warmup 2 --steps 1000000 --pass forward --threads 1 --device cpu".split()


def good_log() -> bytes:
    return b"".join(map(hostile.line, hostile.base_log()))


def replayed(count: int, seed: str, batch: int) -> Played:
    """Inputs into the replay of a session that has every kind of report."""
    log = "sessions/2026-01-01T00-00-00-good.jsonl"
    return play(["--replay", log, "--speed", "0"], count, seed, good_log(), batch)


def live(count: int, seed: str, batch: int) -> Played:
    """Inputs into an app that can run cells."""
    return play(LIVE, count, seed, good_log(), batch)


MODES = {"replayed": replayed, "live": live}


@click.command()
@click.option("--count", default=50_000, show_default=True, help="Inputs in all.")
@click.option("--seeds", default=5, show_default=True, help="Of each kind of session.")
@click.option("--first-seed", default=336, show_default=True)
@click.option("--batch", default=40, show_default=True, help="Inputs that are sent without waiting.")
@click.option("--mode", "modes", multiple=True, type=click.Choice(list(MODES)))
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(count: int, seeds: int, first_seed: int, batch: int, modes: tuple[str, ...], output: Path | None) -> None:
    rows = []
    chosen = modes or tuple(MODES)
    for mode in chosen:
        for seed in range(first_seed, first_seed + seeds):
            found = MODES[mode](count // (seeds * len(chosen)), f"{mode} {seed}", batch)
            rows.append(
                [
                    mode,
                    str(seed),
                    str(found.inputs),
                    str(found.starts),
                    f"{found.took_s:.0f} s",
                    found.problem.strip().splitlines()[-1][:80] if found.problem else "none",
                ]
            )
            click.echo(f"{rows[-1]}\n{found.problem}", err=True)
    body = table(["session", "seed", "inputs", "starts", "took", "crashes"], rows)
    publish(
        "Keys, clicks, pastes and resizes",
        f"python -m benchmarks.fuzz_keys --count {count} --seeds {seeds}",
        body,
        output,
    )


if __name__ == "__main__":
    main()
