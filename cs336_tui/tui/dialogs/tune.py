"""The dialog that starts a race of what is chosen: its goal, the limit of memory and the time for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Input, Label

from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuned_sweep import Search, search_of
from cs336_tui.config.tuning import COSTS, budget_of, check_budget, check_goal, limit_of, space_of
from cs336_tui.stats.quantities import counted
from cs336_tui.tui.dialogs.windows import Dialog, OneOf, Press
from cs336_tui.tui.keys import bind_keys, key_name
from cs336_tui.tui.widgets.entries import Entry, TextEntry

BUDGET = "10m"
_MEANT = {
    "step": "the shortest step, with the same tokens in each",
    "tokens/s": "the most tokens a second",
    "tokens/J": "the most tokens a joule, where the device tells its energy",
    "memory": "the lowest peak of memory",
}


class TuneDialog(Dialog[Search]):
    """Answers with the search of a sweep's last pass on a device, or None on Escape. `over` are the choices that a
    preset searches; without any, those with several values."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("escape", "dismiss(None)", "Cancel", "tune.cancel"),
    ]

    def __init__(self, sweep: Sweep, device: str, over: Sequence[str] = ()) -> None:
        super().__init__()
        *others, one = sweep.passes
        self._sweep = msgspec.structs.replace(sweep, passes=(one,))
        self._pass = f"pass: {one}" + (f", the last of {len(sweep.passes)}" if others else "")
        self._device, self._over = device, over
        self._entered = {"goal": "step", "within": "", "budget": BUDGET}
        self._search: Search | None = None
        self._said = Label("", id="said", markup=False)
        self._problem = Label("", id="problem", markup=False)

    def compose(self) -> ComposeResult:
        move, turn = key_name("entry.previous", "entry.next"), key_name("chips.left", "chips.right")
        keys = f"{move} field · {turn} goal · Enter race · {key_name('tune.cancel')} leave"
        with self.box("Tune: race these choices", keys):
            yield OneOf("goal", "goal", COSTS, [self._entered["goal"]], multiple=False)
            yield TextEntry("within", "within", "", hint="no limit; 70GB, or 80%")
            yield TextEntry("budget", "budget", BUDGET, hint="90s, 10m, 2h")
            yield self._said
            yield self._problem
            with Horizontal(id="buttons"):
                yield Press("Race", id="race", variant="primary", compact=True)
                yield Press("Cancel", id="cancel", compact=True)

    def on_mount(self) -> None:
        self._read()

    def on_entry_changed(self, event: Entry.Changed) -> None:
        event.stop()
        self._entered[event.entry.field] = event.value if isinstance(event.value, str) else event.value[0]
        self._read()

    def _read(self) -> None:
        """Work out the search, or what is wrong with it."""
        within, budget = self._entered["within"], self._entered["budget"]
        goal = next(goal for goal in COSTS if goal == self._entered["goal"])
        self._search, problem = None, ""
        try:
            limit = limit_of(within) if within.strip() else {}
            search = search_of(self._sweep, self._over, goal, budget_of(budget), limit)
            tuning = search.tuning(search.start.with_devices((self._device,)).cells()[0])
            check_goal(goal, self._device)
            check_budget(tuning)
            space = space_of(tuning)
            out = f", {counted(len(space.left_out), 'combination')} cannot be" if space.left_out else ""
            count = f"{counted(len(space.candidates), 'candidate')}{out}; the first of each is the starting point"
            choices = (f"{each.name}: {', '.join(each.words)}" for each in tuning.over)
            self._said.update("\n".join([_MEANT[goal], self._pass, *choices, count, f"{tuning.visit_words} a visit"]))
            self._search = search
        except ValueError as error:
            problem = f"✗ {error}"
        self._problem.update(problem)
        self.query_one("#race", Button).disabled = self._search is None

    @on(Button.Pressed, "#cancel")
    def _leave(self) -> None:
        self.dismiss(None)

    @on(Button.Pressed, "#race")
    @on(Input.Submitted)
    def action_accept(self) -> None:
        if self._search is not None:
            self.dismiss(self._search)
