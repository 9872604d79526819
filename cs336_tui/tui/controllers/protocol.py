"""The part of the app that its controllers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from textual.dom import DOMNode
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme
from textual.timer import Timer

from cs336_tui.config.presets import Preset
from cs336_tui.config.settings import Settings
from cs336_tui.events.events import Event
from cs336_tui.session.state import SessionState
from cs336_tui.tui.judging import Judging
from cs336_tui.tui.screen import MainScreen
from cs336_tui.tui.session import Session
from cs336_tui.tui.themes import ThemeChoice


class Host(Protocol):
    """State of the screen and of the run, and the ways to change either or to tell the person something."""

    live: Session
    """The session that the app runs or replays."""
    judging: Judging
    replaying: bool
    """True if the app plays a log, or watches one that others write, instead of running cells."""
    run_in_progress: bool
    """True while cells run, reports are made, or a log is played."""
    themes: ThemeChoice
    theme: Any
    """The name of the theme that is on."""
    export_folder: Path | None
    """The folder that was exported to last; None: the one that the app was started in."""
    stale: bool
    """True if something else is to be shown than what was painted last; the next refresh shows it."""

    @property
    def shown(self) -> Session:
        """The session on the screen: `live`, or another one that was opened."""

    @property
    def state(self) -> SessionState:
        """State of the session on the screen."""

    @property
    def settings(self) -> Settings:
        """The person's settings."""

    @property
    def main(self) -> MainScreen:
        """The screen below all dialogs."""

    @property
    def is_up(self) -> bool:
        """True if there is a screen: not before the app starts, nor when it has ended."""

    def attach_bench(self, session: Session, log: Path | None) -> bool:
        """Give a session a bench that runs its cells into `log`, a new one when None; False if this app runs none."""

    def take(self, session: Session, events: Sequence[Event]) -> None:
        """Take a batch of a session's events, from any thread, without waiting."""

    def look_at(self, session: Session | None) -> None:
        """Show another session, or `live` again."""

    async def action_open(self, pane: str) -> None:
        """Bring a pane into sight, put the focus into it and bring it up to date."""

    def open_soon(self, pane: str) -> None:
        """Bring a pane into sight, and put the focus into it once it is there."""

    def load_preset(self, preset: Preset) -> None:
        """Fill the Configure pane with what of a preset this machine can run."""

    def report(self, text: str) -> None:
        """Tell the person of a failure, and keep it in the Log tab."""

    def paint(self) -> None:
        """Show the newest state now."""

    def refresh_panes(self) -> None:
        """Show the newest state as soon as what was asked for has been laid out."""

    @property
    def keymap(self) -> Mapping[str, str]:
        """The keys of the actions that were moved, by their ids."""

    # As Textual's.

    @property
    def available_themes(self) -> Mapping[str, Theme]: ...
    @property
    def screen(self) -> Screen[Any]: ...
    @property
    def is_running(self) -> bool: ...
    def push_screen(self, screen: Screen[Any], callback: Callable[[Any], None] | None = None) -> object: ...
    def refresh_bindings(self) -> None: ...
    def copy_to_clipboard(self, text: str) -> None: ...
    def post_message(self, message: Message) -> bool: ...
    def call_later(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> bool: ...
    def set_timer(self, delay: float, callback: Callable[[], Any] | None = None) -> Timer: ...
    def exit(self) -> None: ...
    async def run_action(self, action: str, default_namespace: DOMNode | None = None) -> bool: ...
    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: Literal["information", "warning", "error"] = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None: ...
