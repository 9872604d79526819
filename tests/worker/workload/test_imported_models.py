"""A user's own model: found by name, called with the arguments it takes, made on the device, or refused in one line."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import torch
from torch import nn

from cs336_tui.config.spec import PASSES, CellSpec, Pass
from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.imported_components import import_model, settle
from tests.worker.measure.cells import UsersFolder, run_step, small_spec
from tests.worker.workload.own_code import BASICS

CPU, META = torch.device("cpu"), torch.device("meta")


def test_a_class_gets_the_dimensions_by_name(folder: UsersFolder) -> None:
    names = "vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta"
    text = f"from torch import nn\ndef LM({names}): m = nn.Linear(1, 1); m.asked = dict(locals()); return m\n"
    model = folder.model(text, num_layers=3)
    asked = {"vocab_size": 40, "context_length": 8, "d_model": 16, "num_layers": 3, "num_heads": 2, "d_ff": 24}
    assert model.asked == asked | {"rope_theta": 10_000.0, "m": model}


DROPS = """
import torch
from torch import nn

class Drops(nn.Module):
    def __init__(self, vocab_size, d_model, made_in_training=True):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)
        self.dropout = nn.Dropout()
        self.train(made_in_training)

    def forward(self, tokens):
        return self.head(self.dropout(self.embed(tokens)))
"""


@pytest.mark.parametrize("made_in_training", ["true", "false"])
@pytest.mark.parametrize("pass_", PASSES)
def test_dropout_is_off_in_inference_and_on_in_every_other_pass(
    folder: UsersFolder, pass_: Pass, made_in_training: str
) -> None:
    args = (("made_in_training", made_in_training),)
    spec = folder.spec(DROPS, "Drops", pass_=pass_, model_args=args)
    model = build(spec, CPU).model
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    assert torch.equal(model(tokens), model(tokens)) is (pass_ == "inference")
    assert build(spec, META).model.training is model.training


def test_inference_is_predicted_without_what_dropout_takes(folder: UsersFolder) -> None:
    drops, plain = (
        predict(folder.spec(text, "Drops", pass_="inference")).peak_bytes
        for text in (DROPS, DROPS.replace("nn.Dropout()", "nn.Identity()"))
    )
    assert drops == plain


def test_arguments_are_read_as_the_signature_says(folder: UsersFolder) -> None:
    text = """
        from __future__ import annotations
        import torch
        from torch import nn

        class LM(nn.Module):
            def __init__(self, d_model, flag: bool = True, rate: float | None = 0.1, count=3, kind: str = "a",
                         shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32, *, plain):
                super().__init__()
                self.seen = (d_model, flag, rate, count, kind, shape, plain)
    """
    given = "flag=no rate=none count=7 kind=none shape=(1,2) plain=word".split()
    model = folder.model(text, model_args=tuple(tuple(pair.split("=")) for pair in given))
    assert model.seen == (16, False, None, 7, "none", (1, 2), "word")
    line = folder.problem(text, model_args=(("plain", "1"), ("count", "many")))
    assert line == "--model-arg count=many: expected int"


def test_arguments_that_are_missing_or_have_no_place(folder: UsersFolder) -> None:
    text = "def LM(d_model, width): ...\n"
    assert folder.problem(text) == "LM(d_model, width) needs width; give it with --model-arg width=VALUE"
    line = folder.problem(text, model_args=(("widht", "3"), ("width", "3")))
    assert line == "--model-arg widht=3: LM(d_model, width) has no such argument; did you mean width?"
    module = "from torch import nn\ndef LM(**kwargs): m = nn.Linear(2, 2); m.got = kwargs; return m\n"
    assert folder.model(module, model_args=(("any", "[1]"),)).got == {"any": [1]}


def test_a_factory_may_bring_its_batch(folder: UsersFolder) -> None:
    name = folder.write(
        BASICS
        + """
