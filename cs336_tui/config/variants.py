"""Names of a user's own code, which are looked for in the source of its module, without importing it; names of ranges,
of what a model may be given, and those nearest to a name that there is not."""

from __future__ import annotations

import ast
import itertools
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
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
CROSS_ENTROPY, IN_MODEL = "cross-entropy", "in-model"
"""Losses; the second is returned by a user's model, from tokens and targets."""

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

_MAKING_NAMES = {"globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__setattr__"}
"""Names that a module uses which binds names as it runs."""
_MOST_FILES = 500
"""Files of a package that are searched for a name in the wrong place."""
_FEW, _MOST_NEAR = 10, 5
"""Most names that are all said; most that are said of more."""
_MOST_SETTINGS = 10_001
_LONGEST = 80
"""Letters of a word that are compared with names."""
_LIKE, _LIKER = 0.65, 0.15
"""Likeness of names that are near, of 1; its greatest difference to that of the nearest."""
IN_EXPORT = "`cs336-tui export --help` lists them"
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_IMPORTED = re.compile(f"{_DOTTED}:{_DOTTED}")


def is_imported(name: str) -> bool:
    """True if this names a user's own code, as ``package.module:Class``; ``ddp:25MB`` has a size behind the colon."""
    return ":" in name and not name.partition(":")[2][:1].isdigit()


def is_well_formed(name: str) -> bool:
    """True if it has the form ``package.module:attribute``; nested attributes have dots."""
    return _IMPORTED.fullmatch(name) is not None


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """The names that are spelled most like a word, at most `_MOST_NEAR`; none if none is like it."""
    return _nearest(plain(word)[:_LONGEST], tuple(names), " " in word)


@lru_cache(maxsize=64)
def _nearest(asked: str, names: tuple[str, ...], several: bool) -> list[str]:
    from difflib import SequenceMatcher

    likeness = dict.fromkeys(names, 0.0)
    for name in likeness if asked else ():
        for part in map(plain, (name, *re.split("[/ ]", name)) if not several else (name,)):
            within = 0.9 if len(asked) > 2 and asked in part else 0.0
            rest = iter(part)  # an abbreviation has letters of the name in their order, as attn
            if part[:1] == asked[:1] and len(asked) > 2 and all(letter in rest for letter in asked):
                within = max(within, _LIKE)
            likeness[name] = max(likeness[name], within, SequenceMatcher(None, asked, part).ratio())
    least = max(_LIKE, max(likeness.values(), default=0.0) - _LIKER)
    near = sorted(likeness, key=lambda name: -likeness[name])
    return [name for name in near if likeness[name] >= least][:_MOST_NEAR]


def did_you_mean(word: str, names: Iterable[str], before: str = "") -> str:
    """``did you mean a, b or c?``, after `before`; empty if no name is near."""
    *most, last = nearest(word, names) or [""]
    return f"{before}did you mean {', '.join(most)}{' or ' if most else ''}{last}?" if last else ""


def expected(word: str, names: Iterable[str], *, own: str = "", see: str = "") -> str:
    """The names that a word may mean which is none of these: all of a few, else the nearest ones, else some and where
    to `see` the others. `own` is what it may be besides."""
    known = tuple(dict.fromkeys(names))
    is_few = len(known) <= _FEW
    meant = did_you_mean(word, known) if len(nearest(word, known)) < len(known) else ""
    if meant and not is_few:
        return meant
    shown = ", ".join(known) if is_few else f"{', '.join(known[:_MOST_NEAR])} and {len(known) - _MOST_NEAR} more"
    return "; ".join(filter(None, (f"expected one of {shown}{own}", meant if is_few else see)))


def plain(name: str) -> str:
    """A name as people spell it: ``warm-up`` is ``warmup``."""
    return re.sub(r"[-_ ]", "", name).lower()


def module_named(name: str) -> str:
    """``mine:flash`` of ``mine.py:flash``, a file of the current folder; any other name as it is."""
    file, _, attribute = name.partition(".py:")
    return f"{file}:{attribute}" if attribute and file.isidentifier() and Path(f"{file}.py").is_file() else name


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


Pairs = tuple[tuple[str, str], ...]
"""Arguments of a user's own code: names and values, as texts."""


def arguments_for(name: str, pairs: Pairs) -> Pairs:
    """Arguments for this code of a user's own: those for all of its kind, and its own, written ``Class.name``."""
    if not is_imported(name):
        return ()
    own = f"{short(name)}."
    return tuple((each.removeprefix(own), value) for each, value in pairs if "." not in each or each.startswith(own))


