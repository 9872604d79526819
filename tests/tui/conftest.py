"""Keys of all tests of the screen wait for their effects in `watched.idle`."""

from __future__ import annotations

import textual.app

from tests.tui.watched import idle

textual.app.wait_for_idle = idle  # type: ignore[attr-defined]
