"""The pane in which a sweep is chosen and started."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import AwaitMount, Widget
from textual.widgets import Static

from cs336_tui.config.axis import Axis
from cs336_tui.config.presets import QUICK, Preset, RecentModel, recent_models
from cs336_tui.config.spec import CUSTOM_SIZE, size_names
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.values import LANGUAGE_MODEL
from cs336_tui.events.environment import LEFT_OUT, Environment, possible_here
from cs336_tui.session.state import SessionState
from cs336_tui.tui.configure import entries as parts
from cs336_tui.tui.configure.form import AFTER_OOM, Entries, Forecast, entries_of, entry_axes, read, summary_lines
from cs336_tui.tui.configure.preview import CellChoices
from cs336_tui.tui.format import cut_to_lines
from cs336_tui.tui.keys import bind_keys
from cs336_tui.tui.requests import RunOptions, requests_of
from cs336_tui.tui.widgets.entries import Chips, Entry, Fold, PushButton, TextEntry
from cs336_tui.tui.widgets.lines import Lines, joined, line

_read_elsewhere = lru_cache(maxsize=1)(read)
"""`read` without an environment, for entries that are asked about at every refresh."""
_FIRST_WIDTH = 33
"""Columns of the summary as long as the pane has not been laid out: those of the pane in a large terminal."""
_ABOUT_LINES = 9
"""Maximum height of the line on the entry under the cursor, as in its style."""
_ABOUT_FROM = 16
"""Height of the pane from which it is shown."""
_READ_S = 12.0
"""Seconds for which choices left out of a preset are shown."""
_TWO_COLUMNS_FROM = 64
"""Width at which the entries stand in two columns."""
_OPEN_FOLDS = {"variants": "model and variants", "more": "more"}
PREDICTING = "predicting ..."
"""In place of a prediction that is not there yet."""


class _Scroll(VerticalScroll, can_focus=False, inherit_bindings=False):
    """Scrolls the entries; takes neither focus nor keys from them."""


class _Buttons(Horizontal):
    """Buttons between which left and right move, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("left", "app.focus_previous", "Previous", "buttons.left", show=False),
        bind_keys("right", "app.focus_next", "Next", "buttons.right", show=False),
    ]