def both(vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
    def batch(batch_size, context_length, device):
        ones = torch.ones(batch_size, context_length, dtype=torch.int64, device=device)
        return ones, 2 * ones
    return LM(vocab_size, context_length, d_model, num_layers, num_heads, d_ff), batch

def wrong(d_model):
    return nn.Linear(2, 2), lambda batch_size: (torch.ones(batch_size, 3), torch.ones(batch_size, 3))
"""
    )
    for device in (CPU, META):
        made = build(folder.named(f"{name}:both"), device)
        assert made.batch.inputs.shape == made.batch.targets.shape == (2, 8)
        assert made.batch.targets.device == device
    assert build(folder.named(f"{name}:both"), CPU).batch.targets.unique().tolist() == [2]
    with pytest.raises(ImportProblem, match=r"made inputs of shape \(2, 3\), expected \(2, 8\): batch, context length"):
        build(folder.named(f"{name}:wrong"), CPU)


@pytest.mark.parametrize(
    "move", [".cuda()", ".to('cuda')", ".to('cuda', torch.bfloat16)", ".bfloat16()", ".to(torch.zeros(1))"]
)
def test_one_that_moves_itself_to_a_gpu_has_its_shapes_asked_on_the_meta_device(folder: UsersFolder, move: str) -> None:
    spec = folder.spec(f"import torch\nfrom torch import nn\ndef LM(): return nn.Linear(2, 2){move}\n")
    weight = import_model(spec, META, torch.float32).model.weight
    assert weight.is_meta
    assert weight.dtype == (torch.bfloat16 if "bfloat16" in move else torch.float32)


def test_it_is_made_on_the_meta_device_and_from_the_seed(folder: UsersFolder) -> None:
    assert {p.device for p in build(folder.spec(BASICS, pass_="train-step"), META).model.parameters()} == {META}
    one, again, other = (folder.model(BASICS, seed=seed).lm_head.weight.detach() for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_lower_precision_is_of_parameters_and_buffers_but_not_of_complex_ones(folder: UsersFolder) -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    model.register_buffer("cos", torch.ones(3), persistent=False)
    model.register_buffer("turns", torch.ones(3, dtype=torch.complex64))
    model.register_buffer("ids", torch.arange(3))
    settle(model, CPU, torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {model.cos.dtype} == {torch.bfloat16}
    assert (model.turns.dtype, model.ids.dtype) == (torch.complex64, torch.int64)
    assert model["b"].weight is model["a"].weight
    made = import_model(folder.spec(BASICS), CPU, torch.bfloat16).model
    assert {p.dtype for p in made.parameters()} == {torch.bfloat16}


def test_two_versions_of_one_module_follow_one_another(folder: UsersFolder) -> None:
    name = folder.write("from torch import nn\ndef LM(): return nn.Linear(1, 1)\n")
    newer = folder.path / "newer"
    newer.mkdir()
    (newer / f"{name}.py").write_text("from torch import nn\ndef LM(): return nn.Linear(2, 2)\n")
    widths = []
    for path in (folder.path, newer, folder.path):
        spec = small_spec(model=f"{name}:LM", model_path=(str(path),))
        widths.append(import_model(spec, CPU, torch.float32).model.in_features)
    assert widths == [1, 2, 1]


def test_what_cannot_be_found_is_said_with_where_it_was_looked_for(folder: UsersFolder) -> None:
    def line(name: str, *paths: str) -> str:
        spec = small_spec(model=name, model_path=paths or folder.paths)
        with pytest.raises(ImportProblem) as caught:
            import_model(spec, CPU, torch.float32)
        return str(caught.value)

    assert line("nowhere_at_all:LM") == (
        f"no module nowhere_at_all, looked in {folder.path} and among what is installed; "
        "add its folder with --model-path"
    )
    assert line("nowhere:LM", "/no/such") == "model path /no/such: no such folder"
    package = folder.path / "src" / "lm_in_src"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert line("lm_in_src:LM").endswith(f"there is one in {package.parent}: --model-path {package.parent}")
    assert line("lm_in_src.model:LM", str(package.parent)) == f"no module lm_in_src.model in {package}"
    (folder.path / "queue.py").write_text("class LM: ...\n")
    assert line("queue:LM") == "queue has no LM: queue is Python's own module; give yours another name"
    written = line("mein.gpt:LM")
    assert written.startswith("no module mein, looked in")
    inner = folder.path / "gpt_pkg"
    inner.mkdir()
    (inner / "__init__.py").touch()
    (inner / "gpt_model.py").write_text("from .gpt_layers import Block\n\nclass LM: ...\n")
    (inner / "gpt_layers.py").write_text("class Block: ...\n")
    assert line("gpt_model:LM").endswith("it is in package gpt_pkg: write gpt_pkg.gpt_model:LM")
    assert line("gpt_model.py:LM").endswith("it is in package gpt_pkg: write gpt_pkg.gpt_model:LM")
    assert line("gpt_model:LM", str(inner)).endswith(
        "attempted relative import with no known parent package (gpt_model.py:1); it is part of a package: "
        f"write gpt_pkg.gpt_model:LM with --model-path {folder.path}"
    )
    assert line("gpt_pkg:LM").endswith("; it is in gpt_pkg.gpt_model: write gpt_pkg.gpt_model:LM")
    assert line("gpt_pkg.gpt_modl:LM").endswith("; did you mean gpt_pkg.gpt_model?")
    assert line("gpt_pgk.gpt_model:LM").endswith("; did you mean gpt_pkg?")
    assert line("gpt_pkg.gpt_model.py:LM").endswith(": write gpt_pkg.gpt_model:LM, without .py")
    assert line("gpt_pkg:LM", str(inner / "gpt_model.py")).endswith("gpt_model.py: that is a file; give its folder")
    name = folder.write("class BigLM: ...\n")
    assert line(f"{name}:BigLm") == f"{name} has no BigLm ({folder.path / name}.py); did you mean BigLM?"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "import torch\n\nimport no_such_dependency\n",
            r"importing own_\d+: ModuleNotFoundError: No module named 'no_such_dependency' \(own_\d+\.py:3\); "
            r"install it beside cs336-tui, or give the folder that has it with --model-path",
        ),
        ("x = 1\ny = = 2\n", r"importing own_\d+: SyntaxError: .* \(own_\d+\.py:2\)"),
        (
            "import torch\n\ndef LM(d_model):\n    return torch.ones(2, 3) @ torch.ones(2, 3)\n",
            r"LM: RuntimeError: (mm: )?mat1 and mat2 .* \(own_\d+\.py:4 in LM\)",
        ),
        ("import sys\nsys.exit(3)\n", r"importing own_\d+: called sys.exit\(3\) \(own_\d+\.py:2\)"),
        ("def LM(): return 3\n", "LM made an int, expected a torch.nn.Module, or that and a batch function"),
        ("LM = 3\n", r"own_\d+:LM is an int, expected a class or a function that makes a model"),
    ],
)
def test_errors_while_importing_and_making_end_with_the_users_frame(folder: UsersFolder, text: str, line: str) -> None:
    assert re.fullmatch(line, folder.problem(text))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_model_that_asks_for_cuda_itself(folder: UsersFolder) -> None:
    line = folder.problem("from torch import nn\n\ndef LM():\n    return nn.Linear(2, 2).cuda()\n")
    assert "(own_" in line
    assert line.endswith("asks for CUDA itself, though this cell runs on cpu: let it take device as an argument")


def test_a_package_that_asks_for_its_own_version(folder: UsersFolder) -> None:
    text = "import importlib.metadata\nfrom torch import nn\nVERSION = importlib.metadata.version('Own_Course.LM')\n"
    text += "def LM():\n    made = nn.Linear(1, 1)\n    made.version = VERSION\n    return made\n"
    assert "PackageNotFoundError" in (line := folder.problem(text))
    assert line.endswith("; install that package beside cs336-tui (pip install --no-deps -e FOLDER)")
    (folder.path / "pyproject.toml").write_text('[project]\nname = "own-course-lm"\nversion = "26.0.0"\n')
    assert folder.model(text).version == "26.0.0"


def test_which_source_it_was_is_known(folder: UsersFolder) -> None:
    def revision() -> str | None:
        # A file's revision is asked for once in a process, as it is imported once.
        name = folder.write(BASICS)
        subprocess.run(["git", "add", "."], cwd=folder.path, capture_output=True)
        subprocess.run(
            "git -c user.name=a -c user.email=a@b.c commit -qm x".split(), cwd=folder.path, capture_output=True
        )
        if dirty:
            (folder.path / "other.txt").write_text("changed")
        return build(folder.named(f"{name}:LM"), CPU).facts.revision

    dirty = False
    assert re.fullmatch(r"own_\d+\.py sha256 [0-9a-f]{12}", str(revision()))
    if subprocess.run(["git", "init", "-q"], cwd=folder.path).returncode:
        pytest.skip("needs git")
    (folder.path / "other.txt").write_text("as committed")
    (folder.path / ".gitignore").write_text("__pycache__\n")
    assert re.fullmatch(r"own_\d+\.py sha256 [0-9a-f]{12}, git [0-9a-f]{7,}", str(revision()))
    dirty = True
    assert str(revision()).endswith(" with uncommitted changes")


def steps(spec: CellSpec) -> None:
    step = run_step(build(spec, CPU), spec)
    step.clear()
    step.check()


@pytest.mark.parametrize("pass_", ["inference", "backward", "forward+backward", "train-step"])
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed", "bf16"])
def test_every_pass_and_precision_runs(folder: UsersFolder, pass_: Any, precision: Any) -> None:
    steps(folder.spec(BASICS, pass_=pass_, precision=precision, num_layers=1))


RETURN = "return self.lm_head(self.ln_final(x))"
FORWARD = rf" \(own_\d+\.py:{BASICS[: BASICS.rindex('def forward')].count(chr(10)) + 1} in forward\)$"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (
            "logits[..., 0]",
            rf"model LM returned logits of shape \(2, 8\), expected \(2, 8, 40\): batch, context length, .*{FORWARD}",
        ),
        ("logits.long()", f"model LM returned logits that are not floating-point numbers{FORWARD}"),
        ("{'other': logits}", f"the model returned dict, expected a tensor of logits{FORWARD}"),
        (
            "logits * float('nan')",
            "model LM, loss cross_entropy: loss is nan after the first step, expected a finite number",
        ),
    ],
)
def test_what_is_no_logits_or_no_loss_is_said_with_the_forward(folder: UsersFolder, result: str, line: str) -> None:
    text = BASICS.replace(RETURN, f"logits = {RETURN[7:]}\n        return {result}")
    for pass_ in ("forward+backward",) if "nan" in line else ("forward", "forward+backward"):
        with pytest.raises(ImportProblem, match=line):
            steps(folder.spec(text, pass_=pass_))


def test_a_forward_that_wants_targets_for_all_logits(folder: UsersFolder) -> None:
    text = BASICS.replace(RETURN, f"return {RETURN[7:]}[:, [-1], :]")
    head, _, forward = text.rpartition("def forward(self, tokens)")
    text = f"{head}def forward(self, tokens, targets=None){forward}"
    hint = r"forward takes targets and is called without: name .*return super\(\).forward\(tokens, targets=tokens\)"
    for pass_ in ("forward", "forward+backward"):
        with pytest.raises(ImportProblem, match=rf"shape \(2, 1, 40\).*; {hint}$"):
            steps(folder.spec(text, pass_=pass_))


def test_dimensions_that_a_model_does_not_take_are_told(folder: UsersFolder) -> None:
    assert build(folder.spec(BASICS), CPU).facts.remarks == ()
    text = "from torch import nn\ndef LM(n_layer, n_embd=768, n_head=12): return nn.Linear(1, 1)"
    (remark,) = build(folder.spec(text), CPU).facts.remarks
    assert remark == "LM does not take d_ff: it has its own, whatever labels say (d_ff 24)"
    (remark,) = build(
        folder.spec("from torch import nn\ndef LM(vocab_size): return nn.Linear(1, 1)"), CPU
    ).facts.remarks
    assert remark.startswith("LM does not take d_model, num_layers, num_heads, d_ff: ")


def test_logits_may_come_in_a_tuple_or_by_name(folder: UsersFolder) -> None:
    logits = RETURN.removeprefix("return ")
    for result in (f"({logits}, None)", f"{{'logits': {logits}}}", f"type('Out', (), {{'logits': {logits}}})()"):
        steps(folder.spec(BASICS.replace(RETURN, f"return {result}")))


DRAWS_ITS_BATCH = """
import torch

def lm(vocab_size, context_length):
    def batch(batch_size, seed):
        drawn = torch.randint(vocab_size, (batch_size, context_length))
        return drawn, torch.full_like(drawn, seed)

    return torch.nn.Embedding(vocab_size, vocab_size), batch
"""


def test_a_batch_of_ones_own_is_another_on_each_rank_and_the_model_the_same(folder: UsersFolder) -> None:
    spec = folder.spec(DRAWS_ITS_BATCH, "lm")
    first, again, second = (import_model(spec, CPU, torch.float32, rank) for rank in (0, 0, 1))
    assert torch.equal(first.model.weight, second.model.weight)
    assert torch.equal(first.batch.inputs, again.batch.inputs)
    assert not torch.equal(first.batch.inputs, second.batch.inputs)
    assert [int(made.batch.targets[0, 0]) - spec.seed for made in (first, second)] == [0, 1]
