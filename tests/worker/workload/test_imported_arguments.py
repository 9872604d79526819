"""Arguments of a user's model: configs in every form, further arguments, and texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build
from cs336_tui.worker.workload.import_problems import ImportProblem
from cs336_tui.worker.workload.imported_components import import_model
from tests.worker.measure.cells import small_spec
from tests.worker.workload.own_code import Folder

CPU = torch.device("cpu")


def made(own: Folder, text: str, attribute: str = "LM", **changes: Any) -> Any:
    spec = small_spec(model=f"{own.write(text)}:{attribute}", model_path=own.paths, **changes)
    return import_model(spec, CPU, torch.float32).model


CONFIG = """
from dataclasses import dataclass, field
from typing import Optional
from torch import nn

@dataclass
class Config:
    n_layer: int = 12
    n_embd: int = 768
    dropout: float = 0.0

@dataclass
class Other:
    rate: float = 0.5

@dataclass
class Whole:
    model: Config
    vocab_size: int
    other: Other = field(default_factory=Other)

class Base(nn.Module):
    def __init__(self, *seen):
        super().__init__()
        self.seen = seen
"""


@pytest.mark.parametrize("wanted", ["Config = Config()", "Optional[Config] = None", "Config | None = None"])
def test_a_config_with_a_default_is_made_as_an_argument_with_a_default_is_given(folder: Folder, wanted: str) -> None:
    text = f"{CONFIG}\nclass LM(Base):\n    def __init__(self, config: {wanted}): super().__init__(config)\n"
    (config,) = made(folder, text, num_layers=3).seen
    assert (config.n_layer, config.n_embd) == (3, 16)


def test_what_is_not_told_of_a_config_is_as_in_its_default(folder: Folder) -> None:
    wants = "def __init__(self, config: Config = Config(n_layer=6, dropout=0.5)): super().__init__(config)"
    (config,) = made(folder, f"{CONFIG}\nclass LM(Base):\n    {wants}\n").seen
    assert (config.n_layer, config.n_embd, config.dropout) == (2, 16, 0.5)


def test_a_config_with_a_default_that_wants_what_nobody_knows_stays_the_model_s(folder: Folder) -> None:
    wants = "def __init__(self, config: Config | None = None): super().__init__(config)"
    text = CONFIG.replace("n_layer: int = 12", "tokenizer: str\n    n_layer: int = 12")
    text = f"{text}\nclass LM(Base):\n    {wants}\n"
    assert made(folder, text).seen == (None,)
    spec = small_spec(model=f"{folder.write(text)}:LM", model_path=folder.paths)
    assert "does not take d_model, num_layers, num_heads, d_ff" in build(spec, CPU).facts.remarks[0]
    assert made(folder, text, model_args=(("tokenizer", "bpe"),)).seen[0].n_layer == 2


def test_a_config_with_a_default_that_asks_for_no_dimension_is_left_alone(folder: Folder) -> None:
    text = f"{CONFIG}\nclass LM(Base):\n    def __init__(self, other: Other | None = None): super().__init__(other)\n"
    assert made(folder, text).seen == (None,)


def test_configs_in_configs_and_several_of_them(folder: Folder) -> None:
    wants = "def __init__(self, whole: Whole, other: Other): super().__init__(whole, other)"
    text = f"{CONFIG}\nclass LM(Base):\n    {wants}\n"
    whole, other = made(folder, text, model_args=(("dropout", "0.25"), ("rate", "0.125"))).seen
    assert (whole.model.n_layer, whole.model.n_embd, whole.model.dropout, whole.vocab_size) == (2, 16, 0.25, 40)
    assert other.rate == 0.125
    spec = small_spec(model=f"{folder.write(text)}:LM", model_path=folder.paths)
    (remark,) = build(spec, CPU).facts.remarks
    assert remark == "LM does not take num_heads, d_ff: it has its own, whatever labels say (num_heads 2, d_ff 24)"


def test_what_a_config_takes_is_not_handed_on_as_well(folder: Folder) -> None:
    text = (
        f"{CONFIG}\nclass LM(Base):\n    def __init__(self, config: Config, **rest): super().__init__(config, rest)\n"
    )
    config, rest = made(folder, text, model_args=(("dropout", "0.25"), ("any", "[1]"))).seen
    assert config.dropout == 0.25
    assert rest == {"any": [1]}


def test_a_config_of_a_partial_factory(folder: Folder) -> None:
    text = f"{CONFIG}\nfrom functools import partial\ndef make(flag, config: Config): return Base(flag, config)\n"
    flag, config = made(folder, text + "LM = partial(make, 7)\n").seen
    assert (flag, config.n_layer) == (7, 2)
    bare = f"{CONFIG}\nfrom functools import partial\ndef make(flag, config): return Base(flag, config)\n"
    with pytest.raises(ImportProblem, match="needs config; it cannot be typed: name a function of"):
        made(folder, bare + "LM = partial(make, 7)\n")


HANDS_ON = """
from torch import nn

