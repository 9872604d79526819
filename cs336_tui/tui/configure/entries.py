"""Widgets of the form's entries, labels of its folds, and the list of presets: the handouts' problems first, each with
what the shown session has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.binding import BindingType
from textual.reactive import reactive
from textual.widget import Widget

from cs336_tui.config.axis import Axis, names_of
from cs336_tui.config.counts import INTERVAL, USUAL_MOST
from cs336_tui.config.presets import QUICK, Preset, RecentModel, all_presets
from cs336_tui.config.spec import AXES
from cs336_tui.config.sweep import ASKED_REPORTS, Sweep
from cs336_tui.config.values import LANGUAGE_MODEL
from cs336_tui.config.variants import is_imported, short
from cs336_tui.events.environment import Environment
from cs336_tui.session.state import SessionState
from cs336_tui.tui.configure.form import AFTER_OOM, DIMS, Entries, entries_of, entry_axes
from cs336_tui.tui.format import SHORT_PASSES, plural
from cs336_tui.tui.keys import bind_keys, key_name
from cs336_tui.tui.widgets.entries import Chips, Entry, Fold, PushButton, TextEntry

_LONG = 4_000
"""Maximum length of a text that may be a list of paths."""
_GROUPS = ("what", "how", "variants", "more")
_TIPS = {
    "warmup_steps": f"""Steps before those that are measured: a number, or several as 0,1,5.
auto: until steps are steady, {USUAL_MOST["warmup_steps"]} at most; auto:50 sets the limit.
10s or 25ms: until they come to this time.""",
    "measure_steps": f"""Measured steps: a number.
auto: until the 95 % interval of the mean is {INTERVAL * 100:g} % wide or the noise has settled,
{USUAL_MOST["measure_steps"]} at most; auto:200 sets the limit, auto 2% the width.
30s or 100ms: until they come to this time.""",
}
_BUTTONS = {
    "run": ("Runs these cells, or adds them to the queue", "app.run"),
    "stop": ("Stops the run; Resume continues it later", "app.stop"),
    "resume": ("Continues the stopped run, in the same log", "app.resume"),
    "export": ("Writes tables, figures and the summary to files", "app.export"),
}
"""The action of each button, and of the key that does the same."""


WIDTH_LABELS = {"norm": "width", "collective": "message"}
"""Labels of the entry that takes the place of sizes, which is else the width of a head."""


def entries_in(group: str, entries: Entries, recent: RecentEntry | None = None) -> Iterator[Entry]:
    """The entries of a group, filled; the device last, and behind the model the `recent` ones. ``alone`` are those in
    place of the size where a part of the model is run alone."""
    if group == "alone":
        yield TextEntry("head_dim", "head dim", entries.head_dim, hint="64, or 16,32,64")
        yield TextEntry("heads", "heads", entries.heads, hint="1")
    elif group == "dims":
        for field in DIMS:
            yield TextEntry(field, AXES[field].label or AXES[field].title, entries.text(field))
    for axis in sorted(entry_axes(), key=lambda axis: axis.field == "device"):
        if axis.group == group:
            yield from _of_axis(axis, entries)
            if axis.field == "model" and recent is not None:
                yield recent
    if group == "more":
        yield TextEntry("lanes", "lanes", entries.lanes, hint="1, or auto", tooltip=LANES_TIP)
        yield Chips("ddof", "std ddof", ("1", "0"), (entries.ddof,), multiple=False)
        yield TextEntry("timeout_s", "timeout s", entries.timeout_s, hint="none, per cell")
        yield TextEntry("repeats", "repeats", entries.repeats)
        tip = "Reports of the cells that end well, made when none waits any more."
        yield Chips("reports", "reports", ASKED_REPORTS, entries.reports, multiple=True, tooltip=tip)
        yield Chips("after_oom", "after OOM", AFTER_OOM, (entries.after_oom,), multiple=False)


def _of_axis(axis: Axis, entries: Entries) -> Iterator[Entry]:
    label, tip = axis.label or axis.title, axis.tip or _TIPS.get(axis.field)
    if not axis.has_chips:
        long = _LONG if axis.group == "variants" else 200
        yield TextEntry(axis.field, label, entries.text(axis.field), hint=axis.hint, tooltip=tip, max_length=long)
        return
    chosen = entries.chosen(axis.field)
    several = axis.widget == "chips"
    yield Chips(axis.name, label, axis.values or chosen, chosen, labels=SHORT_PASSES, multiple=several, tooltip=tip)
    if axis.others:
        long = _LONG if axis.own else 200
        yield TextEntry(axis.others, "", entries.text(axis.others), hint=axis.hint, max_length=long)


LANES_TIP = """Cells that run side by side, each in a lane of its own: a GPU, or cores of a CPU.
auto: a lane for each device, which the devices above share: each cell runs once, on any of them.
1: one cell after the other, which measures best; neighbours take some of each other's time."""


