"""A user's own loss, optimizer and attention: how each is called, and the message if it cannot be."""

import re
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.imported_components import (
    ImportedAttention,
    imported_attention,
    imported_loss,
    imported_optimizer,
)
from cs336_tui.worker.workload.passes import Training
from tests.worker.measure.cells import UsersFolder, run_step, small_spec

LOGITS, TARGETS = torch.randn(2, 3, 7), torch.randint(7, (2, 3))
RIGHT = F.cross_entropy(LOGITS.flatten(0, 1), TARGETS.flatten())


@pytest.mark.parametrize(
    "loss",
    [
        "from torch.nn.functional import cross_entropy as loss",
        "from torch.nn import CrossEntropyLoss as loss",
        "def loss(inputs, targets): return -inputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()",
        "def loss(logits, targets):\n    b, t, v = logits.shape\n"
        "    return torch.nn.functional.cross_entropy(logits.reshape(b * t, v), targets.reshape(-1))",
        # Wrong, not an error, for logits of three dimensions: targets are looked up among the tokens.
        "def loss(x, y): return -x.log_softmax(-1).reshape(-1, x.shape[-1])[torch.arange(y.shape[0]), y % 4].mean()"
        " if x.dim() == 3 else torch.nn.functional.cross_entropy(x, y)",
    ],
)
def test_a_loss_gets_the_shape_that_it_wants(folder: UsersFolder, loss: str) -> None:
    found = imported_loss(f"{folder.write(f'import torch{chr(10)}{loss}')}:loss", folder.paths)
    assert found(LOGITS, TARGETS).item() == pytest.approx(RIGHT.item(), abs=1e-5)


@pytest.mark.parametrize("name", ["function", "Module", "module", "inside"])
def test_a_loss_that_is_compiled_is_not_compiled_for_the_numbers_of_its_trial(folder: UsersFolder, name: str) -> None:
    module = folder.write(
        """
        import torch
        import torch.nn.functional as F

        sizes = []

        def note(graph, inputs):
            sizes.append([tuple(each.shape) for each in inputs if isinstance(each, torch.Tensor)])
            return graph.forward

        @torch.compile(backend=note)
        def function(logits, targets): return F.cross_entropy(logits, targets)
        def inside(logits, targets): return function(logits, targets)
        module = torch.compile(torch.nn.CrossEntropyLoss(), backend=note)
        def Module(): return module
        Module = type("Module", (), {"__new__": lambda _: module})
        """
    )
    loss = imported_loss(f"{module}:{name}", folder.paths)
    sizes = sys.modules[module].sizes
    assert sizes == []
    assert loss(LOGITS, TARGETS).item() == pytest.approx(RIGHT.item(), abs=1e-5)
    assert [sorted(each) for each in sizes] == [[(6,), (6, 7)]]


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (
            "class loss:\n    def __init__(self, params, lr=1): ...",
            r"loss\(params, lr=1\) needs params, which has no default; a loss is a function of logits and targets, .*",
        ),
        (
            "def loss(logits, targets): return (logits * 0).sum(-1)",
            r"loss loss returned shape \(6,\), expected one number",
        ),
        ("def loss(logits): ...", r"loss loss: TypeError: loss\(\) takes 1 positional argument but 2 were given"),
        ("def loss(a, b): raise ValueError('no')", r"loss loss: ValueError: no \(own_\d+\.py:1 in loss\)"),
        ("loss = 3", r"own_\d+:loss is an int, expected a function of logits and targets"),
    ],
)
def test_what_is_no_loss(folder: UsersFolder, loss: str, line: str) -> None:
    with pytest.raises(ImportProblem, match=f"^{line}$"):
        imported_loss(f"{folder.write(loss)}:loss", folder.paths)


def test_a_loss_of_flat_logits_that_is_not_finite_is_named(folder: UsersFolder) -> None:
    loss = "def mine(logits, targets):\n    tokens, vocabulary = logits.shape\n    return (logits / 0).mean() * 0\n"
    spec = small_spec(loss=f"{folder.write(loss)}:mine", model_path=folder.paths)
    step = run_step(build(spec, torch.device("cpu")), spec)
    step.clear()
    with pytest.raises(ImportProblem, match=r"Transformer, loss mine: loss is nan .* \(own_\d+\.py:1 in mine\)$"):
        step.check()


