"""The app's keys. Every binding has an id, so that a keymap can move it to another key.

A binding's tooltip is its line in the help and in the command palette.
"""

from __future__ import annotations

from textual.binding import Binding

from cs336_tui.tui.tab_list import TABS

APP_KEYS = (
    Binding(
        "r",
        "run_cells",
        "Run",
        tooltip="run the chosen cells; while cells run, add them behind those that wait",
        id="app.run",
    ),
    Binding("r", "add_cells", "Add", id="app.add"),
    Binding("s", "stop_cells", "Stop", tooltip="stop what runs and what waits, cells and reports", id="app.stop"),
    Binding(
        "b",
        "leave_opened",
        "Back",
        tooltip="from an opened session back to the one that this app runs",
        id="app.back",
    ),
    Binding("space", "pause", "Pause", tooltip="pause and go on", id="replay.pause"),
    Binding("plus,equals_sign", "faster(1)", "Faster", key_display="+", tooltip="faster", id="replay.faster"),
    Binding("minus", "faster(-1)", "Slower", key_display="-", tooltip="slower", id="replay.slower"),
    Binding(
        "e",
        "export",
        "Export",
        tooltip="export the results table and the session summary to files",
        id="app.export",
    ),
    Binding(
        "question_mark,f1",
        "help",
        "Help",
        key_display="?",
        tooltip="keys, and what each number means",
        id="app.help",
    ),
    Binding("q", "ask_quit", "Quit", tooltip="quit; asks while something runs", id="app.quit"),
    Binding(
        "c",
        "copy_table",
        "Copy",
        tooltip="copy the results table to the clipboard (OSC 52, also over SSH)",
        id="app.copy",
    ),
    *(Binding(tab.key, f"open('{tab.id}')", tab.label, show=False, id=f"app.open_{tab.id}") for tab in TABS.values()),
    Binding(
        "w",
        "save_preset",
        "Save preset",
        tooltip="save the choices as a preset of your own",
        id="app.save_preset",
    ),
    Binding("t", "next_theme", "Theme", tooltip="next theme", id="app.theme"),
    Binding(
        "colon,ctrl+p",
        "command_palette",
        "Commands",
        key_display=":",
        tooltip="command palette: presets, themes, every action",
        id="app.commands",
    ),
    Binding("ctrl+c", "ask_quit", "Quit", show=False, id="app.interrupt"),
    Binding(
        "ctrl+q",
        "quit",
        "Quit now",
        show=False,
        priority=True,
        tooltip="quit at once; finished steps are in the session log",
        id="app.quit_now",
    ),
)
