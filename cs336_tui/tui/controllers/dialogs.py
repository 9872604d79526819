"""The dialogs that keys of the app open: help, all of one cell, quitting, exports, a preset, reference points."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cs336_tui.analysis.merge import Result, results_of
from cs336_tui.config import presets
from cs336_tui.config.presets import Preset
from cs336_tui.config.sweep import Sweep
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import counted
from cs336_tui.tui.background import in_background, tried
from cs336_tui.tui.configure.pane import ConfigurePane
from cs336_tui.tui.host import Host
from cs336_tui.tui.keys import key_name, tab_name
from cs336_tui.tui.tab_list import TABS
from cs336_tui.tui.widgets.columns import Copied, Copies, copied_table
from cs336_tui.tui.widgets.rows import WideRows

if TYPE_CHECKING:
    from cs336_tui.analysis.tuning import Entry, Race


AGAIN_S = 5.0
"""The time within which the key that copies means all columns when it is pressed again, as long as a note is shown."""


def read_help(app: Host) -> None:
    """The help, at the section of the tab that has the focus or is open."""
    from cs336_tui.tui.help import HelpReader, help_page

    plays = app.replaying and app.live.watched is None
    app.push_screen(HelpReader(partial(help_page, replaying=plays, keymap=app.keymap), app.main.tab_at_focus))


def read_cell(app: Host, cell: CellState) -> None:
    """Everything that is known of a cell of the shown session."""
    from cs336_tui.tui.dialogs.windows import Reader
    from cs336_tui.tui.tabs.cell_detail import cell_detail

    state = app.state
    app.push_screen(
        Reader(f"Cell {cell.cell + 1}", lambda width: cell_detail(state, cell, width, app.judging.of(state, cell)))
    )


def ask_quit(app: Host) -> None:
    if app.replaying or not app.run_in_progress:
        app.exit()
        return
    running = max(len(app.state.running), len(app.live.state.running))
    what = "the running cell" if running == 1 else f"the {running} running cells"
    question = "A report is being made; it will be stopped."
    if running:
        question = f"Cells are still running. Finished steps are in the session log; {what} will be stopped."
    app.confirm(question, "Stop and quit", "Keep running", app.exit, q_means=True)


def export(app: Host, *, what: str | None = None, format_: str | None = None) -> None:
    """Ask what of the session goes where, at first what was exported last; `what` and `format_`, where they are given,
    are chosen already."""
    from cs336_tui.export.catalogue import RESULTS, Choice, formats_of, last_choice, offers, suited
    from cs336_tui.export.folder import Source
    from cs336_tui.export.writing.files import canonical
    from cs336_tui.tui.dialogs.export import ExportDialog, Written

    if not (any(report.content for report in app.state.reports.values()) or _has_results(app)):
        return
    choice = last_choice() or Choice(format=canonical(app.settings.export_format))
    if what is not None:
        choice = suited(choice, what)
    if format_ is not None:
        choice = suited(choice, choice.what if format_ in formats_of(choice.what) else RESULTS)
        choice = msgspec.structs.replace(choice, format=format_)

    def exported(paths: tuple[Path, ...] | None) -> None:
        app.export_folder = dialog.folder
        if paths:
            app.push_screen(Written(paths))

    source, folder = Source(app.shown.path or Path(), app.state), app.export_folder or Path.cwd()
    dialog = ExportDialog(tuple(offers(app.state)), choice, source, folder)
    app.push_screen(dialog, exported)


def copy_table(app: Host) -> None:
    """The table of the tab to the clipboard of the terminal, also over SSH, as markdown: the columns in sight, and all
    of them when it is soon asked for again; of tabs without a table the results."""
    from cs336_tui.export.subjects.results import results_markdown, results_table
    from cs336_tui.export.writing.formats import render

    tab = app.main.open_tab if app.main.wide else app.main.open_pane
    pane: object = next(iter(app.main.query(f"#{tab}")), None)
    layout = pane.layout_now if isinstance(pane, WideRows) else None
    shown = [layout.columns[place].key for place in layout.kept] if layout else []
    some: Copied | None = None
    if isinstance(pane, Copies):
        found = pane.copied()
        if found is None:
            app.notify(f"There is no table in {TABS[tab].label} yet.", severity="warning")
            return
        columns = found.table.columns if found.table else ()
        places = [place for place, column in enumerate(columns) if column.key in shown]
        if found.table and 0 < len(places) < len(columns):
            some = copied_table(found.name, found.table.at(places))
    elif _has_results(app):
        found = Copied("The results", partial(results_markdown, app.state))
        if shown:
            some = Copied(found.name, lambda: render(results_table(results_of(app.state), columns=shown), "markdown"))
    else:
        return
    (before, at), now = app.copied, time.monotonic()
    if some is not None and (before != (tab, shown) or now - at > AGAIN_S):
        found, more, app.copied = some, f" {key_name('app.copy')} again copies all columns.", ((tab, shown), now)
    else:
        more, app.copied = "", (None, 0.0)

    def copied(made: tuple[str | None, str]) -> None:
        text, problem = made
        if text is None:
            app.notify(f"! {problem}", severity="warning", markup=False)
            return
        app.copy_to_clipboard(text)
        app.notify(f"{found.name}, as markdown: sent to the terminal's clipboard.{more}", title="Copied", markup=False)

    # On a thread, as cells that nobody has looked at are judged first.
    in_background(app, partial(tried, found.make), copied)


def _has_results(app: Host) -> bool:
    """True if a cell of the shown session is over; else says how to come by results."""
    if app.state.finished_cells:
        return True
    if app.shown is app.live and app.run_in_progress:
        how = "they come with the end of the first cell."
    elif app.shown is app.live and not app.replaying:
        opens = key_name("app.open_sessions", "sessions.open")
        how = f"run cells ({key_name('app.run')}), or open an earlier session ({opens})."
    else:
        how = f"no cell of this session is over. {tab_name('sessions')} opens another one."
    app.notify(f"There are no results yet: {how}", severity="warning", markup=False)
    return False


def save_preset(app: Host) -> None:
    """Ask for a name and keep the choices under it; a name that is taken needs a second Enter."""
    pane = app.main.query_one(ConfigurePane)
    if pane.form.sweep is None:
        app.notify(str(pane.form.problems[0]), title="Cannot be saved", severity="error", markup=False)
        return
    about = "The choices in Configure as a preset of your own. / in a name makes a folder."
    _save(app, pane.preset.name, pane.form.sweep, about, then=pane.named)


def save_best(app: Host, race: Race, best: Entry) -> None:
    """As `save_preset`, of the best candidate of a race. Asks first if the race's log alone names its code."""
    from cs336_tui.config.tuned_sweep import sweep_of_candidate
    from cs336_tui.export.subjects.tuning import preset_line
    from cs336_tui.runner.trust import imports_of

    about = f"{best.label}, as a preset of your own. / in a name makes a folder."
    won = preset_line(race, best)

    save = partial(_save, app, f"best-{best.spec.size}", sweep_of_candidate(race.tuning, best.spec), about, won)
    away = [str(each) for each in imports_of([best.spec]) if not each.here]
    if away and (app.live.source is None or app.live.source.bench.trust.refusal(best.spec)):
        question = f"What runs this preset imports {', '.join(away)}, which is not the current folder's own code."
        app.confirm(question, "Save it", "Leave it", save)
    else:
        save()