def test_an_optimizer_has_its_own_defaults(folder: UsersFolder) -> None:
    name = folder.write(
        """
        import torch

        class Mine(torch.optim.SGD):
            def __init__(self, params, lr, momentum=0.5):
                super().__init__(params, lr=lr, momentum=momentum)

        class Needy(torch.optim.SGD):
            def __init__(self, params, lr, momentum): ...

        def no_optimizer(parameters): return parameters
        """
    )
    weight = nn.Parameter(torch.ones(2))
    optimizer = imported_optimizer(f"{name}:Mine", folder.paths, iter([weight]))
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (1e-3, 0.5)
    assert optimizer.param_groups[0]["params"] == [weight]
    assert imported_optimizer("torch.optim:AdamW", folder.paths, [weight]).defaults["lr"] == 1e-3
    with pytest.raises(ImportProblem, match=r"^Needy\(params, lr, momentum\) needs momentum, which has no default; "):
        imported_optimizer(f"{name}:Needy", folder.paths, [weight])
    with pytest.raises(ImportProblem, match=r"no_optimizer made a list, expected a torch\.optim\.Optimizer$"):
        imported_optimizer(f"{name}:no_optimizer", folder.paths, [weight])


def steps_taken(device: str, *, fused: bool) -> list[int]:
    """Steps counted after each gradient of a scaled AdamW: infinite, 1, NaN, 1."""
    weight = nn.Parameter(torch.ones(2, device=device))
    training = Training(torch.optim.AdamW([weight], fused=fused), "AdamW", device, scale_gradients=True)
    taken = []
    for gradient in (float("inf"), 1.0, float("nan"), 1.0):
        weight.grad = None
        training.scaler.scale((weight * gradient).sum()).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()
        taken.append(training.steps_taken)
    return taken


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_the_scaler_skips_are_not_taken(fused: bool) -> None:
    assert steps_taken("cpu", fused=fused) == [0, 1, 1, 2]


SHAPE = (2, 2, 6, 4)


OWN = """
import torch

def _scores(q, k, looks):
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return (scores if looks is None else scores.masked_fill(~looks, float("-inf"))).softmax(-1)

def by_mask(q, k, v, mask=None): return _scores(q, k, mask) @ v
def by_needed_mask(q, k, v, attn_mask): return _scores(q, k, attn_mask) @ v
def by_flag(Q, K, V, *, scale=None, is_causal=True):
    return by_mask(Q, K, V, torch.ones(Q.shape[-2], Q.shape[-2], dtype=torch.bool).tril() if is_causal else None)

class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block=16, is_causal=False):
        assert block == 16
        return by_flag(q, k, v, is_causal=is_causal)

def deaf(q, k, v): return v
def two(q, k): return q
def needy(q, k, v, causal, scale): return v
"""


def of(name: str, folder: UsersFolder, *, causal: bool) -> ImportedAttention:
    """The user's attention, for sequences up to the length of the inputs."""
    return imported_attention(name, folder.paths, causal=causal, length=SHAPE[-2], device=torch.device("cpu"))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("function", ["by_mask", "by_needed_mask", "by_flag", "Flash", "Flash.apply"])
