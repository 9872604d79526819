"""The app's keys. Every binding has an id, so that a keymap can move it to another key."""

from __future__ import annotations

from textual.binding import Binding

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
    Binding("1", "open('configure')", "Configure", show=False, id="app.open_configure"),
    Binding("2", "open('live')", "Live", show=False, id="app.open_live"),
    Binding("3", "open('results')", "Results", show=False, id="app.open_results"),
    Binding("4", "open('log')", "Log", show=False, id="app.open_log"),
    Binding("5", "open('device')", "Device", show=False, id="app.open_device"),
    Binding("6", "open('queue')", "Queue", show=False, id="app.open_queue"),
    Binding("7", "open('sessions')", "Sessions", show=False, id="app.open_sessions"),
    Binding("8", "open('compare')", "Compare", show=False, id="app.open_compare"),
    Binding("9", "open('kernels')", "Kernels", show=False, id="app.open_kernels"),
    Binding("0", "open('memory')", "Memory", show=False, id="app.open_memory"),
    Binding("p", "open('precision')", "Precision", show=False, id="app.open_precision"),
    Binding("i", "open('estimate')", "Estimate", show=False, id="app.open_estimate"),
    Binding("l", "open('roofline')", "Roofline", show=False, id="app.open_roofline"),
    Binding("w", "save_preset", "Save preset", id="app.save_preset"),
    Binding("t", "next_theme", "Theme", id="app.theme"),
    Binding("colon", "command_palette", "Commands", key_display=":", id="app.commands"),
    Binding("ctrl+c", "ask_quit", "Quit", show=False, id="app.interrupt"),
    Binding("ctrl+q", "quit", "Quit now", show=False, priority=True, id="app.quit_now"),
)