def _save(
    app: Host, name: str, sweep: Sweep, asks: str, about: str = "", then: Callable[[Preset], object] = lambda _: None
) -> None:
    """Ask for a name of a preset, whose line is `about`, and save it."""
    known = {preset.name: preset for preset in presets.all_presets().presets}

    def warn(name: str) -> str:
        if name not in known:
            return ""
        bundled = name in {preset.name for preset in presets.bundled()}
        what = "comes with cs336-tui; yours would take its place" if bundled else "exists already and would be replaced"
        return f"{name} {what}. Enter again: save it all the same."

    def entered(name: str) -> None:
        preset = Preset(name, about or (known[name].about if name in known else ""), sweep)
        path, problem = tried(lambda: presets.save(preset, overwrite=name in known))
        if path is None:
            app.report(problem)
            return
        then(preset)
        app.notify(f"{name}, in {path}", title="Preset saved", markup=False)

    app.ask_text(entered, "Save as preset", asks, name, check=partial(_needed, "a preset needs a name"), warn=warn)


def choose_theme(app: Host) -> None:
    """List the themes: each is on while the cursor is on it, Enter keeps it for good, Esc goes back."""
    from cs336_tui.tui.dialogs.windows import ThemeList

    names = [*app.themes.names, *(name for name in app.available_themes if name not in app.themes.names)]
    before = app.theme

    def chosen(place: int | None) -> None:
        if place is None:
            app.theme = before
        else:
            keep_theme(app, names[place])

    app.push_screen(ThemeList(names, len(app.themes.names), before), chosen)


def keep_theme(app: Host, name: str) -> None:
    """Turn a theme on, now and from each start on."""
    from cs336_tui.config.settings import save_setting

    app.theme = name
    path, problem = tried(lambda: save_setting("theme", name))
    if path is None:
        app.report(f"{name} is on, but not kept: {problem}")
    else:
        app.notify(f"{name}, kept in {path}", title="Theme", markup=False, timeout=4)


def keep_as_reference(app: Host, results: Sequence[Result]) -> None:
    from cs336_tui.analysis.reference import add_from

    def kept(title: str) -> str:
        added, problem = tried(lambda: add_from(results, title))
        if added is None:
            return f"! {problem}"
        left_out = ""
        if added.left_out:
            left_out = f"; {counted(len(added.left_out), 'cell')} left out, the first: {added.left_out[0]}"
        return f"{counted(len(added.rows), 'reference point')} kept as {title}{left_out}"

    def tell(outcome: str) -> None:
        if not app.is_up:
            return
        app.notify(outcome, title="Reference points", markup=False)
        app.refresh_panes()

    about = "A title for these cells among your own reference points, such as: my laptop."
    check = partial(_needed, "a title is needed")
    app.ask_text(lambda title: in_background(app, lambda: kept(title), tell), "Keep as reference", about, check=check)


def _needed(problem: str, text: str) -> str:
    return "" if text else problem
