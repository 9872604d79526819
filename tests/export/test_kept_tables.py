"""Tables of made sessions as they are kept in `__snapshots__`: columns and their alignment, units, digits, order, notes
and keys. After a change that is meant, `pytest tests/export/test_kept_tables.py --snapshot-update`; look at the diff.
"""

from collections.abc import Mapping
from functools import partial

import pytest
from syrupy.assertion import SnapshotAssertion

from cs336_tui.analysis.estimates import judge_all
from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.problems import progress_of
from cs336_tui.analysis.scaling import Device, plan
from cs336_tui.analysis.targets import named_target
from cs336_tui.config.problems import problem_named
from cs336_tui.events.gpus import find_gpu
from cs336_tui.events.prediction import Collective
from cs336_tui.events.reports import Report
from cs336_tui.export.folder import figures_of, tables_of
from cs336_tui.export.problems import Needs, problems_table
from cs336_tui.export.reports import report_tables, tables_of_reports
from cs336_tui.export.subjects.estimates import category_table, communication_table, estimate_table
from cs336_tui.export.subjects.roofline import PeakRow, peak_table
from cs336_tui.export.subjects.scaling import limit_table, plan_figure, rank_table
from cs336_tui.export.summary import summary_markdown
from cs336_tui.export.writing.formats import plain_text
from cs336_tui.export.writing.terminal import Looks, terminal_text
from cs336_tui.session.state import SessionState
from cs336_tui.session.store import load
from tests.export.keeping import Tables, as_drawn, as_text
from tests.made_kernels import a_kernel_report, a_prediction_for, an_operator_report
from tests.made_memory import a_memory_report, an_oom_report
from tests.made_peaks import made_peak
from tests.made_precision import a_cpu_report, a_precision_report
from tests.made_predictions import made_prediction
from tests.made_problems import problem_state
from tests.made_race import race_events
from tests.made_ranks import a_rank_memory_report, a_traffic_report
from tests.samples import DEMO_LOG, ENVIRONMENT, a_spec, state_of

A_CELL = a_spec(pass_="train-step")
REPORTS: Mapping[str, tuple[Report, ...]] = {
    "kernels": (a_kernel_report(trace="/sessions/a/kernels.json.gz"),),
    "kernels of a predicted cell": (a_kernel_report(A_CELL, prediction=a_prediction_for(A_CELL)),),
    "operators": (an_operator_report(),),
    "ranks": (a_traffic_report(),),
    "memory": (a_memory_report(), an_oom_report()),
    "memory of ranks": (a_rank_memory_report(a_spec(ranks=2, parallel="zero1", pass_="train-step")),),
    "precision": (a_precision_report(), a_cpu_report()),
}


def of_session(state: SessionState) -> Tables:
    results = merge([("a session", state)])
    return {**tables_of(results), **report_tables([state], results)}


def test_figures_of_a_session(snapshot: SnapshotAssertion) -> None:
    state = load(DEMO_LOG)
    figures = figures_of([state], merge([("a session", state)]))
    assert "\n\n".join(map(as_drawn, figures)) == snapshot


@pytest.mark.parametrize("name", REPORTS)
def test_reports(name: str, snapshot: SnapshotAssertion) -> None:
    assert as_text({name: tables_of_reports(REPORTS[name])}) == snapshot


def test_the_list_of_problems(snapshot: SnapshotAssertion) -> None:
    (estimate,) = judge_all([made_prediction(A_CELL)], named_target(find_gpu("H100")))
    rows = []
    for name in ("benchmarking_script", "fsdp_calcs", "leaderboard"):
        problem, edition = problem_named(name)
        state = problem_state(problem, edition)
        progress = progress_of(problem, edition, [state], merge([("a session", state)]))
        rows.append(Needs(edition, problem, ("a preset",), 12, 9, ("kernels",), estimate, 60.0, 90.0, progress))
    rows.append(rows[0]._replace(largest=None, low_s=None, high_s=None, reports=(), progress=None))
    listed = {"listed": [problems_table(rows, "", "H100")], "of a session": [problems_table(rows, "s", "H100")]}
    assert as_text(listed) == snapshot


def test_a_plan(snapshot: SnapshotAssertion) -> None:
    made = plan(A_CELL, "ffn", 2, Device(flops_per_s=1e15, bytes_per_s=1e12), (1, 2, 4, 8))
    assert as_text({"plan": [limit_table(made), rank_table(made)]}) == snapshot
    assert as_drawn(plan_figure(made)) == snapshot


def test_predictions(snapshot: SnapshotAssertion) -> None:
    cells = ({}, {"batch_size": 4000}, {"pass_": "inference", "context_length": 512, "arch": "gelu-learned"})
    made = [made_prediction(a_spec(**each)) for each in cells]
    estimates = judge_all(made, named_target(find_gpu("H100")))
    tables = [estimate_table(estimates), category_table(estimates), estimate_table(made), category_table(made)]
    used = (Collective(op="all-reduce", calls=12, bytes=500_000_000),)
    of_ranks = made_prediction(a_spec(ranks=4, parallel="ddp"), communication=used)
    tables.append(communication_table(judge_all([of_ranks], named_target(find_gpu("H100")))))
    device = ENVIRONMENT.devices[1]
    measured = PeakRow(device=device, precision="bf16", peak=made_peak(precision="bf16"))
    peaks = peak_table([measured, PeakRow(device=device, precision="fp32", error="out of memory")])
    assert as_text({"estimates": tables, "peaks": [peaks]}) == snapshot


def test_a_race(snapshot: SnapshotAssertion) -> None:
    state = state_of(race_events())
    assert as_text(of_session(state)) == snapshot
    assert summary_markdown(state) == snapshot


def test_a_session(snapshot: SnapshotAssertion) -> None:
    tables = of_session(load(DEMO_LOG))
    assert as_text({key: several for key, several in tables.items() if key != "reference"}) == snapshot
    assert summary_markdown(load(DEMO_LOG)) == snapshot
    assert plain_text(tables["results"][0]) == snapshot
    looks = partial(Looks, styled=False, verbose=True)
    assert "\n\n".join(terminal_text(tables["results"], looks(width=width)) for width in (60, 120)) == snapshot