def tips() -> Iterator[tuple[str, str]]:
    """The label and the tip of each entry of a choice that has one, in the form's order."""
    for axis in sorted(entry_axes(), key=lambda axis: _GROUPS.index(axis.group)):
        if tip := axis.tip or _TIPS.get(axis.field):
            yield (axis.label or axis.title).strip() or axis.option, tip
    yield "lanes", LANES_TIP


def shown_at(field: str) -> str:
    """The entry that shows a choice's problems: the last of it."""
    axis = AXES.get("pass_" if field == "pass" else field)
    return axis.others or field if axis else field


def fields_in(group: str) -> set[str]:
    """Fields, as `SpecError` names them, whose entries are in this fold."""
    options = {"lanes", "ddof", "timeout_s", "repeats", "reports", "after_oom"} if group == "more" else set()
    return {axis.name for axis in entry_axes() if axis.group == group} | options


def is_shown(field: str, entries: Entries, recent: tuple[RecentModel, ...]) -> bool:
    """True if the entry has an effect beside the others, or is not empty."""
    alone = entries.workload != LANGUAGE_MODEL
    if field == "recent":
        return bool(recent) and not alone
    if field == "model_path":  # of the user's own code, whose names may not be complete
        texts = [entries.text(axis.others or axis.field) for axis in AXES.values() if axis.own]
        return bool(entries.model_path) or any(is_imported(name) for text in texts for name in names_of(text))
    axis = next(axis for axis in AXES.values() if field in (axis.name, axis.others))
    here, of = axis.is_in(entries.workload), AXES[axis.arguments_of or "model"]
    return here and (axis.widget != "pairs" or ":" in entries.text(of.others or of.field) or bool(entries.text(field)))


def fold_label(entries: Entries) -> str:
    """Content of the closed fold: a few words for each choice in it that is not the default; slashes join several
    values."""
    usual = entries_of(Sweep())
    found = [f"{entries.workload} alone"] if entries.workload != LANGUAGE_MODEL else []
    for axis in entry_axes(entries.workload):
        values = entries.all_of(axis)
        if not axis.said or axis.widget == "pairs" or values == usual.all_of(axis):
            continue
        if len(values) == 1 and not axis.own and not axis.is_number:
            found.append(axis.said(values[0])[0])
        else:
            title = f"{axis.title} " if not axis.own else ""
            found.append(title + ("/".join(map(short, values)) or "none"))
    return f"variants: {', '.join(found)}" if found else "attention, model, ranks…"


def about(focused: Widget | None, edition: str, environment: Environment | None) -> str:
    """Words on the entry or button with the focus, with its unit, and on the choice under its cursor."""
    from cs336_tui.config.meanings import meaning, own_code

    entry = next((each for each in focused.ancestors_with_self if isinstance(each, Entry)), None) if focused else None
    if isinstance(entry, Chips) and entry.under_cursor:
        device = environment.device(entry.under_cursor) if environment else None
        return meaning(entry.field, entry.under_cursor, edition, device.label if device else "")
    if isinstance(entry, Entry):
        return own_code(entry.field) or meaning(entry.field)
    if isinstance(focused, Fold):
        return "Enter hides these entries." if focused.open else "Enter shows more entries."
    if isinstance(focused, PushButton) and focused.id in _BUTTONS:
        does, binding = _BUTTONS[focused.id]
        return f"{does} ({key_name(binding)})."
    return ""