def values_in(text: str) -> tuple[str, ...]:
    """The values of an argument that are separated by commas; those in brackets or quotes separate none. Text with an
    empty value or an open bracket is one value."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        quote = "" if letter == quote else quote or (letter if letter in "'\"" else "")
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    values = tuple(part.strip() for part in parts)
    return values if all(values) and not depth and not quote else (text,)


def settings_of(pairs: Pairs) -> tuple[Pairs, ...]:
    """The product of the values of arguments: for each combination the arguments with one value each, up to more than
    a sweep may have. An argument that is given twice has the values of both."""
    several: dict[str, dict[tuple[str, str], None]] = {}
    for name, text in pairs:
        several.setdefault(name, {}).update({(name, value): None for value in values_in(text)})
    return tuple(itertools.islice(itertools.product(*several.values()), _MOST_SETTINGS))


def pairs_of(settings: Iterable[Pairs]) -> Pairs:
    """The arguments whose product these settings are, the inverse of `settings_of`."""
    found: dict[str, dict[str, None]] = {}
    for name, value in itertools.chain.from_iterable(settings):
        one = value if values_in(value) == (value,) else f"({value})"
        found.setdefault(name, {})[one] = None
    return tuple((name, ",".join(values)) for name, values in found.items())


def pairs_text(pairs: Pairs) -> str:
    """``BLOCK_M=16, BLOCK_N=32``."""
    return ", ".join(map("=".join, pairs))


def short(name: str) -> str:
    """``Class`` of ``package.module:Class``; any other name as it is."""
    return name.partition(":")[2] or name


def why_not_there(name: str, folders: Sequence[str]) -> str:
    """Why ``package.module:attribute`` cannot be there, by the module's source in these folders; empty where it may be.

    Imports nothing. What a module makes as it runs, such as by ``globals()``, is not seen: then it may be there.
    """
    module, _, dotted = name.partition(":")
    part, file = dotted.partition(".")[0], _source_of(module, folders)
    names = _bound_in(file) if file else None
    if names is None or part in names:
        return ""
    package = [str(file.parent)] if file and file.stem == "__init__" else []
    if PathFinder.find_spec(f"{module}.{part}", package):
        return ""
    return no_such_part(module, part, str(file), names, module, package)


def why_no_module(name: str, folders: Sequence[str]) -> str:
    """The reason for which no module of ``package.module:attribute`` is in these folders or installed, with a hint;
    empty where it may be there."""
    module, _, attribute = name.partition(":")
    *packages, (missing, there) = found_along(module, [*folders, *sys.path])
    if there:
        return ""
    if missing.endswith(".py"):
        return f"no module {missing}: write {module.removesuffix('.py')}:{attribute}, without .py"
    if packages:
        whole, above = packages[-1]
        assert above  # the last one alone is not there
        if above.origin and _bound_in(Path(above.origin)) is None:
            return ""
        places = list(above.submodule_search_locations or ())
        home = places[0] if places else f"{whole}, which is no package"
        return f"no module {missing} in {home}{_module_meant(missing.rpartition('.')[2], places, f'{whole}.')}"
    top = missing
    with suppress(ImportError, ValueError):  # that somebody installed in a way of their own
        if find_spec(top):
            return ""
    looked = ", ".join(folders) or "no folder of yours"
    patterns = (f"*/{top}/__init__.py", f"*/{top}.py")
    nearby = [found for path in folders for pattern in patterns for found in sorted(Path(path).glob(pattern))]
    if nearby:
        folder = nearby[0].parent.parent if nearby[0].name == "__init__.py" else nearby[0].parent
        if (folder / "__init__.py").is_file():
            meant = f"{folder.name}.{module.removesuffix('.py')}:{attribute}"
            return f"no module {missing} in {looked}; it is in package {folder.name}: write {meant}"
        return f"no module {missing} in {looked}; there is one in {folder}: --model-path {folder}"
    if meant := _module_meant(top, folders):
        return f"no module {missing} in {looked}{meant}"
    return f"no module {missing}, looked in {looked} and among what is installed; add its folder with --model-path"


def _module_meant(word: str, folders: Iterable[str], before: str = "") -> str:
    """A hint at modules of similar names in these folders."""
    modules = nearest(word, (module.name for module in pkgutil.iter_modules(folders)))
    return did_you_mean(f"{before}{word}", [before + module for module in modules], "; ")


def no_such_part(path: str, part: str, file: str, names: Iterable[str], package: str, folders: Iterable[str]) -> str:
    """The message that what stands at a dotted path in a file has no such part, only these `names`; with a hint at
    those spelled alike, or at the module of the `package` in these folders that has it."""
    meant = f"; it is in {there}: write {there}:{part}" if (there := _defined_in(package, folders, part)) else ""
    return f"{path} has no {part} ({file}){meant or did_you_mean(part, sorted(names), '; ')}"


def why_no_folder(folder: str) -> str:
    """Why a user's code cannot be looked for there; empty where it can."""
    from cs336_tui.config.reading import is_file, is_folder  # it imports what reads TOML

    if is_file(Path(folder)):
        return "that is a file; give its folder"
    return "" if is_folder(Path(folder)) else "no such folder"


def found_along(module: str, path: Sequence[str]) -> Iterator[tuple[str, ModuleSpec | None]]:
    """The name of each package of a dotted name and of the module, as found in these folders; None ends it."""
    whole = ""
    for part in module.split("."):
        whole = f"{whole}.{part}".lstrip(".")
        found = PathFinder.find_spec(whole, path)
        yield whole, found
        if found is None:
            return
        path = found.submodule_search_locations or ()


def _source_of(module: str, folders: Sequence[str]) -> Path | None:
    """The source of a module in these folders."""
    if module.partition(".")[0] in sys.stdlib_module_names:
        return None
    *_, (_, found) = found_along(module, folders)
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


def _bound_in(file: Path) -> set[str] | None:
    """All names that a source binds, at any depth; None if it cannot be read or makes some as it runs."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = {name for node in nodes for name in _bound_by(node)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return None if names & {"*", "__getattr__"} or used & _MAKING_NAMES else names


def _bound_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name


def _defined_in(package: str, folders: Iterable[str], name: str) -> str | None:
    """The module of a package in these folders whose source defines a class or a function of this name."""
    definition = re.compile(rf"^(?:class|def) {re.escape(name)}\b", re.MULTILINE)
    for folder in map(Path, folders):
        for file in itertools.islice(sorted(folder.rglob("*.py")), _MOST_FILES):
            with suppress(OSError, UnicodeDecodeError):
                if definition.search(file.read_text(encoding="utf-8")):
                    inside = file.relative_to(folder).with_suffix("").parts
                    return ".".join((package, *(part for part in inside if part != "__init__")))
    return None
