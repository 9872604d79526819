"""Starts the app from the flags of `cs336-tui`, and returns its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import platformdirs

from cs336_tui.config.axis import UserError
from cs336_tui.config.choices import sweep_from
from cs336_tui.config.reading import is_file
from cs336_tui.config.settings import Found, Settings, read_settings
from cs336_tui.events.environment import fields_of_preset
from cs336_tui.session.log import Sink

if TYPE_CHECKING:
    from cs336_tui.runner.bench import Bench


def open_app(
    *,
    replay: Path | None = None,
    speed: float = 1.0,
    theme: str | None = None,
    refresh: float | None = None,
    low_bandwidth: bool | None = None,
    summary: Path | None = None,
    ddof: int = 1,
    timeout_s: float | None = None,
    session_dir: Path,
    device_interval_s: float = 0.5,
    opened: Path | None = None,
    **choices: Any,
) -> int:
    """Run the app until it is quit, first on the session `opened`; returns its exit code.

    Raises `UserError` or `click.ClickException` for flags that cannot be, before the terminal is touched.
    """
    if replay is not None and not is_file(replay):
        raise click.UsageError(f"--replay {replay}: no such file; expected a session log (.jsonl)")
    if summary is not None:
        from cs336_tui.export.writing.files import check_markdown, check_writable

        check_markdown("--summary", summary)
        check_writable(summary, overwrite=True)
    found = read_settings()
    given = [name for name, value in choices.items() if value not in (None, ())]
    if not given and found.settings.preset != Settings().preset:
        try:
            sweep_from(**choices | {"preset_name": found.settings.preset})
        except UserError as error:
            found = found.without("preset", str(error))
        else:
            choices["preset_name"], given = found.settings.preset, ["preset_name"]
    sweep = sweep_from(**choices) if given else None
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

    from cs336_tui.tui.requests import RunOptions

    return _run(
        found,
        low_bandwidth,
        bench_factory=None if replay else make_bench,
        replay=replay,
        speed=speed,
        theme=theme,
        refresh_hz=refresh or found.settings.refresh,
        initial=sweep,
        initial_name=choices["preset_name"] if given == ["preset_name"] else "command line",
        options=RunOptions(ddof=ddof, timeout_s=timeout_s),
        may_leave_out=of_preset,
        summary_path=summary,
        session_dir=session_dir,
        opened=opened,
    )


def open_watch(path: Path, *, theme: str | None, low_bandwidth: bool | None) -> int:
    """Run the app on the session with this log, which others run, until it is quit; returns its exit code."""
    found = read_settings()
    return _run(
        found, low_bandwidth, watch=path, theme=theme, refresh_hz=found.settings.refresh, session_dir=path.parent
    )


def theme_dir() -> Path:
    return platformdirs.user_config_path("cs336-tui", appauthor=False) / "themes"


def _run(found: Found, low_bandwidth: bool | None, **of_app: Any) -> int:
    from cs336_tui.tui.app import Cs336App

    if low_bandwidth is None:
        low_bandwidth = found.settings.low_bandwidth
    app = Cs336App(settings=found, low_bandwidth=low_bandwidth, user_theme_dir=theme_dir(), **of_app)
    try:
        app.run()
    finally:
        app.close()
    from cs336_tui.tui.ending import say

    say(app.farewell())
    for problem in app.log_problems:
        click.echo(f"cs336-tui: not saved as asked: {problem}", err=True)
    return app.return_code or int(bool(app.log_problems))
