"""The bottom row: the keys that do something here."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.screen import Screen

from cs336_tui.tui.widgets.lines import Lines, Span, width_of


class KeyBar(Lines):
    """Lists the bindings in force that are meant to be shown; a click presses the key."""

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._on_bindings)

    def _on_bindings(self, screen: Screen[object]) -> None:
        if screen.is_attached and screen.is_current:
            self._show()

    def on_resize(self) -> None:
        self._show()

    def _shown(self) -> list[tuple[str, Binding]]:
        """Keys as they are printed, in the order of the bindings, most telling first."""
        seen: dict[str, tuple[str, Binding]] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.show and active.enabled and binding.action not in seen:
                seen[binding.action] = (self.app.get_key_display(binding), binding)
        return list(seen.values())

    def _show(self) -> None:
        spans: list[Span] = []
        for key, binding in self._shown():
            item = [Span(f" {key}", "key"), Span(f" {binding.description} ", "muted")]
            if width_of((*spans, *item)) > self.content_size.width:
                break
            spans += item
        self.paint([tuple(spans)])

    async def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        right = 0
        for key, binding in self._shown():
            right += width_of((Span(f" {key} {binding.description} "),))
            if offset is not None and offset.x < right:
                await self.app.run_action(binding.action)
                return
