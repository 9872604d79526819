"""The launcher of a choice."""

from __future__ import annotations

from collections.abc import Iterator

from cs336_tui.runner.jobs.job import JobLauncher, LaunchChoice, LaunchError


def make_launcher(choice: LaunchChoice) -> JobLauncher:
    """The launcher of a choice. Raises `LaunchError` if it cannot be used here."""
    for option, text in _texts(choice):
        if not text.isprintable():  # a line of its own would be run by the batch script
            raise LaunchError(f"{option} {text!r}: expected one line without control characters")
    if choice.launcher == "local":
        from cs336_tui.runner.jobs.local import LocalLauncher

        return LocalLauncher()
    from cs336_tui.runner.jobs.slurm import SlurmLauncher

    return SlurmLauncher(choice)


def _texts(choice: LaunchChoice) -> Iterator[tuple[str, str]]:
    """The texts of a choice that reach a script or a command, with their options."""
    yield from (("--partition", choice.partition or ""), ("--time", choice.time or ""))
    yield from (("--slurm", "=".join(pair)) for pair in choice.parameters)
