"""The smallest Textual app, against which start-up is compared."""

from textual.app import App, ComposeResult
from textual.widgets import Static


class Hello(App[None]):
    def compose(self) -> ComposeResult:
        yield Static("Hello, World!")


if __name__ == "__main__":
    Hello().run()
