"""Start-up: time from exec to the first painted frame in a 120x40 pty, paired with a hello-world Textual app; bytes and
cells that are written until the machine has been read and nothing changes any more."""

from __future__ import annotations

import compileall
import os
import statistics
import sys
import tempfile
from pathlib import Path

import click

from benchmarks.reporting import app, publish, spread, table, verdict
from tests.terminal import Terminal, painted

COMMAND = app()
HELLO = [sys.executable, str(Path(__file__).with_name("hello_textual.py"))]
MARK = 1.5
MOST_BYTES = 20_000
CELLS = 120 * 40


def first_frame_s(command: list[str], painted: bytes, env: dict[str, str]) -> float:
    """Seconds from exec until the app has written `painted`."""
    terminal = Terminal(command, env=env, emulate=False)
    try:
        return terminal.until_bytes(painted)
    finally:
        terminal.close()


def first_screen(env: dict[str, str]) -> tuple[int, float]:
    """Bytes until the first screen is idle, and the cells that were written over those of the screen."""
    terminal = Terminal(COMMAND, env=env)
    try:
        terminal.until(lambda text: "torch" in text and "predicting" not in text)
        return terminal.bytes_written, painted(bytes(terminal.raw)) / CELLS
    finally:
        terminal.close()


@click.command()
@click.option("--pairs", default=15, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Append the result to this file.")
def main(pairs: int, output: Path | None) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    compileall.compile_dir("cs336_tui", quiet=1)
    with tempfile.TemporaryDirectory() as home:
        env = {"XDG_DATA_HOME": home, "XDG_CONFIG_HOME": home}
        ours, hello = [], []
        for pair in range(pairs + 1):
            times = first_frame_s(COMMAND, b"Configure", env), first_frame_s(HELLO, b"Hello", env)
            if pair:  # the first pair warms the disk cache
                ours.append(times[0])
                hello.append(times[1])
        size, share = first_screen(env)
    ratios = [a / b for a, b in zip(ours, hello, strict=True)]
    rows = [
        ["cs336-tui", spread(ours), ""],
        ["hello-world Textual app", spread(hello), ""],
        ["ratio", spread(ratios, 2), f"at most {MARK}: {verdict(statistics.median(ratios), 0, MARK)}"],
        ["first screen, kB until idle", f"{size / 1e3:.1f}", f"at most 20: {verdict(size, 0, MOST_BYTES)}"],
        ["cells written over those of the screen", f"{share:.2f}", "1: painted once; more is what changes later"],
    ]
    body = table(["", f"first frame, s: median of {pairs} (least to greatest)", "mark"], rows)
    publish("Start", f"python -m benchmarks.start --pairs {pairs}", body, output)


if __name__ == "__main__":
    main()
