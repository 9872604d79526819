"""Keys of all tests of the screen wait for their effects in `watched.idle`, and only for widgets at work; all apps of a
process parse a style sheet once."""

import asyncio
from typing import Any

import pytest
import textual.app
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout

from tests.tui.watched import Benches, idle


@pytest.fixture
def bench() -> Benches:
    return Benches()


textual.app.wait_for_idle = idle  # type: ignore[attr-defined]


def _is_at_work(pump: MessagePump) -> bool:
    """True unless it has nothing to do but wait for a message."""
    queue: Any = pump._message_queue
    return not (queue.empty() and queue.ready_event._waiters)


async def _wait_for_screen(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
    """As Textual's, which has every widget answer a message: a third of the time of a form's tests. Others than those
    at work would answer at once."""
    app, answers = pilot.app, []
    for pump in (app, *app.screen.walk_children(with_self=True)) if app.screen_stack else ():
        answered = asyncio.Event()
        if _is_at_work(pump) and pump.call_later(answered.set):
            answers.append(answered.wait())
    if not answers:
        return bool(app.screen_stack)
    waits = [asyncio.gather(*answers), asyncio.ensure_future(app._exception_event.wait())]
    done, pending = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        each.cancel()
    if not done:
        raise WaitForScreenTimeout("widgets are at work for too long")
    return waits[0] in done


Pilot._wait_for_screen = _wait_for_screen  # type: ignore[method-assign]

_parse_rules = Stylesheet._parse_rules
_parsed: dict[object, list[RuleSet]] = {}


def _parse_rules_once(sheet: Stylesheet, css: str, read_from: Any, **more: Any) -> list[RuleSet]:
    """As Textual's, which parses the sheets of all widgets for each app: a twentieth of the time of these tests."""
    key = (css, read_from, *sorted(more.items()), frozenset(sheet._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, css, read_from, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_rules_once  # type: ignore[method-assign]
