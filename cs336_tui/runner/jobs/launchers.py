"""The choice of a launcher, as a session keeps it, and the launcher of a choice."""

from __future__ import annotations

from typing import Literal

import msgspec

from cs336_tui.runner.jobs.job import JobLauncher, LaunchError

LauncherName = Literal["slurm", "ssh", "local"]
JobForm = Literal["array", "allocation"]


class LaunchChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of ``--launcher``, kept as `launcher.json` beside the requests, so that ``watch``, ``resume`` and
    ``cancel`` need none. None: not given."""

    launcher: LauncherName
    form: JobForm | None = None
    """``--as``."""
    partition: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    lanes: int | None = None
    """On each node; 0: ``auto``."""
    time: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    """``--slurm KEY=VALUE``, in their order."""
    hosts: tuple[str, ...] = ()
    """``--host``, in their order."""


def make_launcher(choice: LaunchChoice) -> JobLauncher:
    """The launcher of a choice. Raises `LaunchError` if it cannot be used here."""
    if choice.launcher == "local":
        from cs336_tui.runner.jobs.local import LocalLauncher

        return LocalLauncher()
    raise LaunchError(f"--launcher {choice.launcher}: not known here")