class Base(nn.Module):
    def __init__(self, vocab_size, d_model, *, num_layers=12):
        super().__init__()
        self.seen = vocab_size, d_model, num_layers

class Mixin: ...

class LM(Mixin, Base):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.more = True

class Named(LM): ...

def make(**kwargs):
    return Base(**kwargs)
"""


@pytest.mark.parametrize("name", ["LM", "Named"])
def test_a_subclass_that_hands_everything_on_is_given_what_the_class_above_wants(folder: Folder, name: str) -> None:
    model = made(folder, HANDS_ON, name)
    assert (model.seen, model.more) == ((40, 16, 2), True)


def test_a_function_whose_arguments_have_no_names_is_told_to_name_them(folder: Folder) -> None:
    with pytest.raises(ImportProblem) as caught:
        made(folder, HANDS_ON, "make")
    assert "missing 2 required positional arguments: 'vocab_size' and 'd_model'" in str(caught.value)
    assert str(caught.value).endswith(
        "; arguments passed on by ** cannot be seen: let it name the dimensions that it wants"
    )


def test_device_and_dtype_are_texts_for_who_wants_texts(folder: Folder) -> None:
    text = (
        "from torch import nn\ndef LM(*, device{0}, dtype{1}): m = nn.Linear(1, 1); m.seen = device, dtype; return m\n"
    )
    for as_text in ((": str", ": str = 'float16'"), ("='cuda'", "='float16'")):
        assert made(folder, text.format(*as_text)).seen == ("cpu", "float32")
    assert made(folder, text.format("=None", ": object")).seen == (CPU, torch.float32)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_len", 8), ("n_positions", 8), ("emb_dim", 16), ("n_embed", 16), ("n_blocks", 2), ("dim_feedforward", 24)],
)
def test_dimensions_have_many_names(folder: Folder, name: str, value: int) -> None:
    text = f"from torch import nn\ndef LM({name}): m = nn.Linear(1, 1); m.seen = {name}; return m\n"
    model = made(folder, text)
    assert isinstance(model, nn.Module)
    assert model.seen == value


OWN_HEADS = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.qkv, self.o = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.o(torch.softmax(q @ k.mT, -1) @ v)

class LM(nn.Module):
    def __init__(self, vocab_size, d_model{heads}, num_layers=2):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, d_model), nn.Linear(d_model, vocab_size)
        self.layers = nn.Sequential(*(Attention(d_model) for _ in range(num_layers)))

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))
"""


def test_the_arithmetic_of_a_softmax_is_known_where_the_model_takes_the_number_of_heads(folder: Folder) -> None:
    def predicted(heads: str) -> tuple[int, int] | None:
        name = folder.write(OWN_HEADS.replace("{heads}", heads))
        return predict(small_spec(model=f"{name}:LM", model_path=folder.paths, num_layers=3)).softmax_flops

    elements = 2 * 3 * 2 * 8 * 8  # sequences, layers, heads, pairs of tokens
    assert predicted(", num_heads=4") == (5 * elements, 4 * elements)
    assert predicted("") is None


MODEL = """
from torch import nn
class Node: ...
class GPT(nn.Module):
    def __init__(self, {asks}):
        super().__init__()
"""


@pytest.mark.parametrize("asks", ["config", "cfg", "config: Node", "settings: Node"])
def test_one_that_cannot_be_made_by_name_asks_for_a_function(folder: Folder, asks: str) -> None:
    """minGPT's config is made by a function of its own: no text on a command line is one."""
    word = asks.partition(":")[0]
    with pytest.raises(ImportProblem) as refused:
        made(folder, MODEL.format(asks=asks), "GPT")
    assert str(refused.value).endswith(
        f"needs {word}; it cannot be typed: name a function of the dimensions (d_model, num_layers, ...) that "
        f"makes {word} and returns the model"
    )


def test_the_config_beside_the_class_above_will_do(folder: Folder) -> None:
    """A few lines around nanoGPT's GPT that do not import its GPTConfig."""
    above = folder.write(
        """
from dataclasses import dataclass
from torch import nn
@dataclass
class GPTConfig:
    block_size: int = 1024
    n_layer: int = 12
class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.seen = config
"""
    )
    config = made(folder, f"from {above} import GPT\nclass Whole(GPT): ...\n", "Whole", num_layers=3).seen
    assert (config.n_layer, config.block_size) == (3, 8)
