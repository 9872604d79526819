"""The Estimate tab: what each cell will need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from cs336_tui.config.values import bytes_per_s_of
from cs336_tui.events.gpus import GpuModel, find_gpu, gpu_of_label, known_gpus
from cs336_tui.tui.background import tried
from cs336_tui.tui.dialogs.windows import AskText, Dialog, Reader
from cs336_tui.tui.keys import bind, bind_keys, key_name
from cs336_tui.tui.tabs.estimate_texts import EstimateRow, brief, detail, mark, table
from cs336_tui.tui.widgets.columns import Copied, copied_table, table_lines
from cs336_tui.tui.widgets.entries import InputLine
from cs336_tui.tui.widgets.lines import Line, Lines, line, wrapped
from cs336_tui.tui.widgets.rows import Rows, WideRows

_BESIDE_FROM = 150
"""Width from which the detail is beside the list."""
_BELOW_FROM = 30
"""Height from which the detail is below the list."""
_HERE = "this machine"

Whose = Literal["chosen", "session"]


class EstimateChoice(NamedTuple):
    """The estimate that is asked for."""

    gpu: GpuModel | None = None
    """The GPU that the user named; None for the machine's own devices."""
    link: float | None = None
    """Bandwidth of links in bytes/s that the user named; None: as the data sheet has it."""
    largest: bool = False
    """True if the largest batch of each cell that fits is looked for."""
    whose: Whose = "chosen"


class Estimated(NamedTuple):
    """The contents of the tab."""

    rows: tuple[EstimateRow, ...]
    whose: Whose
    """The cells of Configure's choices, or those of the session."""
    target: str = ""
    """The device, in words."""
    elsewhere: bool = False
    """True if the device is a GPU that the user named."""
    why_none: str = ""
    waiting: str = ""
    """The state of missing predictions, in words."""
    total: str = ""
    """The time of all cells that fit; empty if unknown."""
    part: str = ""
    """Which cells have a row, in words; empty if all have."""
    can_switch: bool = False
    """True if the choices and the session both have cells."""


class EstimateList(WideRows):
    """The list, with the keys of the tab: a list's keys come before its pane's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("enter", "choose", "Details", "estimate.detail"),
        bind("gpu", "gpu", "Another GPU", "estimate.gpu"),
        bind("make", "largest", "Largest batch", "estimate.largest"),
        bind("link", "link", "Link", "estimate.link"),
        bind("view", "switch", "Choices or session", "estimate.switch"),
    ]
    varying: Mapping[str, bool] = {"switch": False, "link": False}
    """Actions that are not always offered."""
    choice = EstimateChoice()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.varying[action] if action in self.varying else super().check_action(action, parameters)

    def action_gpu(self) -> None:
        GpuPick().ask(lambda name: self._choose(gpu=find_gpu(name) if name else None))

    def action_link(self) -> None:
        about = (
            "Outgoing link bandwidth of each device, such as 450GB/s or 400Gb/s\n"
            "(blank: NVLink by the GPU's data sheet)."
        )

        def bandwidth(rate: str) -> float | None:
            return bytes_per_s_of(rate) if rate else None

        link = AskText("Link", about, check=lambda rate: tried(lambda: bandwidth(rate), ValueError)[1])
        link.ask(lambda rate: self._choose(link=bandwidth(rate)))

    def action_largest(self) -> None:
        self._choose(largest=not self.choice.largest)

    def action_switch(self) -> None:
        self._choose(whose="session" if self.choice.whose == "chosen" else "chosen")

    def _choose(self, **changes: Any) -> None:
        self.choice = self.choice._replace(**changes)
        self.resort()


class GpuPick(Dialog[str]):
    """The GPUs by name, each with its memory and bandwidth; answers with a name, empty for this machine. What is typed
    keeps those that have all of its words, or if none has, the GPU that it names in another way; the first is under the
    cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind_keys("escape", "dismiss(None)", "Keep", "pick.close"),
        bind_keys("down", "move('cursor_down')", "Down", "pick.down", show=False),
        bind_keys("up", "move('cursor_up')", "Up", "pick.up", show=False),
        bind_keys("pagedown", "move('page_down')", "Page down", "pick.page_down", show=False),
        bind_keys("pageup", "move('page_up')", "Page up", "pick.page_up", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        gpus = ((gpu.name, f"{gpu.memory_gib:6.1f} GiB  {gpu.bandwidth_gb_per_s:5,.0f} GB/s") for gpu in known_gpus())
        self._gpus = (("", "the devices of this machine"), *gpus)
        self._kept: list[str] = []
        self._problem = Label("", id="problem", markup=False)

    def compose(self) -> ComposeResult:
        move, leave = key_name("pick.up", "pick.down"), key_name("pick.close")
        keys = f"type to narrow · {move} · Enter choose · {leave} keep"
        with self.box("Target GPU (blank: this machine)", keys):
            yield InputLine(placeholder="all", compact=True, max_length=100)
            options = OptionList()
            options.can_focus = False
            yield options
            yield self._problem

    def on_mount(self) -> None:
        self._fill("")

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(event.value)

    def _fill(self, text: str) -> None:
        words = text.lower().split()
        kept = [each for each in self._gpus if all(word in " ".join(each).lower() for word in words)]
        if not kept and (gpu := gpu_of_label(text)):
            kept = [each for each in self._gpus if each[0] == gpu.name]
        self._kept = [name for name, _ in kept]
        options = self.query_one(OptionList)
        options.clear_options()
        wide = max(len(name or _HERE) for name, _ in self._gpus)
        options.add_options(
            Option(Content.assemble(((name or _HERE).ljust(wide), "bold"), f"  {about}")) for name, about in kept
        )
        options.highlighted = 0 if kept else None
        self._problem.update("" if kept else "✗ none has all of these words")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(self._kept[at])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._kept[event.option_index])

    def action_move(self, how: str) -> None:
        if self._kept:
            getattr(self.query_one(OptionList), f"action_{how}")()


