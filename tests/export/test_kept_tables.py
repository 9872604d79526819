"""Tables of made sessions as they are kept in `__snapshots__`: columns and their alignment, units, digits, order, notes
and keys. After a change that is meant, `pytest tests/export/test_kept_tables.py --snapshot-update`; look at the diff.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.merge import merge
from cs336_tui.config.problems.all_problems import problem_named
from cs336_tui.events.reports import Report
from cs336_tui.export.folder import tables_of
from cs336_tui.export.formats import render_all
from cs336_tui.export.reports import report_tables, tables_of_reports
from cs336_tui.export.tables import Table
from cs336_tui.export.terminal import Looks, terminal_text
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import load
from tests.made_kernels import a_kernel_report, an_operator_report
from tests.made_memory import a_memory_report, an_oom_report
from tests.made_precision import a_cpu_report, a_precision_report
from tests.made_problems import problem_state
from tests.made_race import race_events
from tests.made_ranks import a_traffic_report
from tests.samples import a_spec, state_of

DEMO = Path(__file__).parents[1] / "data" / "demo-session.jsonl"
Tables = Mapping[str, Iterable[Table]]

REPORTS: Mapping[str, tuple[Report, ...]] = {
    "kernels": (a_kernel_report(), a_kernel_report(a_spec(batch_size=8))),
    "operators": (an_operator_report(),),
    "ranks": (a_traffic_report(),),
    "memory": (a_memory_report(), an_oom_report()),
    "precision": (a_precision_report(), a_cpu_report()),
}
PROBLEMS: Mapping[str, tuple[str, ...]] = {
    "pytorch_attention": ("attention",),
    "torch_compile": ("compiled",),
    "gradient_checkpointing": ("checkpointing", "predictions"),
    "benchmarking_mixed_precision": ("mixed-precision",),
    "distributed_communication_single_node": ("collectives",),
    "naive_ddp_benchmarking": ("data-parallel", "scaling"),
    "optimizer_state_sharding_accounting": ("sharding", "rank-memory"),
    "fsdp_accounting": ("kernels-over-cells",),
}
"""Problems whose cells fill these tables."""


def of_session(state: SessionState) -> Tables:
    results = merge([("a session", state)])
    return {**tables_of(results), **report_tables([state], results)}


def as_text(tables: Tables) -> str:
    """The tables as Markdown, each with its first record."""
    parts: list[str] = []
    for name, several in tables.items():
        several = list(several)
        first = [f"{key} = {value!r}" for table in several for key, value in [*table.records[:1], {}][0].items()]
        parts += [f"# {name}", render_all(several, "markdown"), "; ".join(first)]
    return "\n\n".join(parts)


@pytest.mark.parametrize("name", REPORTS)
def test_reports(name: str, snapshot: SnapshotAssertion) -> None:
    assert as_text({name: tables_of_reports(REPORTS[name])}) == snapshot


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name: str, snapshot: SnapshotAssertion) -> None:
    tables = of_session(problem_state(*problem_named(name)))
    assert as_text({key: tables[key] for key in PROBLEMS[name]}) == snapshot


def test_a_race(snapshot: SnapshotAssertion) -> None:
    assert as_text(of_session(state_of(race_events()))) == snapshot


def test_a_session(snapshot: SnapshotAssertion) -> None:
    tables = of_session(load(DEMO))
    assert as_text({key: several for key, several in tables.items() if key != "reference"}) == snapshot
    looks = partial(Looks, styled=False, verbose=True)
    assert "\n\n".join(terminal_text(tables["results"], looks(width=width)) for width in (60, 120)) == snapshot
