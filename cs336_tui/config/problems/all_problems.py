"""The handouts' problems, each declared once: what a session answers each part of it with.

Derived from `PROBLEMS` are ``export --problem``, `cs336-tui problems`, the app's list of problems and the test of
``docs/problems.md``. A preset named ``EDITION/NAME`` runs what the problem asks for. `export.problems` makes what an
`Answer` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cs336_tui.config.axis import SpecError
from cs336_tui.config.problems.one_device import LEADERBOARDS, ONE_DEVICE
from cs336_tui.config.problems.problem import Problem
from cs336_tui.config.problems.several_ranks import SEVERAL_RANKS

PROBLEMS: tuple[Problem, ...] = (*ONE_DEVICE, *SEVERAL_RANKS, *LEADERBOARDS)
"""In the order of the handouts. A name has one row for each way in which editions ask for it."""


def problem_named(name: str, editions: tuple[str, ...] = ()) -> tuple[Problem, str]:
    """The problem of that name, ``EDITION/NAME`` or ``NAME``, its own or its preset's, and its edition: the first of
    `editions` that has it, else its newest. Raises `SpecError` naming the known ones."""
    asked, slash, word = name.rpartition("/")
    rows = {
        edition: row
        for row in PROBLEMS
        if _plain(word) in (_plain(row.name), _plain(row.preset_name or row.name))
        for edition in row.editions
    }
    for edition in (asked,) if slash else (*editions, *sorted(rows, reverse=True)):
        if edition in rows:
            return rows[edition], edition
    known = ", ".join(dict.fromkeys(row.name for row in PROBLEMS if not slash or asked in row.editions))
    if slash and not known:
        known = ", ".join(dict.fromkeys(row.name for row in PROBLEMS))
    raise SpecError("problem", name, f"expected one of {known}")


def problem_of_preset(name: str) -> str:
    """The problem whose preset this is; empty for another preset."""
    return next((row.name for edition, row in every_problem() if row.preset(edition) == name), "")


def every_problem() -> Iterator[tuple[str, Problem]]:
    """Each edition with each of its problems, the newest edition first."""
    for edition in sorted({edition for row in PROBLEMS for edition in row.editions}, reverse=True):
        yield from ((edition, row) for row in PROBLEMS if edition in row.editions)


def _plain(name: str) -> str:
    """A name as people spell it: ``warm-up`` is ``warmup``."""
    return re.sub(r"[-_ ]", "", name).lower()
