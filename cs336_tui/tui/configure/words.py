"""The words below the form: what the entry under the cursor means, and what all choices come to."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from textual.widget import Widget

from cs336_tui.config.spec import SpecError
from cs336_tui.events.environment import Environment
from cs336_tui.tui.format import cut_to_lines
from cs336_tui.tui.keys import key_name
from cs336_tui.tui.widgets.entries import Chips, Entry, Fold, PushButton

_BUTTONS = {
    "run": ("Runs these cells, or adds them to the queue", "app.run"),
    "stop": ("Stops the run; Resume continues it later", "app.stop"),
    "resume": ("Continues the stopped run, in the same log", "app.resume"),
    "export": ("Writes tables, figures and the summary to files", "app.export"),
}
"""The action of each button, and of the key that does the same."""
PREDICTING = "predicting ..."
"""In place of a prediction that is not there yet."""
_SUMMARY_LINES = 5
"""Maximum height of the summary, as in its style."""


def about(focused: Widget | None, edition: str, environment: Environment | None) -> str:
    """Words on the entry or button with the focus, with its unit, and on the choice under its cursor."""
    from cs336_tui.config.meanings import meaning

    entry = next((each for each in focused.ancestors_with_self if isinstance(each, Entry)), None) if focused else None
    if isinstance(entry, Chips) and entry.under_cursor:
        device = environment.device(entry.under_cursor) if environment else None
        return meaning(entry.field, entry.under_cursor, edition, device.label if device else "")
    if isinstance(entry, Entry):
        return meaning(entry.field)
    if isinstance(focused, Fold):
        return "Enter hides these entries." if focused.open else "Enter shows more entries."
    if isinstance(focused, PushButton) and focused.id in _BUTTONS:
        does, binding = _BUTTONS[focused.id]
        return f"{does} ({key_name(binding)})."
    return ""


def summary_lines(said: str, foreseen: str, problems: Sequence[SpecError], width: int) -> list[str]:
    """The first problem, or what is chosen (cells and steps) and what is predicted of it."""
    if problems:
        others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return cut_to_lines(f"✗ {problems[0]}{others}", width, _SUMMARY_LINES)
    said = f"{said} ·" if foreseen else said
    if len(said) + 1 + len(foreseen) <= width:
        return [f"{said} {foreseen}".rstrip()]
    first = textwrap.wrap(said, width, break_on_hyphens=False)
    return [*first, *cut_to_lines(foreseen, width, max(_SUMMARY_LINES - len(first), 1))]
