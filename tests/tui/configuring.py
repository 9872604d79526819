"""The Configure pane alone on a screen, and a driver for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Container
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from cs336_tui import tui
from cs336_tui.config import spec
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.preferences import VARIABLE_DEFAULTS
from cs336_tui.tui.requests import Requests
from cs336_tui.tui.widgets.entries import Chips, Fold, TextEntry
from tests.samples import ENVIRONMENT
from tests.tui.watched import frame_waits

W = TypeVar("W", bound=Widget)
STYLES = Path(tui.__file__).with_name("app.tcss")
CPU = DeviceInfo(name="cpu", label="a CPU", precisions=("fp32", "bf16-mixed"))
GPU = DeviceInfo(name="cuda:0", label="a GPU", precisions=spec.PRECISIONS)
HERE = replace(ENVIRONMENT, devices=(CPU, GPU))
"""A machine with a CPU and a GPU."""
MOST_ROUNDS = 50
"""Limit of rounds of messages, far more than one key causes."""
NARROW, WIDE = (30, 24), (80, 20)
TYPED = {
    "comma": ",", "minus": "-", "full_stop": ".", "space": " ", "left_square_bracket": "[", "colon": ":",
    "percent_sign": "%",
}  # fmt: skip
"""Character typed by each named key."""


class Host(App[None]):
    """An app with the Configure pane alone, which keeps what the pane asks for."""

    CSS = "Container { height: 1fr; }"
    CSS_PATH = STYLES

    def __init__(self, pane: ConfigurePane) -> None:
        super().__init__()
        self.animation_level = "none"
        self.pane = pane
        self.asked: Asked = []
        self.requests = replace(recording(self.asked), choices_changed=self._keep_choices)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return VARIABLE_DEFAULTS

    def compose(self) -> ComposeResult:
        with Container():
            yield self.pane

    def _keep_choices(self) -> None:
        self.asked.append(("choices_changed", (self.pane.form.sweep, self.pane.form.problems)))

    def action_stop_cells(self) -> None:
        self.asked.append(("stop", ()))

    def action_export(self) -> None:
        self.asked.append(("export", ()))


class Hand:
    """Drives the pane by keyboard and mouse, and reads its screen."""

    def __init__(self, host: Host, pilot: Pilot[None]) -> None:
        self.host, self.pane, self.pilot = host, host.pane, pilot

    async def press(self, *keys: str) -> None:
        """Press keys, each after all effects of the one before."""
        for key in keys:
            self.host.post_message(events.Key(key, TYPED.get(key, key if len(key) == 1 else None)))
            await self.settle()

    async def settle(self) -> None:
        """Let messages go from the innermost widget to the app until none is under way and the screen is drawn."""
        for _ in range(MOST_ROUNDS):
            while self.messages_wait():
                await asyncio.sleep(0)
            await self.host.animator.wait_until_complete()
            await self.pilot.pause(0)
            if not self.messages_wait() and not self.drawing_waits():
                return
        raise AssertionError(f"messages go on after {MOST_ROUNDS} rounds")

    def messages_wait(self) -> bool:
        """True if a message waits in a queue or is held by a message pump."""
        pumps = (self.host, *self.host.screen.walk_children(with_self=True))
        return any(pump.message_queue_size > 0 or pump._pending_message is not None for pump in pumps)

    def drawing_waits(self) -> bool:
        """True if an animation, layout, scroll, repaint or a call after a refresh is still to come."""
        pumps = (self.host, *self.host.screen.walk_children(with_self=True))
        animated = bool(self.host.animator._animations)
        return animated or frame_waits(self.host) or any(pump._next_callbacks for pump in pumps)

    def entry(self, field: str, kind: type[W]) -> W:
        return self.pane.query_one(f"#entry-{field.replace('_', '-')}", kind)

    async def go_to(self, widget: Widget) -> None:
        inner = widget.query_one(Input) if isinstance(widget, TextEntry) else widget
        inner.focus()
        await self.settle()

    async def tick(self, field: str, value: str) -> None:
        """Toggle a chip by keyboard."""
        chips = self.entry(field, Chips)
        await self.go_to(chips)
        at = chips.chips.index(value)
        while chips.cursor != at:
            await self.press("right" if chips.cursor < at else "left")
        await self.press("space")

    async def type(self, field: str, text: str) -> None:
        """Replace what stands in a text entry."""
        names = {char: name for name, char in TYPED.items()}
        await self.go_to(self.entry(field, TextEntry))
        await self.press("end", "ctrl+u", *(names.get(char, char) for char in text))

    def fold(self, name: str = "more") -> Fold:
        return self.pane.query_one(f"#fold-{name}", Fold)

    async def unfold(self, name: str = "more") -> None:
        await self.go_to(self.fold(name))
        await self.press("enter")

    def seen(self, widget: Widget | None = None) -> str:
        """Visible text of a widget, by default of the whole screen."""
        region = widget.region if widget else self.host.screen.region
        visible = region.intersection(self.host.screen.region)
        strips = self.host.screen._compositor.render_strips()
        return "\n".join(strip.crop(visible.x, visible.right).text for strip in strips[visible.y : visible.bottom])

    @property
    def summary(self) -> str:
        return self.seen(self.pane.query_one("#summary"))

    def button(self, name: str) -> Widget:
        return self.pane.query_one(f"#{name}")

    def asked(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each request of this name."""
        return [arguments for asked, arguments in self.host.asked if asked == name]


@asynccontextmanager
async def opened(size: tuple[int, int] = WIDE, *, here: bool = True, **options: Any) -> AsyncIterator[Hand]:
    host = Host(ConfigurePane(**options))
    async with host.run_test(size=size) as pilot:
        if here:
            host.pane.set_environment(HERE)
        await pilot.pause()
        yield Hand(host, pilot)


def reachable(hand: Hand) -> list[Widget]:
    """Visible widgets that take the focus."""
    widgets = (widget for widget in hand.pane.query("*") if widget.focusable)
    return [widget for widget in widgets if all(each.display for each in widget.ancestors_with_self)]


Asked = list[tuple[str, tuple[Any, ...]]]
"""Names of requests, each with its arguments, in the order in which they came."""


def recording(asked: Asked) -> Requests:
    """Requests that are kept in `asked`."""

    def keep(name: str) -> Any:
        return lambda *arguments: asked.append((name, arguments))

    return Requests(**{name: keep(name) for name in Requests.__struct_fields__})
