"""Arguments of a user's model: configs in every form, further arguments, and texts."""

import pytest
import torch

from cs336_tui.worker.estimate.predict import predict
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import UsersFolder

CPU = torch.device("cpu")


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


def wanting(wants: str, config: str = CONFIG) -> str:
    """A module whose model wants these arguments, and shows them."""
    names = ", ".join(each.partition(":")[0].strip("*") for each in wants.split(", "))
    return f"{config}\nclass LM(Base):\n    def __init__(self, {wants}): super().__init__({names})\n"


@pytest.mark.parametrize("wanted", ["Config = Config()", "Optional[Config] = None", "Config | None = None"])
def test_a_config_with_a_default_is_made_as_an_argument_with_a_default_is_given(
    folder: UsersFolder, wanted: str
) -> None:
    (config,) = folder.model(wanting(f"config: {wanted}"), num_layers=3).seen
    assert (config.n_layer, config.n_embd) == (3, 16)


def test_what_is_not_told_of_a_config_is_as_in_its_default(folder: UsersFolder) -> None:
    text = wanting("config: Config = default").replace("class LM", "default = Config(n_layer=6, dropout=0.5)\nclass LM")
    (config,) = folder.model(text).seen
    assert (config.n_layer, config.n_embd, config.dropout) == (2, 16, 0.5)


def test_a_config_with_a_default_that_wants_what_nobody_knows_stays_the_model_s(folder: UsersFolder) -> None:
    needy = CONFIG.replace("n_layer: int = 12", "tokenizer: str\n    n_layer: int = 12")
    text = wanting("config: Config | None = None", needy)
    assert folder.model(text).seen == (None,)
    assert "does not take d_model, num_layers, num_heads, d_ff" in build(folder.spec(text), CPU).facts.remarks[0]
    assert folder.model(text, model_args=(("tokenizer", "bpe"),)).seen[0].n_layer == 2


def test_a_config_with_a_default_that_asks_for_no_dimension_is_left_alone(folder: UsersFolder) -> None:
    assert folder.model(wanting("other: Other | None = None")).seen == (None,)


def test_configs_in_configs_and_several_of_them(folder: UsersFolder) -> None:
    text = wanting("whole: Whole, other: Other")
    whole, other = folder.model(text, model_args=(("dropout", "0.25"), ("rate", "0.125"))).seen
    assert (whole.model.n_layer, whole.model.n_embd, whole.model.dropout, whole.vocab_size) == (2, 16, 0.25, 40)
    assert other.rate == 0.125
    (remark,) = build(folder.spec(text), CPU).facts.remarks
    assert remark == "LM does not take num_heads, d_ff: it has its own, whatever labels say (num_heads 2, d_ff 24)"


def test_what_a_config_takes_is_not_handed_on_as_well(folder: UsersFolder) -> None:
    config, rest = folder.model(
        wanting("config: Config, **rest"), model_args=(("dropout", "0.25"), ("any", "[1]"))
    ).seen
    assert config.dropout == 0.25
    assert rest == {"any": [1]}


def test_a_config_of_a_partial_factory(folder: UsersFolder) -> None:
    text = f"{CONFIG}\nfrom functools import partial\ndef make(flag, config: Config): return Base(flag, config)\n"
    text += "LM = partial(make, 7)\n"
    flag, config = folder.model(text).seen
    assert (flag, config.n_layer) == (7, 2)
    said = folder.problem(text.replace("config: Config)", "config)"))
    assert "needs config; it cannot be typed: name a function of" in said


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
def test_a_subclass_that_hands_everything_on_is_given_what_the_class_above_wants(
    folder: UsersFolder, name: str
) -> None:
    model = folder.model(HANDS_ON, name)
    assert (model.seen, model.more) == ((40, 16, 2), True)


def test_a_function_whose_arguments_have_no_names_is_told_to_name_them(folder: UsersFolder) -> None:
    said = folder.problem(HANDS_ON, "make")
    assert "missing 2 required positional arguments: 'vocab_size' and 'd_model'" in said
    assert said.endswith("; arguments passed on by ** cannot be seen: let it name the dimensions that it wants")


def test_device_and_dtype_are_texts_for_who_wants_texts(folder: UsersFolder) -> None:
    text = (
        "from torch import nn\ndef LM(*, device{0}, dtype{1}): m = nn.Linear(1, 1); m.seen = device, dtype; return m\n"
    )
    for as_text in ((": str", ": str = 'float16'"), ("='cuda'", "='float16'")):
        assert folder.model(text.format(*as_text)).seen == ("cpu", "float32")
    assert folder.model(text.format("=None", ": object")).seen == (CPU, torch.float32)


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_len", 8), ("n_positions", 8), ("emb_dim", 16), ("n_embed", 16), ("n_blocks", 2), ("dim_feedforward", 24)],
)
def test_dimensions_have_many_names(folder: UsersFolder, name: str, value: int) -> None:
    text = f"from torch import nn\ndef LM({name}): m = nn.Linear(1, 1); m.seen = {name}; return m\n"
    assert folder.model(text).seen == value


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


def test_the_arithmetic_of_a_softmax_is_known_where_the_model_takes_the_number_of_heads(folder: UsersFolder) -> None:
    def predicted(heads: str) -> tuple[int, int] | None:
        return predict(folder.spec(OWN_HEADS.replace("{heads}", heads), num_layers=3)).softmax_flops

    elements = 2 * 3 * 2 * 8 * 8  # sequences, layers, heads, pairs of tokens
    assert predicted(", num_heads=4") == (5 * elements, 4 * elements)
    assert predicted("") is None


@pytest.mark.parametrize("asks", ["config", "cfg", "config: Node", "settings: Node"])
def test_one_that_cannot_be_made_by_name_asks_for_a_function(folder: UsersFolder, asks: str) -> None:
    """minGPT's config is made by a function of its own: no text on a command line is one."""
    word = asks.partition(":")[0]
    assert folder.problem(f"class Node: ...\ndef GPT({asks}): ...\n", "GPT").endswith(
        f"needs {word}; it cannot be typed: name a function of the dimensions (d_model, num_layers, ...) that "
        f"makes {word} and returns the model"
    )


def test_the_config_beside_the_class_or_the_one_above_will_do(folder: UsersFolder) -> None:
    """A few lines around nanoGPT's GPT do not import its GPTConfig."""
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
    for name in ("GPT", "Whole"):
        text = f"from {above} import GPT\nclass Whole(GPT): ...\n"
        config = folder.model(text, name, num_layers=3).seen
        assert (config.n_layer, config.block_size) == (3, 8)
