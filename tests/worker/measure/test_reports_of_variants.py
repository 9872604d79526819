"""Reports on kernels, memory, dtypes and out-of-memory causes, for users' own models, wrapped ones too, and every
variant."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from cs336_tui.analysis import kernels as findings
from cs336_tui.analysis import memory as memory_findings
from cs336_tui.analysis.kernel_cells import attention_split
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.kernel_report import FUSED, KernelReport
from cs336_tui.events.reports import PrecisionReport, ReportKind, ReportRequest
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.measure.dtypes import bytes_at_most, read_dtypes
from cs336_tui.worker.measure.oom import attempt, explain_oom
from cs336_tui.worker.measure.reporter import COMPILE_LEFT_OUT
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import compiles, kernels_of, live_totals, memory_of, small_spec
from tests.worker.workload.own_code import BASICS, GPT, PLAIN, Folder

NAMED = """
class Named(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.inner = Odd(vocab_size, d_model)
    def forward(self, tokens):
        return self.inner(tokens=tokens)
"""


class Own(NamedTuple):
    """A user's folder, models in it, and a module with others."""

    paths: tuple[str, ...]
    gpt: str
    basics: str
    plain: str


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Own:
    folder = Folder(tmp_path_factory.mktemp("own"))
    return Own(folder.paths, f"{folder.write(GPT)}:GPT", f"{folder.write(BASICS)}:LM", folder.write(PLAIN + NAMED))


def spec_of(own: Own, model: str = "reference", **changes: Any) -> CellSpec:
    wide = {"d_model": 32, "d_ff": 64, "vocab_size": 300, "context_length": 24, "pass_": "train-step"}
    return small_spec(**(wide | {"model": model, "model_path": own.paths} | changes))


def asked(kind: ReportKind, spec: CellSpec, **more: Any) -> ReportRequest:
    return ReportRequest(kind=kind, spec=spec, **more)


def dtypes_of(spec: CellSpec) -> PrecisionReport:
    return read_dtypes(asked("precision", spec), lambda _stage: None)


def time_by_range(report: KernelReport) -> dict[str, findings.RangeShare]:
    return {share.name: share for share in findings.by_range(report)}


# Kernels


def test_a_model_written_out_is_profiled_by_its_parts(own: Own) -> None:
    report = kernels_of(spec_of(own, own.basics))
    assert findings.named_share(report) > 0.98
    assert set(time_by_range(report)) >= {"embedding", "norms", "QKV projections", "rotary", "softmax", "head", "loss"}
    forward, backward = attention_split(report)
    for split in (forward, backward):
        assert split.matmul_ns
        assert split.softmax_ns
        assert not split.fused
    # Scores and weighted values: 2 T K for each of the heads' T x T pairs, as in the reference.
    assert forward.matmul_flops == 2 * 2 * 2 * 2 * 24 * 24 * 32
    assert backward.matmul_flops == 2 * forward.matmul_flops


def test_fused_attention_says_so_in_place_of_times(own: Own) -> None:
    for spec in (spec_of(own, own.gpt), spec_of(own, attention="sdpa")):
        report = kernels_of(spec)
        assert time_by_range(report)["attention core"].backward_ns > 0
        for split in attention_split(report):
            assert split.fused
            assert split.matmul_ns is None
            assert split.softmax_ns is None
            assert split.time_ratio is None
            assert split.matmul_flops
            assert split.softmax_flops


def test_what_is_computed_again_is_time_of_backward_in_its_own_part(own: Own) -> None:
    """Every product of a block is in backward three times, once for the activation that forward did not keep."""
    counts: dict[int, dict[tuple[str, str], int]] = {}
    for every in (0, 1):
        found = counts[every] = {}
        for group in kernels_of(spec_of(own, checkpoint=every)).groups:
            if group.kind == "matrix multiply":
                place = group.phase, group.range
                found[place] = found.get(place, 0) + len(group.durations_ns)
    plain, again = counts[0], counts[1]
    assert {place: n for place, n in again.items() if place[0] == "forward"} == {
        place: n for place, n in plain.items() if place[0] == "forward"
    }
    for name in ("QKV projections", "attention scores", "final matmul", "output projection"):
        assert again["backward", name] == plain["backward", name] + plain["forward", name]
    assert again["backward", "head"] == plain["backward", "head"]
    # The last product of a block is needed by nobody: torch stops before it.
    assert 0 < again["backward", "feed-forward"] - plain["backward", "feed-forward"] <= plain["forward", "feed-forward"]


@compiles
def test_a_compiled_step_has_phases_but_its_model_no_parts(own: Own) -> None:
    report = kernels_of(spec_of(own, compile="default", num_layers=1, pass_="forward+backward"))
    assert set(report.phase_spans_ns) == {"forward", "loss", "backward"}
    assert {share.name for share in findings.by_range(report)} == {FUSED, "loss"}
    assert any("fused" in group.name for group in report.groups if group.kind == "elementwise")
    assert all(split.fused and split.softmax_ns is None for split in attention_split(report))
    assert "torch.compile has fused the model" in report.note
    assert sum(report.prediction.flops.values()) > 0


def test_a_step_that_is_a_cuda_graph_is_profiled_without_it(own: Own) -> None:
    report = kernels_of(spec_of(own, cuda_graph="step", pass_="forward"))
    assert "without its CUDA graph" in report.note
    assert "attention scores" in time_by_range(report)


def test_attention_alone_is_profiled(own: Own) -> None:
    spec = spec_of(own, workload="attention", pass_="forward+backward", context_length=64)
    report = kernels_of(spec)
    assert set(time_by_range(report)) == {"attention scores", "softmax", "final matmul", "loss"}
    forward, _ = attention_split(report)
    assert forward.matmul_flops == 2 * 2 * 2 * 64 * 64 * 32
    assert forward.softmax_flops == 5 * 2 * spec.num_heads * 64 * 64


def test_without_a_prediction_the_profile_is_whole_and_says_where_it_failed(own: Own) -> None:
    report = kernels_of(spec_of(own, f"{own.plain}:Asks", pass_="forward"))
    assert report.prediction is None
    assert report.total_ns > 0
    assert report.note.startswith("No FLOPs beside the times: ")
    assert "depends on the value of a tensor" in report.note
    assert f": {own.plain}.py:" in report.note


# Memory


@pytest.mark.parametrize("pass_", ["inference", "forward+backward", "train-step"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_the_recorded_peak_is_the_predicted_one(own: Own, pass_: Any, precision: Any) -> None:
    for model in (own.gpt, own.basics, f"{own.plain}:Odd"):
        report = memory_of(spec_of(own, model, pass_=pass_, precision=precision))
        assert report.prediction is not None, report.note
        assert report.peak_bytes == report.allocator_peak_bytes
        assert report.prediction.peak_bytes == pytest.approx(max(live_totals(report, of_tensors=True)), rel=0.01)


def test_allocations_name_the_user_s_own_lines(own: Own) -> None:
    report = memory_of(spec_of(own, own.basics))
    stem = own.basics.partition(":")[0]
    text = BASICS.splitlines()
    softmax = [site for site in report.sites if site.range == "softmax" and not site.backward]
    assert softmax
    for site in softmax:
        file, line, function = site.frame.replace(":", " ").split()
        assert (file, function) == (f"{stem}.py", "softmax")
        assert text[int(line) - 1].strip().startswith(("shifted", "return shifted"))


def test_blocks_of_a_user_s_model_save_for_backward(own: Own) -> None:
    report = memory_of(spec_of(own, own.gpt))
    (row,) = memory_findings.saved_summary(report)
    assert row.modules == "layers.0 to layers.1, each"
    nodes = {tensor.node: tensor.range for tensor, _ in row.contributors}
    assert "attention core" in nodes.values()
    assert "GeluBackward0" in nodes


def test_a_model_without_blocks_is_one_row(own: Own) -> None:
    for spec in (spec_of(own, f"{own.plain}:Odd"), spec_of(own, workload="attention", pass_="backward")):
        (row,) = memory_findings.saved_summary(memory_of(spec))
        assert row.modules == "model"
        assert row.bytes > 0


def test_a_checkpointed_group_keeps_what_enters_it(own: Own) -> None:
    report = memory_of(spec_of(own, num_layers=5, checkpoint=2))
    stream = 2 * 24 * 32 * 4
    assert [(block.module, block.bytes) for block in report.saved] == [
        ("layers.0-1", stream), ("layers.2-3", stream), ("layers.4", stream),
    ]  # fmt: skip
    (kept,) = report.saved[0].contributors
    assert (kept.node, kept.range, kept.shape) == ("checkpoint", "residual", (2, 24, 32))


def test_memory_is_of_the_model_as_written_and_says_so(own: Own) -> None:
    assert COMPILE_LEFT_OUT in memory_of(spec_of(own, compile="default", pass_="forward")).note


# dtypes


def test_dtypes_of_a_user_s_model_are_one_row_for_all_blocks(own: Own) -> None:
    report = dtypes_of(spec_of(own, own.gpt, precision="bf16-mixed"))
    rows = {row.path: row for row in report.modules}
    mlp = rows["transformer.h.*.mlp.c_fc"]
    assert (mlp.count, mlp.parameters, mlp.output, mlp.gradients) == (2, "float32", "bfloat16", "float32")
    assert rows["transformer.h.*.ln_1"].output == "float32"
    assert report.logits == "bfloat16"
    assert report.loss == "float32"


def test_inputs_that_are_named_are_seen_too(own: Own) -> None:
    rows = {row.path: row for row in dtypes_of(spec_of(own, f"{own.plain}:Named")).modules}
    assert rows["inner"].inputs == "int64"


def test_dtypes_of_variants(own: Own) -> None:
    checkpointed = dtypes_of(spec_of(own, checkpoint=2, precision="bf16-mixed"))
    assert checkpointed.modules == dtypes_of(spec_of(own, precision="bf16-mixed")).modules
    fused = {row.path for row in dtypes_of(spec_of(own, attention="sdpa")).modules}
    assert "layers.*.attention.attend" in fused
    assert "layers.*.attention.weigh" not in fused
    alone = {row.path for row in dtypes_of(spec_of(own, workload="attention", pass_="forward")).modules}
    assert {"model", "score", "weigh", "mix"} <= alone


@pytest.mark.parametrize(
    "changes", [{}, {"workload": "attention", "pass_": "forward+backward", "context_length": 256}, {"checkpoint": 1}]
)
def test_the_bound_on_bytes_is_one(own: Own, changes: dict[str, Any]) -> None:
    models = ("reference",) if changes else ("reference", own.gpt)
    for model in models:
        spec = spec_of(own, model, **({"pass_": "forward+backward"} | changes))
        assert bytes_at_most(spec) >= predict(spec).peak_bytes


# Running out of memory


def test_why_a_user_s_model_did_not_fit(own: Own) -> None:
    """A batch of which no host has the memory: the attempt is refused, and says by which line."""
    spec = spec_of(own, own.gpt, batch_size=2**31 - 1, context_length=2**20, pass_="forward")
    request = asked("oom", spec, failed_phase="building", failed_request_bytes=2**54, capacity_bytes=2**33)
    report = explain_oom(request, lambda _stage: None)
    assert report.request_bytes
    assert report.phase
    fits = attempt(spec_of(own, own.gpt), torch.device("cpu"))
    assert fits is None


def test_an_attempt_s_blocks_are_the_user_s_own(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is refused its memory: what is live then are the activations of the user's forward."""

    def refuse(*_: object) -> None:
        raise MemoryError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1234 bytes")

    monkeypatch.setattr("torch.nn.functional.cross_entropy", refuse)
    moment = attempt(spec_of(own, own.gpt), torch.device("cpu"))
    assert moment.phase == "loss"
    stem = own.gpt.partition(":")[0]
    assert any(block.site.frame.startswith(f"{stem}.py:") for block in moment.largest)
    assert moment.by_category["activations"] > 0


def test_files_of_other_folders_are_nobody_s(tmp_path: Path) -> None:
    """A frame is a user's by where its file is: the tests' own files are not."""
    report = memory_of(small_spec(pass_="forward"))
    files = {site.frame.partition(":")[0] for site in report.sites if site.frame}
    assert files <= {"transformer.py", "norms.py", "passes.py"}
    assert not list(tmp_path.iterdir())


WRAPPERS = {
    "a class of its class": """
from {repository} import GPT
class Whole(GPT):
    def forward(self, tokens):
        return super().forward(tokens)
""",
    "a module that holds it": """
from torch import nn
from {repository} import GPT
class Whole(nn.Module):
    def __init__(self, vocab_size, block_size, n_layer, n_head, n_embd):
        super().__init__()
        self.model = GPT(vocab_size, block_size, n_layer, n_head, n_embd)
    def forward(self, tokens):
        return self.model(tokens)
""",
    "a function that makes it": """
from {repository} import GPT
def Whole(vocab_size, block_size, n_layer, n_head, n_embd):
    return GPT(vocab_size, block_size, n_layer, n_head, n_embd)
""",
}


@pytest.fixture(params=list(WRAPPERS))
def wrapped(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[CellSpec, str, str]:
    """A cell of it, the file of its repository and the file of the few lines."""
    folders = [tmp_path / "repository", tmp_path / "mine"]
    for each in folders:
        each.mkdir()
    repository = Folder(folders[0]).write(GPT, "repository")
    lines = Folder(folders[1]).write(WRAPPERS[request.param].format(repository=repository), "mine")
    spec = small_spec(model=f"{lines}:Whole", model_path=(str(folders[1]), str(folders[0])), pass_="train-step")
    return spec, f"{repository}.py", f"{lines}.py"


def test_allocations_name_lines_of_the_repository_which_is_a_source(wrapped: tuple[CellSpec, str, str]) -> None:
    spec, repository, lines = wrapped
    report = memory_of(spec)
    in_feed_forward = {site.frame for site in report.sites if site.range == "feed-forward"}
    assert in_feed_forward
    for frame in in_feed_forward:
        file, _, function = re.split("[: ]", frame)
        assert (file, function) == (repository, "forward")
    told = str(build(spec, torch.device("cpu")).facts.revision)
    assert re.fullmatch(
        rf"{re.escape(lines)} sha256 [0-9a-f]{{12}}; {re.escape(repository)} sha256 [0-9a-f]{{12}}", told
    )


def test_what_was_installed_into_a_folder_is_not_the_user_s(tmp_path: Path) -> None:
    """Files of ``pip install --target``: the user's line that called the library is shown, not the library's."""
    (installed := tmp_path / "installed").mkdir()
    (installed / "some_library-1.0.dist-info").mkdir()
    (mine := tmp_path / "mine").mkdir()
    library = Folder(installed).write(GPT, "library")
    lines = Folder(mine).write(WRAPPERS["a module that holds it"].format(repository=library), "mine")
    spec = small_spec(model=f"{lines}:Whole", model_path=(str(mine), str(installed)), pass_="forward")
    report = memory_of(spec)
    frames = {site.frame.partition(":")[0] for site in report.sites if site.range == "feed-forward"}
    assert frames == {f"{lines}.py"}
    assert library not in str(build(spec, torch.device("cpu")).facts.revision)


FUSED_CALL = "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
WRITTEN_OUT = """\
scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
"""


def test_products_of_attention_are_held_against_a_softmax(tmp_path: Path) -> None:
    """A model whose attention writes them out, without a function that could be annotated."""
    model = Folder(tmp_path).write(GPT.replace(FUSED_CALL, WRITTEN_OUT))
    spec = small_spec(model=f"{model}:GPT", model_path=(str(tmp_path),), pass_="train-step")
    forward, backward = attention_split(kernels_of(spec))
    for split in (forward, backward):
        assert split.by_kind
        assert split.matmul_ns
        assert split.softmax_ns
    pairs = spec.num_layers * spec.batch_size * spec.context_length**2
    assert forward.matmul_flops == 2 * 2 * pairs * spec.d_model  # scores and weighted values, over all heads
    assert backward.matmul_flops == 2 * forward.matmul_flops
    assert forward.softmax_flops == 5 * pairs * spec.num_heads
