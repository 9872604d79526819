"""Traces of real GPUs, each held against the file itself as plain Python reads it."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from cs336_tui.events.reports import KernelReport
from cs336_tui.session.recordings import chrome
from cs336_tui.session.recordings.recording import Opening, Recorded
from tests.session.recordings.recordings import TRACES, events_of, trace_path

each_trace = pytest.mark.parametrize("name", TRACES)


def cell_of(name: str) -> Recorded:
    (cell,) = chrome.read(trace_path(name), Opening(), name)
    return cell


def report_of(name: str) -> KernelReport:
    report = cell_of(name).report
    assert isinstance(report, KernelReport)
    return report


@each_trace
def test_number_and_time_of_kernels_are_the_files_to_the_nanosecond(name: str) -> None:
    report = report_of(name)
    by_name: dict[str, list[int]] = defaultdict(list)
    for event in events_of(name):
        if event.get("cat") == "kernel":
            by_name[event["name"]].append(round(event["dur"] * 1000))
    found: dict[str, list[int]] = defaultdict(list)
    for group in report.groups:
        found[group.name] += group.durations_ns
    assert (report.launches, report.total_ns) == TRACES[name]
    assert {name: sorted(each) for name, each in found.items()} == {
        name: sorted(each) for name, each in by_name.items()
    }


@each_trace
def test_a_kernels_operator_is_the_one_that_the_file_links_it_to(name: str) -> None:
    """By time on the launching thread here, by external id in the file: each checks the other."""
    events = events_of(name)
    operators = {each["args"].get("External id"): each["name"] for each in events if each.get("cat") == "cpu_op"}
    kernels = [each for each in events if each.get("cat") == "kernel"]
    linked = Counter((each["name"], operators.get(each["args"].get("External id"), "")) for each in kernels)
    found: Counter[tuple[str, str]] = Counter()
    for group in report_of(name).groups:
        found[group.name, group.op] += len(group.durations_ns)
    assert found == linked
    assert sum(found[pair] for pair in found if pair[1]) > 0.99 * len(kernels)