class EstimatePane(Container):
    """The list, and the detail of the cell under the cursor: beside or below it, or in a window on Enter."""

    DEFAULT_CSS = """
    EstimatePane {
        layout: horizontal;
        EstimateList { width: 1fr; height: 1fr; }
        #estimate-detail { width: 1fr; height: 1fr; display: none; }
        &.-beside #estimate-detail { display: block; margin-left: 2; }
        &.-below { layout: vertical; }
        &.-below EstimateList { height: 1fr; }
        &.-below #estimate-detail { display: block; height: 2fr; }
    }
    """

    def __init__(self, *, id: str | None = "estimate") -> None:
        super().__init__(id=id)
        self._shown, self._has_detail = Estimated((), "chosen"), False
        self._list = EstimateList(id="estimate-list")
        self._detail = Lines(id="estimate-detail")

    def compose(self) -> ComposeResult:
        yield self._list
        yield self._detail

    @property
    def choice(self) -> EstimateChoice:
        return self._list.choice

    @property
    def text(self) -> str:
        return f"{self._list.text}\n{self._detail.text}"

    def copied(self) -> Copied | None:
        """The list of estimates."""
        rows = self._shown.rows
        return copied_table(f"The estimate for {self._shown.target}", table(rows)) if rows else None

    def on_resize(self, event: events.Resize) -> None:
        beside, tall = event.size.width >= _BESIDE_FROM, event.size.height >= _BELOW_FROM
        self._has_detail = beside or tall
        self.set_class(beside, "-beside")
        self.set_class(tall and not beside, "-below")

    def show(self, estimated: Estimated) -> None:
        """Paint; the cursor stays on its row."""
        if not self.is_mounted:
            return
        offered = {"switch": estimated.can_switch, "link": any(row.spec.ranks > 1 for row in estimated.rows)}
        if offered != self._list.varying:
            self._list.varying = offered
            self.refresh_bindings()
        if estimated.whose != self._shown.whose:
            self._list.cursor = 0
        self._shown = estimated
        self._paint()

    def _paint(self) -> None:
        shown, rows = self._shown, self._list
        width = rows.content_size.width
        cells = "Configure's choices" if shown.whose == "chosen" else "The session's cells"
        title = line(
            (f"{cells}{', ' if shown.part else ' '}", "title"),
            (f"{shown.part} " if shown.part else "", "caution"),
            (f"for {shown.target} " if shown.target else "", "caution" if shown.elsewhere else "text"),
            (f"· {shown.total} " if shown.total else "", "strong"),
        )
        if shown.rows:
            marks = [mark(row) for row in shown.rows]
            roles = ["text" if row.estimate else "muted" for row in shown.rows]
            drawn = table_lines(table(shown.rows), width, marks, roles=roles, page=rows.columns_page)
            rows.pages = drawn.pages
            rows.fill(drawn.rows, [title, *([] if self._has_detail else self._brief()), *drawn.heading])
        else:
            rows.fill((), [title, (), *wrapped(shown.why_none, width, "muted")])
        if self._has_detail:
            self._detail.paint(self._written(self._detail.content_size.width))

    def _brief(self) -> list[Line]:
        """Two lines on the cell under the cursor; always two, so that the list does not jump."""
        if self._list.content_size.height < 7:
            return []
        found = brief(self._current, self._list.content_size.width) if self._current else []
        return found or [line((self._shown.waiting, "muted")), ()]

    @property
    def _current(self) -> EstimateRow | None:
        rows = self._shown.rows
        return rows[min(self._list.cursor, len(rows) - 1)] if rows else None

    def _written(self, width: int) -> list[Line]:
        return detail(self._current, width, self._shown.waiting) if self._current else []

    @on(Rows.Moved)
    def _moved(self, event: Rows.Moved) -> None:
        event.stop()
        self._paint()

    @on(Rows.Chosen)
    def _chosen(self, event: Rows.Chosen) -> None:
        event.stop()
        if self._current:
            self.app.push_screen(Reader("Estimate", self._written))
