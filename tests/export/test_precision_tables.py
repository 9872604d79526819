"""Precision as tables and as data."""

import json

import msgspec
from syrupy.assertion import SnapshotAssertion

from cs336_tui.events.reports import PrecisionReport
from cs336_tui.export.reports import document_of_reports, tables_of_reports
from cs336_tui.export.subjects.precision import (
    EXPERIMENTS,
    modules_table,
    precision_document,
    speedup_table,
    toy_table,
)
from tests.export.keeping import kept
from tests.made_precision import a_cpu_report, a_precision_report
from tests.samples import a_spec
from tests.session.made import cell, results_of

REPORT = a_precision_report()
RESULTS = results_of(
    cell([0.100, 0.102, 0.098, 0.100] * 3),
    cell([0.050, 0.051, 0.049, 0.050] * 3, precision="bf16-mixed"),
    cell(status="oom", precision="bf16"),
)


def test_what_no_cell_changes_is_there_once_for_all_cells_of_a_device() -> None:
    specs = (a_spec(), a_spec(precision="bf16-mixed"), a_spec(precision="bf16", pass_="forward"))
    reports = [*(a_precision_report(spec, note=f"note {spec.precision}") for spec in specs), a_cpu_report()]
    labels = [table.label for table in tables_of_reports(reports)]
    assert labels == ["accumulation", "toy-dtypes", "toy-dtypes", *["module-dtypes"] * 4]
    assert [table.label for table in tables_of_reports(reports[:3])].count("toy-dtypes") == 1


def test_a_report_of_an_old_log_has_no_single_gradients_and_notes_are_footnotes(snapshot: SnapshotAssertion) -> None:
    toy = msgspec.to_builtins(REPORT.toy[0])
    del toy["loss_function"], toy["gradient_of"]
    old = msgspec.convert(msgspec.to_builtins(REPORT) | {"toy": [toy]}, PrecisionReport)
    noted = a_precision_report(note="Pass forward has no backward, so there are no gradients.", toy=())
    assert len(toy_table(noted).columns) == 1
    assert kept(toy_table(old), modules_table(noted)) == snapshot


def test_names_that_are_made_up_are_explained_where_there_are_any(snapshot: SnapshotAssertion) -> None:
    own = tuple(
        msgspec.structs.replace(each, path=each.path.replace("layers", "blocks"))
        for each in REPORT.modules
        if each.module != "method"
    )
    assert kept(modules_table(msgspec.structs.replace(REPORT, modules=own)), modules_table(REPORT)) == snapshot


def test_speed_ups_have_both_times_and_both_peaks(snapshot: SnapshotAssertion) -> None:
    table = speedup_table(RESULTS)
    assert [record["pays"] for record in table.records] == [True, None]
    assert kept(table) == snapshot
    assert speedup_table(results_of(cell([0.1, 0.1]))).rows == ()


def test_the_document_is_the_report_and_each_error() -> None:
    document = json.loads(json.dumps(precision_document(REPORT)))
    assert document["accumulation"][1] == {
        "accumulator": "float16", "addend": "float16", "converted": False, "result": 9.953125, "error": -0.046875,
    }  # fmt: skip
    assert document["spec"]["pass"] == "forward+backward"
    assert document["toy"][0]["layer_norm_output"] == "float32"
    for record in document["accumulation"]:
        del record["error"]
    again = msgspec.convert({"type": "PrecisionReport", **document}, PrecisionReport)
    assert again == REPORT


def test_the_documents_of_several_cells_have_the_experiments_once() -> None:
    other = msgspec.structs.replace(REPORT, spec=a_spec(precision="bf16"), logits="bfloat16")
    documents = document_of_reports([REPORT, other, a_cpu_report()])
    alone = precision_document(REPORT)
    assert {key: documents[key] for key in EXPERIMENTS} == {key: alone[key] for key in EXPERIMENTS}
    first, second, elsewhere = documents["reports"]
    assert first == {key: alone[key] for key in alone if key not in EXPERIMENTS}
    assert (second["spec"]["precision"], second["logits"]) == ("bf16", "bfloat16")
    assert elsewhere["toy"][0]["layer_norm_output"] == "float16", "another device found something else"
    assert "accumulation" not in elsewhere
    assert document_of_reports([REPORT]) == alone
    assert document_of_reports([]) == {"reports": []}
