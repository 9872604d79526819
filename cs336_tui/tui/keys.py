"""The app's keys. Every binding has an id, by which the help describes it and a keymap can move it to another key."""

from __future__ import annotations

from textual.binding import Binding

from cs336_tui.tui.tab_list import TABS

APP_KEYS = (
    Binding("r", "run_cells", "Run", id="app.run"),
    Binding("r", "add_cells", "Add", id="app.add"),
    Binding("s", "stop_cells", "Stop", id="app.stop"),
    Binding("b", "leave_opened", "Back", id="app.back"),
    Binding("space", "pause", "Pause", id="replay.pause"),
    Binding("plus,equals_sign", "faster(1)", "Faster", key_display="+", id="replay.faster"),
    Binding("minus", "faster(-1)", "Slower", key_display="-", id="replay.slower"),
    Binding("e", "export", "Export", id="app.export"),
    Binding("question_mark,f1", "help", "Help", key_display="?", id="app.help"),
    Binding("q", "ask_quit", "Quit", id="app.quit"),
    Binding("c", "copy_table", "Copy", id="app.copy"),
    *(Binding(tab.key, f"open('{tab.id}')", tab.label, show=False, id=f"app.open_{tab.id}") for tab in TABS.values()),
    Binding("w", "save_preset", "Save preset", id="app.save_preset"),
    Binding("t", "next_theme", "Theme", id="app.theme"),
    Binding("colon", "command_palette", "Commands", key_display=":", id="app.commands"),
    Binding("ctrl+p", "command_palette", "Commands", show=False, id="app.commands_too"),
    Binding("ctrl+c", "ask_quit", "Quit", show=False, id="app.interrupt"),
    Binding("ctrl+q", "quit", "Quit now", show=False, priority=True, id="app.quit_now"),
)