class ConfigurePane(Vertical):
    """Entries of a sweep, its size or what is wrong with it, and buttons. What is folded away stays in `Entries`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("up", "app.focus_previous", "Previous entry", "configure.previous", show=False),
        bind_keys("down", "app.focus_next", "Next entry", "configure.next", show=False),
        bind_keys("escape", "to_buttons", "Run button", "configure.to_buttons", shown_as="Esc"),
    ]

    def __init__(self, preset: Preset = QUICK, options: RunOptions | None = None, *, id: str = "configure") -> None:
        super().__init__(id=id, classes="-focused -offers")  # as it is at the start
        self.preset = preset
        """The preset that filled the entries last."""
        self._entries = entries_of(preset.sweep, options)
        self.form = read(self._entries)
        """The sweep that the entries mean; the devices of its sweep may be ``auto``."""
        self._environment: Environment | None = None
        self._adding = self._stopping = False
        self._may_leave_out: Collection[str] = ()
        """Fields of the preset that lose what the machine lacks as soon as it is known."""
        self._foreseen: tuple[Forecast, CellChoices | None] = Forecast(), None
        """The predicted needs, and the choices that they are of."""
        self._recent = recent_models()
        self._summary: list[str] = []
        self._unfolding: AwaitMount | None = None
        self._was_in_hand = False
        """True if Run or Stop had the focus when both were disabled."""

    @property
    def choices(self) -> CellChoices:
        """Choices that decide which cells Run adds."""
        return CellChoices(self.form.sweep, self.form.options.repeats, self._environment)

    @property
    def choices_elsewhere(self) -> CellChoices:
        """The same for a GPU that need not be here."""
        return CellChoices(_read_elsewhere(self._entries).sweep, self.form.options.repeats, None, elsewhere=True)

    @property
    def axes(self) -> Iterator[Axis]:
        """Choices that have an entry beside the others."""
        return entry_axes(self._entries.workload)

    def compose(self) -> ComposeResult:
        with _Scroll(id="form"):
            with Vertical(classes="group", id="what"):
                yield parts.PresetEntry(self.preset, self.choose_preset)
                for entry in parts.entries_in("what", self._entries):
                    yield entry
                    if isinstance(entry, Chips) and entry.field == "size":  # the dimensions below it
                        yield Vertical(classes="group", id="alone")
                        yield Vertical(classes="group", id="dims")
            with Vertical(classes="group", id="how"):
                yield from parts.entries_in("how", self._entries)
                yield Fold(id="fold-variants")
                yield Vertical(classes="group", id="variants")
                yield Fold(id="fold-more")
                yield Vertical(classes="group", id="more")
        yield Lines(id="offers")
        yield Static(id="about", markup=False)
        yield Static(id="summary", markup=False)
        with _Buttons(id="buttons"):
            yield PushButton("Run", id="run")
            yield PushButton("Stop", id="stop", disabled=True)
            yield PushButton("Resume", id="resume")
            yield PushButton("Export", id="export")

    def on_mount(self) -> None:
        self.query_one("#resume").display = False
        self._offer()
        self._show()

    def on_descendant_focus(self) -> None:
        """Tell its style by a class: for `:focus-within` each move of the focus would style the whole form anew."""
        if self.has_focus_within != self.has_class("-focused"):
            self.set_class(self.has_focus_within, "-focused", update=False)
            self.app.stylesheet.apply(self)  # what it holds looks alike
        self.call_after_refresh(self._show_about)

    on_descendant_blur = on_descendant_focus

    def on_chips_moved(self, event: Chips.Moved) -> None:
        event.stop()
        self._show_about()

    def _show_about(self) -> None:
        """Say what the entry under the cursor is, and what the choice under it means."""
        focused, width = self.screen.focused, max(self.content_size.width, 12)
        text, about = parts.about(focused, self._entries.edition, self._environment), self.query_one("#about", Static)
        lines = cut_to_lines(text, width, _ABOUT_LINES)
        shown = self.has_focus_within and self.size.height >= _ABOUT_FROM
        is_higher = shown and (not about.display or len(lines) > len(str(about.content).splitlines()))
        about.update("\n".join(lines))
        about.display = shown
        if focused is not None and is_higher:
            self.call_after_refresh(focused.scroll_visible, animate=False)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width >= _TWO_COLUMNS_FROM, "-two-columns")
        self._show_summary()

    def load(self, preset: Preset, may_leave_out: Collection[str] = ()) -> None:
        """Fill the entries with the preset's sweep, less what this machine cannot run of `may_leave_out`, and tell."""
        self.preset = self.query_one(parts.PresetEntry).preset = preset
        self._may_leave_out = may_leave_out
        self._set(self._from_preset())
        self._refill()
        self._leave_out()

    def named(self, preset: Preset) -> None:
        """The choices are this preset from here on."""
        self.preset = self.query_one(parts.PresetEntry).preset = preset
        self._show()

    def show(
        self, state: SessionState, forecast: Forecast | None, offers: Mapping[str, str], *, can_resume: bool
    ) -> None:
        """Take the session on the screen, for what the list of presets tells of it. Show the predicted needs behind the
        summary, in a small terminal keys and what they do first, shortened, and the button that resumes in place of the
        one that stops, or that one again."""
        self.set_class(bool(offers), "-offers")
        below = self.query_one("#offers", Lines)
        brief = (line((keys, "key"), f" {re.split('[,:]', text)[0]}") for keys, text in offers.items())
        below.paint(joined(brief, below.content_size.width, " · "))
        self.query_one(parts.PresetEntry).state = state
        stop, resume = self.query_one("#stop"), self.query_one("#resume")
        if resume.display != can_resume:
            if self.screen.focused is resume:
                self.query_one("#run").focus()
            stop.display, resume.display = not can_resume, can_resume
        if forecast is not None and (foreseen := (forecast, self.choices)) != self._foreseen:
            self._foreseen = foreseen
            self._show_summary()

    def set_recent(self, models: tuple[RecentModel, ...]) -> None:
        self._recent = models
        for entry in self.query(parts.RecentEntry):
            entry.models = models
        self._show()

    def set_environment(self, environment: Environment, may_leave_out: Collection[str] = ()) -> None:
        """Offer the machine's devices, and refuse what they cannot do; `may_leave_out`: see `load`."""
        self._environment = environment
        self._offer()
        self._may_leave_out = self._may_leave_out or may_leave_out
        self._set(self._entries)
        self._leave_out()

    def set_running(self, running: bool, stopping: bool = False, *, adding: bool = True) -> None:
        """Enable the buttons that make sense: while cells run (`adding`), Run adds. Focus that they had comes back."""
        run, stop = self.query_one("#run", PushButton), self.query_one("#stop", PushButton)
        in_hand = self.screen.focused in (run, stop)
        self._adding, self._stopping = running and adding, running and stopping
        self._show()
        stop.offer("Stop…" if self._stopping else "Stop", running and not stopping)
        if not running and (in_hand or self._was_in_hand):
            run.focus()
        self._was_in_hand = self._stopping and in_hand

    @property
    def skips_after_oom(self) -> bool:
        """True if cells not smaller than one that ran out of memory are skipped."""
        return self._entries.skips_after_oom

    def set_skip_after_oom(self, skip: bool) -> None:
        """Choose what becomes of larger cells after one that ran out of memory."""
        self._set(self._entries.with_value("after_oom", AFTER_OOM[0 if skip else 1]))
        self._refill()

    def request_run(self) -> None:
        """Run the sweep, unless something is wrong or what runs is being stopped."""
        if self.form.sweep is not None and not self._stopping:
            requests_of(self).run(self.form.sweep, self.form.options)

    def action_to_buttons(self) -> None:
        """Leave the entries, where plain keys are typed, for the first button that can be pressed."""
        next(button for button in self.query(PushButton) if button.display and not button.disabled).focus()

    def on_input_submitted(self) -> None:
        """Go on to the next entry."""
        self.screen.focus_next()

    def on_entry_changed(self, event: Entry.Changed) -> None:
        event.stop()
        entries = self._entries.with_value(event.entry.field, event.value)
        if entries == self._entries:
            return  # text that was just put there
        decides = event.entry.field in ("workload", "timer")
        if decides:
            entries = self._entries.with_usual_of(event.entry.field, getattr(entries, event.entry.field))
        self._set(entries)
        if decides:
            self._refill()
        if event.entry.field == "edition":
            self._offer()

    def _choose_model(self, model: RecentModel) -> None:
        self._set(self._entries.with_model(model))
        self._refill()

    def choose_preset(self, preset: Preset) -> None:
        """Fill the entries with a preset of the list, and tell which belong to it."""
        self.load(preset, LEFT_OUT)
        if also := ", ".join(preset.also):
            text = f"{also} belongs to it: choose and run that, too."
            self.app.notify(text, title=preset.name, timeout=_READ_S, markup=False)

    async def on_fold_turned(self, event: Fold.Turned) -> None:
        event.stop()
        self._show()
        await self._in_sight(event.fold, top=event.fold.open)

    async def go_to(self, axis: Axis, value: str = "") -> None:
        """Put the focus on the entry of a choice, which is unfolded, and the cursor on a value of it."""
        for fold in self.query(Fold):
            fold.open |= fold.id == f"fold-{axis.group}"
        self._show()
        entry = self.query_one(f"#entry-{(axis.name if axis.has_chips else axis.field).replace('_', '-')}")
        await self._in_sight(entry)
        self.screen.set_focus(next((each for each in (entry, *entry.query("*")) if each.focusable), None))
        if isinstance(entry, Chips) and value in entry.chips:
            entry.cursor = entry.chips.index(value)

    async def _in_sight(self, widget: Widget, *, top: bool = False) -> None:
        """Scroll a widget into sight, once what was unfolded has its place."""
        if self._unfolding is not None:
            await self._unfolding
        self.call_after_refresh(widget.scroll_visible, top=top, animate=False)

    async def on_push_button_pressed(self, event: PushButton.Pressed) -> None:
        event.stop()
        if event.button.id == "run":
            self.request_run()
        else:
            actions = {"stop": "app.stop_cells", "resume": "app.resume", "export": "app.export"}
            await self.run_action(actions[event.button.id or ""])

    def _from_preset(self) -> Entries:
        """The entries of the preset with the options that there are, which no preset holds."""
        return entries_of(self.preset.sweep).with_options_of(self._entries)

    def _leave_out(self) -> None:
        """Remove choices that this machine cannot run from an unchanged preset, and notify."""
        environment, fields = self._environment, self._may_leave_out
        if environment is None:
            return
        self._may_leave_out = ()
        if not fields or not self.form.problems or self._entries != self._from_preset():
            return
        sweep, said = possible_here(self.preset.sweep, environment, fields)
        if said:
            self._set(entries_of(sweep).with_options_of(self._entries))
            self._refill()
            title = self.preset.name
            self.app.notify("\n".join(said), title=title, severity="warning", timeout=_READ_S, markup=False)

    def _set(self, entries: Entries) -> None:
        """Take the entries, and tell when they mean something else."""
        before = self.form
        self._entries, self.form = entries, read(entries, self._environment)
        self._show()
        if before != self.form:
            requests_of(self).choices_changed()

    def _show(self) -> None:
        """Update everything but the entries' own values."""
        entries, problems = self._entries, self.form.problems
        alone = entries.workload != LANGUAGE_MODEL
        custom = CUSTOM_SIZE in entries.size
        rare = custom or entries.vocab_size != str(Sweep().vocab_size)
        self._group("dims", rare and not alone)
        for name, closed in (("variants", parts.fold_label(entries)), ("more", "more: edition, arch, seed…")):
            fold = self.query_one(f"#fold-{name}", Fold)
            self._group(name, fold.open)
            label = _OPEN_FOLDS[name] if fold.open else closed
            is_wrong = any(problem.field in parts.fields_in(name) for problem in problems)
            fold.label = f"✗ {label}" if is_wrong else label
        wrong = {parts.shown_at(p.field): f"{p.value}: {p.allowed}" for p in reversed(problems)}
        for entry in self.query(Entry):
            entry.problem = wrong.get(entry.field, "")
        for entry in self.query("#dims > Entry").results(Entry):
            entry.display = custom or entry.field == "vocab_size"
        for entry in self.query("#variants > Entry").results(Entry):
            entry.display = parts.is_shown(entry.field, entries, self._recent)
        self.query_one("#entry-size").display = not alone
        for axis in entry_axes():
            if axis.group in ("what", "how") and axis.workloads:
                for field in filter(None, (axis.name, axis.others)):
                    self.query_one(f"#entry-{field.replace('_', '-')}").display = axis.is_in(entries.workload)
        self._group("alone", alone)
        for widths in self.query("#entry-head-dim").results(TextEntry):
            widths.label = parts.WIDTH_LABELS.get(entries.workload, "head dim")
            widths.refresh()
        for heads in self.query("#entry-heads"):
            heads.display = entries.workload == "attention"
        self.query_one(parts.PresetEntry).changed = entries != self._from_preset()
        self._show_summary()
        self.query_one("#run", PushButton).offer("Add" if self._adding else "Run", not self._stopping and not problems)

    def _show_summary(self) -> None:
        """Update the summary: cells, steps and predicted needs, or the problems."""
        problems = self.form.problems
        summary = self.query_one("#summary", Static)
        (foreseen, role), of = self._foreseen
        if problems:
            foreseen, role = "", "bad"
        elif foreseen and of != self.choices:
            foreseen, role = PREDICTING, "text"
        summary.set_class(role == "bad", "-bad")
        summary.set_class(role == "caution", "-caution")
        width = max(self.content_size.width or _FIRST_WIDTH, 12)
        lines = summary_lines(self.form.summary, foreseen, problems, width)
        if lines != self._summary:  # a layout of the whole screen only where the height changes
            summary.update("\n".join(lines), layout=len(lines) != len(self._summary))
            self._summary = lines

    def _group(self, id: str, shown: bool) -> None:
        """Show or hide a group of entries that exist once they were needed."""
        group = self.query_one(f"#{id}", Vertical)
        group.display = shown
        if shown and not group.children:
            recent = parts.RecentEntry(self._recent, self._choose_model)
            self._unfolding = group.mount_all(parts.entries_in(id, self._entries, recent))

    def _refill(self) -> None:
        self._offer()
        for entry in self.query(TextEntry):
            entry.value = self._entries.text(entry.field)
        for chips in self.query(Chips):
            chips.chosen = self._entries.chosen(chips.field)

    def _offer(self) -> None:
        """Offer the edition's sizes, a custom one last, and the machine's devices, once they are known, beside those
        that are chosen."""
        entries, environment = self._entries, self._environment
        sizes = dict.fromkeys((*size_names(entries.edition), *entries.size))
        sizes.pop(CUSTOM_SIZE, None)
        self.query_one("#entry-size", Chips).chips = (*sizes, CUSTOM_SIZE)
        devices, labels = dict.fromkeys(entries.device), {}
        if environment is not None:
            (best,) = environment.resolve(("auto",))
            devices = dict.fromkeys(("auto", *(device.name for device in environment.devices))) | devices
            labels = {"auto": f"auto ({best})"}
        offered = self.query_one("#entry-device", Chips)
        offered.chips, offered.labels = tuple(devices), labels
