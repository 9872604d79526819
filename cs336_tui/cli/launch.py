"""Starts the app from the flags of `cs336-tui`, and returns its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import platformdirs

from cs336_tui.config.choices import sweep_from
from cs336_tui.runner.capabilities import fields_of_preset
from cs336_tui.session.recorder import Sink

if TYPE_CHECKING:
    from cs336_tui.runner.bench import Bench
    from cs336_tui.tui.app import Cs336App


def open_app(
    *,
    replay: Path | None,
    speed: float,
    theme: str | None,
    refresh: float,
    low_bandwidth: bool,
    summary: Path | None,
    ddof: int,
    timeout_s: float | None,
    session_dir: Path,
    device_interval_s: float,
    **choices: Any,
) -> int:
    """Run the app until it is quit; returns its exit code.

    Raises `UserError` or `click.ClickException` for flags that cannot be, before the terminal is touched.
    """
    if replay is not None and not replay.is_file():
        raise click.UsageError(f"--replay {replay}: no such file; expected a session log (.jsonl)")
    if summary is not None:
        from cs336_tui.export.file_formats import check_markdown
        from cs336_tui.export.files import check_writable

        check_markdown("--summary", summary)
        check_writable(summary)
    chosen = any(value not in (None, ()) for value in choices.values())
    sweep = sweep_from(**choices) if chosen else None
    of_preset = fields_of_preset(choices.get("preset_name"), choices)

    def make_bench(sink: Sink, log: Path | None) -> Bench:
        from cs336_tui.runner.bench import Bench

        return Bench(
            sink,
            session_dir=log.parent if log else session_dir,
            session=log.stem if log else None,
            ddof=ddof,
            timeout_s=timeout_s,
            device_interval_s=device_interval_s,
        )

    from cs336_tui.tui.app import Cs336App
    from cs336_tui.tui.configure.form import RunOptions

    return _run(
        Cs336App(
            None if replay else make_bench,
            replay=replay,
            speed=speed,
            theme=theme,
            refresh_hz=refresh,
            low_bandwidth=low_bandwidth,
            initial=sweep,
            options=RunOptions(ddof=ddof, timeout_s=timeout_s),
            may_leave_out=of_preset,
            summary_path=summary,
            user_theme_dir=_theme_dir(),
            session_dir=session_dir,
        )
    )


def open_watch(path: Path, *, theme: str | None, low_bandwidth: bool) -> int:
    """Run the app on the session with this log, which others run, until it is quit; returns its exit code."""
    from cs336_tui.tui.app import Cs336App

    return _run(
        Cs336App(
            watch=path, theme=theme, low_bandwidth=low_bandwidth, user_theme_dir=_theme_dir(), session_dir=path.parent
        )
    )


def _theme_dir() -> Path:
    return platformdirs.user_config_path("cs336-tui", appauthor=False) / "themes"


def _run(app: Cs336App) -> int:
    try:
        app.run()
    finally:
        app.close()
    from cs336_tui.tui.farewell import say

    say(app.farewell())
    for problem in app.log_problems:
        click.echo(f"cs336-tui: not saved as asked: {problem}", err=True)
    return app.return_code or int(bool(app.log_problems))
