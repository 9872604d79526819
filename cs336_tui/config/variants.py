"""Names of a user's own code, of named ranges, and of what a model may be given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

Range = Literal[
    "embedding", "norms", "QKV projections", "rotary", "attention scores", "softmax", "final matmul", "attention core",
    "attention rest", "output projection", "feed-forward", "residual", "head", "loss", "optimizer", "zero_grad",
]  # fmt: skip
RANGES: tuple[str, ...] = get_args(Range)
"""Parts of a model and of a step, in the order in which a step comes to them. The backward of a part is counted to it.
``attention core`` is scores, softmax and final matmul where they cannot be told apart, as in a fused kernel;
``attention rest`` what moves heads about, ``residual`` the additions between the parts."""

REFERENCE = "reference"
"""The model that comes with the product, as the name of a model."""
CROSS_ENTROPY = "cross-entropy"

ALIASES: dict[str, tuple[str, ...]] = {
    "vocab_size": ("n_vocab", "num_embeddings", "vocabulary_size"),
    "context_length": (
        "max_seq_len", "max_seq_length", "max_sequence_length", "block_size", "n_ctx", "ctx_len", "context_len",
        "context_size", "seq_len", "seq_length", "sequence_length", "max_len", "n_positions", "max_position_embeddings",
    ),
    "d_model": ("n_embd", "n_embed", "hidden_size", "dim", "embed_dim", "emb_dim", "model_dim"),
    "num_layers": ("n_layer", "n_layers", "depth", "num_hidden_layers", "n_blocks", "num_blocks"),
    "num_heads": ("n_head", "n_heads", "nhead", "num_attention_heads"),
    "d_ff": ("d_hidden", "intermediate_size", "ffn_dim", "ff_dim", "dim_feedforward", "hidden_dim", "mlp_dim", "d_mlp"),
    "batch_size": (),
    "seed": (),
}  # fmt: skip
"""Arguments that a user's model may have, as fields of a spec, each with its other names."""
_OPTIONS = {"context_length": "--context", "batch_size": "--batch", "device": "--device", "dtype": "--precision"}
"""Options that give what a model is given by name, where they are called otherwise."""

_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_IMPORTED = re.compile(f"{_DOTTED}:{_DOTTED}")


def is_imported(name: str) -> bool:
    """True if this names a user's own code, as ``package.module:Class``; ``ddp:25MB`` has a size behind the colon."""
    return ":" in name and not name.partition(":")[2][:1].isdigit()


def is_well_formed(name: str) -> bool:
    """True if it has the form ``package.module:attribute``; nested attributes have dots."""
    return _IMPORTED.fullmatch(name) is not None


def likely_meant(name: str) -> str:
    """Advice for a name that is not well formed, in a few words; empty if there is none."""
    module, colon, attribute = name.partition(":")
    attribute = attribute if colon else "Class"
    if "/" in module or (colon and module.endswith(".py")):
        if found := _of_file(module, attribute):
            return f"that is a path; {found}"
        parts = [part for part in module.removesuffix(".py").split("/") if part not in ("", ".")]
        above = module.startswith("/") or ".." in parts or "~" in parts
        module = ".".join(parts[-2:] if above else parts)
        folder = ", and give the folder that has the package with --model-path" if above else ""
        meant = f"{module}:{attribute}"
        return f"that is a path; write {f'{meant}{folder}' if is_well_formed(meant) else 'package.module:name'}"
    if not colon and "." in name:
        module, _, attribute = name.removesuffix(".py").rpartition(".")
        meant = f"{module}:{attribute}" if not name.endswith(".py") else f"{name.removesuffix('.py')}:Class"
        return f"write {meant}" if is_well_formed(meant) else ""
    if "-" in module and is_well_formed(name.replace("-", "_")):
        return "Python imports no module with a dash in its name; rename it, with an underscore"
    return ""


def _of_file(path: str, attribute: str) -> str:
    """Advice for naming code in a Python file, from the folder above its package; empty if there is no file."""
    try:
        file = Path(path).expanduser()
        file = file if file.suffix == ".py" else file.with_name(f"{file.name}.py")
        is_there = file.is_file()
    except (OSError, RuntimeError, ValueError):  # no such person, a name that no file can have, or that nobody may see
        is_there = False
    if not is_there:
        return ""
    folder, parts = file.resolve().parent, [file.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    meant = f"{'.'.join(parts)}:{attribute}"
    if not is_well_formed(meant):
        return ""
    return f"write {meant}" if folder == Path.cwd() else f"write {meant} and give the folder: --model-path {folder}"


def option_of(argument: str) -> str | None:
    """The option that gives a model what it asks for by this name, such as --num-layers; None where none does."""
    names = {other: field for field, others in ALIASES.items() for other in (field, *others)}
    field = argument if argument in ("device", "dtype") else names.get(argument)
    return field and _OPTIONS.get(field, f"--{field.replace('_', '-')}")


def arguments_for(model: str, pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Arguments for this model: those for all models, and its own, written ``Class.name``."""
    if not is_imported(model):
        return ()
    own = f"{short(model)}."
    return tuple((name.removeprefix(own), value) for name, value in pairs if "." not in name or name.startswith(own))


def short(name: str) -> str:
    """``Class`` of ``package.module:Class``; any other name as it is."""
    return name.partition(":")[2] or name
