"""The launcher of a choice."""

from __future__ import annotations

from cs336_tui.runner.jobs.choice import LaunchChoice
from cs336_tui.runner.jobs.job import JobLauncher, LaunchError


def make_launcher(choice: LaunchChoice) -> JobLauncher:
    """The launcher of a choice. Raises `LaunchError` if it cannot be used here."""
    if choice.launcher == "local":
        from cs336_tui.runner.jobs.local import LocalLauncher

        return LocalLauncher()
    if choice.launcher == "slurm":
        from cs336_tui.runner.jobs.slurm import SlurmLauncher

        return SlurmLauncher(choice)
    if choice.launcher == "ssh":
        from cs336_tui.runner.jobs.ssh import SshLauncher

        return SshLauncher(choice)
    raise LaunchError(f"--launcher {choice.launcher}: not known here")
