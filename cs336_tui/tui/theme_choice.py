"""Which themes the app offers and which of them it starts with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.app import App

from cs336_tui.tui import themes


class ThemeChoice:
    """The themes of `app`: one is on from the start, the others load when something is on the screen.

    `wanted` is the theme to start with, ours or one of the person's own in `user_directory`.
    """

    def __init__(self, app: App[Any], wanted: str | None, user_directory: Path | None) -> None:
        self._app, self._wanted, self._user_directory = app, wanted, user_directory
        self.names: tuple[str, ...] = ()
        """Our own, then the person's."""
        first = themes.bundled(wanted or themes.DEFAULT_THEME) or themes.bundled(themes.DEFAULT_THEME)
        assert first is not None
        app.register_theme(first)
        app.theme = first.name

    def load(self) -> tuple[str, ...]:
        """Load all themes and turn the wanted one on; lines that say what is wrong with any."""
        found = [themes.load_bundled()]
        if self._user_directory is not None:
            found.append(themes.load_user(self._user_directory))
        for theme in (theme for group in found for theme in group.themes):
            self._app.register_theme(theme)
            self.names = (*self.names, theme.name)
        problems = tuple(problem for group in found for problem in group.problems)
        if not self._wanted:
            return problems
        if self._wanted not in self._app.available_themes:
            return (*problems, f"theme {self._wanted}: expected one of {', '.join(self.names)}")
        self._app.theme = self._wanted
        return problems

    def next(self) -> str:
        """The name of the theme after the one that is on."""
        on = self._app.theme
        if not self.names:  # they are still to be loaded
            return on
        return self.names[(self.names.index(on) + 1) % len(self.names)] if on in self.names else self.names[0]
