"""`cs336-tui open`: a session of what others recorded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cs336_tui.cli.flags import options, session_dir_option
from cs336_tui.cli.help import command, heading
from cs336_tui.cli.streams import StatusLine
from cs336_tui.session.recordings.opening import FORMATS, open_recordings
from cs336_tui.session.recordings.recording import Opening, phases_of

_MEGABYTE = 10**6


class _Progress:
    """Shows how much of a file has been read."""

    def __init__(self) -> None:
        self._line = StatusLine(sys.stderr)

    def __call__(self, done: int, total: int) -> None:
        share = f" of {total / _MEGABYTE:,.0f} MB, {done / total:.0%}" if total else " MB"
        self._line.show(f"reading {done / _MEGABYTE:,.0f}{share}")

    def clear(self) -> None:
        self._line.clear()


@command("open", epilog=f"What can be opened: {', '.join(each.what for each in FORMATS)}.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@heading("Which cells")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE=RANGE",
    help="Range that counts as this phase, besides the usual names, such as forward=model_fwd or optimizer='adam*'; "
    "may be repeated.",
)
@options(session_dir_option)
def open(*, files: Sequence[Path], phases: Sequence[str], session_dir: Path) -> str:
    """Make a session of traces, memory snapshots or nsys reports that others recorded; print its name.

    Each file becomes a cell for each device, several ranks of one run become one session.

    \f
    Raises `UserError`; then there is no new session.
    """
    progress = _Progress()
    try:
        log = open_recordings(files, session_dir, Opening(progress, phases_of(phases)))
    finally:
        progress.clear()
    return log.stem