class PresetEntry(Entry, can_focus=True):
    """Names the preset that fills the form and whether its choices were changed since. Enter opens the list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("space,enter", "choose", "Choose a preset", "preset.choose", show=False)
    ]

    preset: reactive[Preset] = reactive(QUICK)
    changed: reactive[bool] = reactive(False)

    def __init__(self, preset: Preset, choose: Callable[[Preset], object]) -> None:
        super().__init__("preset", "preset", tooltip="Fills the form with a ready sweep; * says that it was changed")
        self.set_reactive(PresetEntry.preset, preset)
        self._choose = choose
        self.state: SessionState | None = None
        """The session on the screen, of which the list tells what problems it has data for."""

    def content_rows(self, width: int) -> list[list[Segment]]:
        mark = " * ▾" if self.changed else " ▾"
        name, room = self.preset.name, max(width - len(mark), 1)
        if cell_len(name) > room:
            name = set_cell_size(name, room - 1) + "…"
        return [[Segment(name + mark, self.style_of("title") + Style(reverse=self.has_focus))]]

    def action_choose(self) -> None:
        found = all_presets()
        if found.problems:
            self.app.notify("\n".join(found.problems), title="Presets", severity="warning", markup=False)

        from cs336_tui.tui.dialogs.windows import ChoiceList

        choices = listed(found.presets, self.state)
        at = next((place for place, each in enumerate(choices) if each.preset == self.preset), 0)
        about = [(each.preset.name, each.about) for each in choices]
        first = {each.heading: place for place, each in reversed([*enumerate(choices)]) if each.heading}
        headings = {place: heading for heading, place in first.items()}
        ChoiceList("Presets", about, at, headings).ask(lambda place: self._choose(choices[place].preset))

    on_click = action_choose


class RecentEntry(Entry, can_focus=True):
    """Number of own models that were run before. Enter opens their list, newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("space,enter", "choose", "Choose a recent model", "recent.choose", show=False)
    ]

    models: reactive[tuple[RecentModel, ...]] = reactive(())

    def __init__(self, models: tuple[RecentModel, ...], choose: Callable[[RecentModel], object]) -> None:
        super().__init__("recent", "recent", tooltip="Your own models that were run before, with their arguments")
        self.set_reactive(RecentEntry.models, models)
        self._choose = choose

    def content_rows(self, width: int) -> list[list[Segment]]:  # noqa: ARG002
        text = f"{plural(len(self.models), 'model')} run before ▾"
        return [[Segment(text, self.style_of("title") + Style(reverse=self.has_focus))]]

    def action_choose(self) -> None:
        from cs336_tui.tui.dialogs.windows import ChoiceList

        models = self.models
        choices: list[tuple[str, str]] = []
        for model in models:
            args = ", ".join(f"{name}={value}" for name, value in model.args)
            path = f"in {', '.join(model.path)}" if model.path else ""
            choices.append((model.model, " · ".join(filter(None, [args, path]))))
        ChoiceList("Recent models", choices).ask(lambda place: self._choose(models[place]))

    on_click = action_choose


OTHERS = "Other presets"


class Listed(NamedTuple):
    """A preset in the list, and the heading that it stands below."""

    preset: Preset
    heading: str
    about: str


def listed(presets: Sequence[Preset], state: SessionState | None) -> tuple[Listed, ...]:
    """The presets in the list's order: the first, then those of problems, the newest edition first, then the others."""
    from cs336_tui.analysis.merge import merge, title_of
    from cs336_tui.analysis.problems import progress_of
    from cs336_tui.config.problems import every_problem

    rest = {preset.name: preset for preset in presets}
    shown = [Listed(rest.pop(preset.name), "", preset.about) for preset in presets[:1]]
    results = merge([(title_of(state), state)]) if state else ()
    for edition, problem in every_problem():
        if found := rest.pop(problem.preset(edition), None):
            letters = " ".join(part.letter for part in problem.parts if part.letter)
            about = f"{problem.title}{f' ({letters})' if letters else ''}"
            progress = progress_of(problem, edition, [state], results) if state and results else None
            if progress and progress.mark:
                about = f"{about}\n  {progress.mark} {progress.text}"
            shown.append(Listed(found, f"Problems of {edition}", about))
    return (*shown, *(Listed(preset, OTHERS, preset.about) for preset in rest.values()))
