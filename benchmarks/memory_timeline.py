"""Time to read, draw and query a memory report of 1,000,000 events: mark, 1 s for 200 columns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.reporting import publish, spread, table, verdict
from cs336_tui.analysis.memory import Ints, Timeline
from cs336_tui.tui.tabs.memory_timeline import EventWindow, columns_in, timeline_page
from tests.made_memory import many_events

COLUMNS = 200
MARKS_MS = {"columns": 1000.0, "moment": 50.0}


def columns(timeline: Timeline, *window: int) -> Ints:
    """Live bytes of every column, (categories, columns)."""
    return timeline.by_category[:, timeline.moments(COLUMNS, *window)]


@click.command()
@click.option("--events", default=1_000_000, show_default=True, help="Allocations and frees.")
@click.option("--repeats", default=7, show_default=True, help="Times each is measured; the median counts.")
@click.option("--output", type=click.Path(path_type=Path), help="Append the figures to this file.")
def main(events: int, repeats: int, output: Path | None) -> None:
    """Time the timeline's first drawing, a zoomed one, and a moment under the cursor."""
    report = many_events(events)
    timeline = Timeline(report)
    columns(timeline)
    crowded = Timeline(many_events(events, live=events))
    columns(crowded)
    middle, window = report.events // 2, (report.events // 4, report.events // 2)
    whole = EventWindow.whole(report.events, columns_in(200))
    timed: dict[str, tuple[Callable[[], object], float | None]] = {
        f"construction and {COLUMNS} columns": (lambda: columns(Timeline(report)), MARKS_MS["columns"]),
        "the first picture at 200x40, reading included": (
            lambda: timeline_page(Timeline(report), whole, report.peak_event, 200, 40),
            MARKS_MS["columns"],
        ),
        "another picture at 200x40": (lambda: timeline_page(timeline, whole, middle, 200, 40), None),
        f"{COLUMNS} columns of a quarter": (lambda: columns(timeline, *window), None),
        "a moment, 5,000 blocks live": (lambda: timeline.at(middle), MARKS_MS["moment"]),
        "a moment, all blocks live": (lambda: crowded.at(crowded.report.peak_event), MARKS_MS["moment"]),
        "live bytes by site": (lambda: timeline.by_site(middle), None),
        "the 50 largest allocations": (lambda: timeline.allocations(0, 50), None),
    }
    rows = []
    for name, (work, mark_ms) in timed.items():
        times_ms = [1e3 * _time_s(work) for _ in range(repeats)]
        met = verdict(statistics.median(times_ms), 0, mark_ms) if mark_ms else ""
        rows.append((name, spread(times_ms, 1), f"{mark_ms:g}" if mark_ms else "", met))
    header = ("of the timeline", "median (least to greatest), ms", "mark, ms", "")
    body = f"{report.events:,} events, {len(report.bytes):,} blocks.\n\n{table(header, rows)}"
    publish("Memory timeline", f"python -m benchmarks.memory_timeline --events {events}", body, output)


def _time_s(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
