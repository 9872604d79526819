"""Flame graphs of profiles: frames are nested, as wide as their time, and a figure and a screen have their names."""

from pathlib import Path

import msgspec

from cs336_tui.analysis.merge import results_of
from cs336_tui.events.kernel_report import KernelGroup, KernelReport
from cs336_tui.export.folder import Source, figures_of, write_summary
from cs336_tui.export.subjects.flame_graph import NESTINGS, flame_figure, frames, icicle
from cs336_tui.session import store
from tests.made_kernels import a_kernel_report
from tests.samples import a_spec, report_events, session_start, write_log


def profile() -> KernelReport:
    """A forward of 600 ns in two products, 100 ns in a softmax; a backward of 300 ns."""
    groups = (
        KernelGroup(
            "gemm", "matrix multiply", "forward", "ffn", False, (200, 400), "mm", stack=("forward", "linear", "mm")
        ),
        KernelGroup("softmax", "softmax", "forward", "softmax", False, (100,), "softmax", stack=("forward", "softmax")),
        KernelGroup("gemm", "matrix multiply", "backward", "ffn", True, (300,), "mm", stack=("MmBackward0", "mm")),
    )
    return msgspec.structs.replace(a_kernel_report(a_spec()), groups=groups, total_ns=1000)


def test_frames_are_nested_by_operator_and_by_stack() -> None:
    by_operator, by_stack = (
        [(frame.depth, frame.name, round(frame.begin, 3), frame.total_ns) for frame in frames(profile(), nesting)]
        for nesting in NESTINGS
    )
    assert by_operator == [
        (0, "step", 0, 1000),
        (1, "forward", 0, 700), (2, "ffn", 0, 600), (3, "mm", 0, 600), (4, "gemm", 0, 600),
        (2, "softmax", 0.6, 100), (3, "softmax", 0.6, 100), (4, "softmax", 0.6, 100),
        (1, "backward", 0.7, 300), (2, "ffn", 0.7, 300), (3, "mm", 0.7, 300), (4, "gemm", 0.7, 300),
    ]  # fmt: skip
    assert [name for depth, name, *_ in by_stack if depth == 2] == ["linear", "softmax", "MmBackward0"]
    assert frames(msgspec.structs.replace(profile(), groups=()), "stack") == ()


def test_a_session_has_its_flame_graphs_but_not_in_the_summary(tmp_path: Path) -> None:
    log = write_log(tmp_path / "one.jsonl", [*session_start([profile().spec]), *report_events(profile())])
    state = store.load(log)
    found = {each.name for each in figures_of([state], results_of(state))}
    assert {f"flame-graph-{nesting}" for nesting in NESTINGS} <= {name.rpartition("-small")[0] for name in found}
    write_summary(tmp_path / "out", [Source(log, state)])
    assert not list((tmp_path / "out" / "figures").glob("flame-graph*"))


def test_a_figure_and_an_icicle_name_the_frames() -> None:
    drawing = flame_figure(profile(), "stack")
    assert drawing.name.startswith("flame-graph-stack-")
    assert "MmBackward0" in drawing.files(("svg",))["svg"].decode()
    lines = ["".join(text for text, _ in line) for line in icicle(profile(), "operator", 40)]
    assert lines[:3] == [
        "▏step 100.0 %".ljust(40), "▏forward 70.0 %".ljust(28) + "▏backward 30",
        "▏ffn 60.0 %".ljust(24) + "▏sof" + "▏ffn 30.0 % ",
    ]  # fmt: skip
    assert all(len(line) <= 40 for line in lines)