def test_attention_is_causal_by_whichever_argument_says_so(folder: UsersFolder, function: str, causal: bool) -> None:
    attention = of(f"{folder.write(OWN)}:{function}", folder, causal=causal)
    q, k, v = (torch.randn(SHAPE) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    for _ in range(2):
        torch.testing.assert_close(attention(q, k, v), expected)
    torch.testing.assert_close(attention(q[..., :3, :], k[..., :3, :], v[..., :3, :])[0].shape, q[0, :, :3].shape)


@pytest.mark.parametrize(
    "line",
    [
        "deaf(q, k, v) cannot be told to be causal; it needs an argument is_causal, causal, mask or attn_mask",
        "two(q, k) does not take queries, keys and values",
        "needy(q, k, v, causal, scale) needs scale, which has no default",
    ],
)
def test_what_is_no_causal_attention(folder: UsersFolder, line: str) -> None:
    name = f"{folder.write(OWN)}:{line.partition('(')[0]}"
    with pytest.raises(ImportProblem, match=f"^{re.escape(line)}$"):
        of(name, folder, causal=True)


def test_attention_that_looks_everywhere_needs_no_argument(folder: UsersFolder) -> None:
    v = torch.randn(SHAPE)
    assert of(f"{folder.write(OWN)}:deaf", folder, causal=False)(v, v, v) is v


OPTIMIZERS = """
import torch

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    def zero_grad(self):
        super().zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["kept"] = torch.zeros_like(parameter)
            parameter.add_(parameter.grad, alpha=-self.param_groups[0]["lr"])

class Asks(Plain):
    def step(self, closure=None):
        norm = sum(float(each.grad.square().sum()) for each in self.param_groups[0]["params"])
        if norm < 1e9:
            super().step(closure)
"""


@pytest.mark.parametrize("name", ["Plain", "Asks"])
def test_an_optimizer_drops_gradients_as_it_does_itself_and_is_predicted_if_it_asks_for_values_too(
    folder: UsersFolder, name: str
) -> None:
    optimizer = f"{folder.write(OPTIMIZERS)}:{name}"
    spec = small_spec(pass_="train-step", optimizer=optimizer, model_path=folder.paths)
    workload = build(spec, torch.device("cpu"))
    step = workload.step(spec)
    for _ in range(2):
        step.prepare()
        step.run("zero_grad")
        assert all(parameter.grad is None for parameter in workload.model.parameters())
        for phase in step.phases[1:]:
            step.run(phase)
        step.clear()
    found = predict(spec)
    assert found.by_category["optimizer_state"] == 4 * found.num_params
    assert found.flops == predict(small_spec(pass_="train-step")).flops


def test_attention_gets_the_arguments_that_a_user_gives(folder: UsersFolder) -> None:
    name = folder.write(
        """
        import torch

        def by_name(q, k, v, is_causal, BLOCK_M: int = 16, *, fast=False, **more):
            return (BLOCK_M, fast, more)

        class Flash(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v, block=16, is_causal=False, stages=1):
                return q * block + (100 if is_causal else 0) + stages
        """
    )
    q = torch.ones(SHAPE)
    arguments = (("BLOCK_M", "32"), ("fast", "yes"), ("warps", "4"))
    assert given_to(f"{name}:by_name", folder, *arguments)(q, q, q) == (32, True, {"warps": 4})  # type: ignore[comparison-overlap]
    assert given_to(f"{name}:Flash", folder, ("block", "2"))(q, q, q).unique().tolist() == [103]
    assert given_to(f"{name}:Flash", folder, ("stages", "3"))(q, q, q).unique().tolist() == [119]
    with pytest.raises(ImportProblem, match=r"^--attention-arg BLOCK_M=many: expected int$"):
        given_to(f"{name}:by_name", folder, ("BLOCK_M", "many"))
    for taken in ("q", "is_causal"):
        with pytest.raises(ImportProblem, match=f"^--attention-arg {taken}=1: by_name.* has no such argument"):
            given_to(f"{name}:by_name", folder, (taken, "1"))
    with pytest.raises(ImportProblem, match=r"has no such argument; did you mean block\?$"):
        given_to(f"{name}:Flash", folder, ("blok", "1"))


def given_to(name: str, folder: UsersFolder, *given: tuple[str, str]) -> ImportedAttention:
    device = torch.device("cpu")
    return imported_attention(name, folder.paths, causal=True, length=SHAPE[-2], device=device, given=given)


def test_an_optimizer_gets_the_arguments_that_a_user_gives(folder: UsersFolder) -> None:
    needy = folder.write(
        """
        import torch

        class Needy(torch.optim.SGD):
            def __init__(self, params, lr, momentum):
                super().__init__(params, lr=lr, momentum=momentum)
        """
    )
    weight, given = nn.Parameter(torch.ones(2)), (("momentum", "0.25"), ("lr", "0.5"))
    optimizer = imported_optimizer(f"{needy}:Needy", folder.paths, [weight], given)
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.5, 0.25)
    with pytest.raises(ImportProblem, match=r"give it with --optimizer-arg momentum=VALUE$"):
        imported_optimizer(f"{needy}:Needy", folder.paths, [weight])
    with pytest.raises(ImportProblem, match=r"^--optimizer-arg params=1: Needy.* has no such argument"):
        imported_optimizer(f"{needy}:Needy", folder.paths, [weight], (("params", "1"),))
