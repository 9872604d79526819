"""Named sweeps as data files: those of each handout edition, and a user's own.

A preset is one TOML file and is named by its place: ``2026/warmup.toml`` is ``2026/warmup``. Its keys are the flags of
`cs336-tui bench` without their dashes; a key that is left out keeps its default. `about` says what it is for, `also`
names presets that `bench` runs with it, `over` the choices that `tune` searches, as its ``--over``. As there,
``warmup`` and ``steps`` may be ``"auto"``, ``"auto:50"`` or ``"10s"``, and with automatic steps ``interval`` 0.01 or
``"1%"``.

Users' own models that were run recently are kept in a small file so that they need not be typed again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from cs336_tui.config.axis import NUMBERS, UserError
from cs336_tui.config.counts import Auto, Counted, auto_of, auto_words, share_of
from cs336_tui.config.reading import UNREADABLE, TomlError, exists, parse_toml, read_small, read_text, write_quietly
from cs336_tui.config.spec import AXES, CUSTOM_SIZE, RAW_DIMS, ModelDims, SpecError
from cs336_tui.config.sweep import NOT_OF_COLLECTIVES, Sweep
from cs336_tui.config.values import LANGUAGE_MODEL
from cs336_tui.config.variants import expected, is_imported

_LONGEST_NAME = 240  # bytes, with some left for a suffix and a draft
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]*(/[A-Za-z0-9][A-Za-z0-9 ._+-]*)*")
_DEPTH = 3
"""Maximum depth of preset folders; a link may lead back to its own folder."""
_GIVEN = [axis for axis in AXES.values() if axis.sweep and axis.option]
_KEYS: dict[str, tuple[str, type, bool]] = (
    {axis.key: (axis.sweep, axis.kind, True) for axis in _GIVEN if axis.several}
    | dict.fromkeys(("head_dim", "width"), ("head_dims", int, True))
    | {"reports": ("reports", str, True), "oom_skip": ("oom_skip", bool, False)}
    | {"lanes": ("lanes", int, False)}
    | {axis.key: (axis.sweep, axis.kind, False) for axis in _GIVEN if not axis.several and axis.kind is not tuple}
    | {axis.key: (axis.sweep, str, True) for axis in _GIVEN if axis.kind is tuple}
)
"""Each key's field of a sweep, the type of its values, and whether it may hold several, as a list."""
_PAIRS = tuple(axis.key for axis in AXES.values() if axis.widget == "pairs")
"""Keys that hold a list of texts as ``name=value``."""
_VARIANTS = (axis.key for axis in AXES.values() if axis.group == "variants")
_RARE = ("head_dim", "width", "reports", "oom_skip", "lanes", *_VARIANTS)
"""Keys that a file leaves out where they are as usual."""
_COUNTED: dict[str, Counted] = {"warmup": "warmup_steps", "steps": "measure_steps"}
"""Keys that may hold ``auto``."""
FORMER = {
    "2025/memory": "2025/memory_profiling",
    "2026/memory": "2026/memory_profiling",
    "2026/checkpointing": "2026/gradient_checkpointing",
    "2026/flash": "2026/flash_benchmarking",
    "2026/mixed_precision": "2026/benchmarking_mixed_precision",
    **{f"{each}/distributed_communication_single_node": f"{each}/all_reduce" for each in ("2024", "2025", "2026")},
}
"""Other names of bundled presets, which still find them."""
_THERE = "preset {}: exists already; choose another name"
_KINDS = {str: "a text", bool: "true or false", **NUMBERS}


class Preset(msgspec.Struct, frozen=True):
    """A named sweep and what it is for. `also` are presets that `cs336-tui bench` runs with it, `over` what
    `cs336-tui tune` searches if nobody chooses."""

    name: str
    about: str
    sweep: Sweep
    also: tuple[str, ...] = ()
    over: tuple[str, ...] = ()


class PresetError(UserError):
    """A preset that cannot be read or kept; one line names it, what is wrong and what is allowed."""


_PLAIN = Sweep()
QUICK = Preset("quick", "the tiny size on this machine's best device, under half a minute", _PLAIN)
"""The defaults of every choice; has no file of its own."""


class PresetSet(msgspec.Struct, frozen=True):
    """Every preset that could be read, and a line for each that could not."""

    presets: tuple[Preset, ...]
    problems: tuple[str, ...] = ()

    def find(self, name: str) -> Preset:
        """The preset of that name. Raises `SpecError` naming the known ones, or why it could not be read."""
        known = {preset.name: preset for preset in self.presets}
        if found := known.get(name) or known.get(FORMER.get(name, "")):
            return found
        if wrong := next((text for text in self.problems if text.startswith(f"preset {name}:")), None):
            raise SpecError("preset", name, wrong.partition(": ")[2])
        raise SpecError("preset", name, expected(name, known, see="`cs336-tui presets` lists them"))


def user_preset_dir() -> Path:
    """Folder of the user's own presets."""
    return platformdirs.user_config_path("cs336-tui", appauthor=False) / "presets"


@cache
def bundled() -> tuple[Preset, ...]:
    """The presets that come with the product, newest edition first."""
    found = _presets_in(Path(__file__).parents[1] / "data" / "presets")
    assert not found.problems, found.problems
    return (QUICK, *sorted(found.presets, key=lambda preset: _edition_rank(preset.name)))


def preset_files() -> Iterator[tuple[str, Path]]:
    """Name and file of every preset, unread: the bundled ones, newest edition first, then the user's own."""
    bundled = _toml_files(Path(__file__).parents[1] / "data" / "presets", "")
    yield from sorted(bundled, key=lambda found: _edition_rank(found[0]))
    yield from _toml_files(user_preset_dir(), "")


def all_presets(user_dir: Path | None = None) -> PresetSet:
    """The bundled presets, then those in `user_dir` (`user_preset_dir` if None), which replace bundled ones of the same
    name."""
    own = _presets_in(user_dir or user_preset_dir())
    names = {preset.name for preset in own.presets}
    return PresetSet((*(preset for preset in bundled() if preset.name not in names), *own.presets), own.problems)


def preset(name: str) -> Preset:
    """The bundled or own preset of that name. Raises `SpecError`."""
    return all_presets().find(name)


def save(preset: Preset, user_dir: Path | None = None, *, overwrite: bool = False) -> Path:
    """Save a preset among the user's own; returns its file. Raises `PresetError`."""
    path = _new_file(preset.name, user_dir)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(to_toml(preset))
    except FileExistsError:
        raise PresetError(_THERE.format(preset.name)) from None
    except OSError as error:
        raise PresetError(f"preset {preset.name}: {path}: {error.strerror}") from None
    return path


def check_new(name: str, *, overwrite: bool = False) -> None:
    """Raise `PresetError` if no preset of this name can be saved."""
    if exists(_new_file(name)) and not overwrite:
        raise PresetError(f"{_THERE.format(name)}, or say --force")


def _new_file(name: str, user_dir: Path | None = None) -> Path:
    if not _NAME.fullmatch(name):
        raise PresetError(f"preset name {name!r}: expected letters, digits, spaces, . _ + - and / between")
    if any(len(part.encode()) > _LONGEST_NAME for part in name.split("/")):
        raise PresetError(f"preset name {name[:20]}...: longer than that of a file can be")
    return (user_dir or user_preset_dir()) / f"{name}.toml"


def to_toml(preset: Preset) -> str:
    """The preset as its file says it, every choice spelled out."""
    import tomlkit

    sweep = preset.sweep
    fields: dict[str, Any] = {"about": preset.about} | ({"also": list(preset.also)} if preset.also else {})
    fields |= {"over": list(preset.over)} if preset.over else {}
    if sweep.dims:
        fields |= {name: getattr(sweep.dims, name) for name in (*RAW_DIMS, "vocab_size")}
    if sweep.is_alone and sweep.heads > 1:
        fields["num_heads"] = sweep.heads
    for key, (field, _, several) in _KEYS.items():
        value, usual = getattr(sweep, field), getattr(_PLAIN, field)
        if field == "head_dims" and key != sweep.width_key:
            continue
        if sweep.is_collective and field in (*NOT_OF_COLLECTIVES, "arch", "vocab_size"):
            continue
        if value is None or key in fields or (key in _RARE and value == usual) or (key == "size" and sweep.dims_alone):
            continue
        if key in _PAIRS:
            fields[key] = list(map("=".join, value))
        else:
            fields[key] = value if not several else value[0] if len(value) == 1 else list(value)
    if sweep.warmup_auto or sweep.warmup_for is not None:
        fields["warmup"] = auto_words("warmup_steps", sweep.warmups[0], sweep.warmup_for)
    if sweep.steps_for is not None:
        fields["steps"] = auto_words("measure_steps", sweep.steps, sweep.steps_for)
    if sweep.steps_auto is not None:
        fields |= {"steps": auto_words("measure_steps", sweep.steps), "interval": sweep.steps_auto}
    return tomlkit.dumps(fields)


def from_toml(name: str, text: str) -> Preset:
    """Inverse of `to_toml`. Raises `PresetError` naming the key, the value and what is allowed."""
    try:
        fields = parse_toml(text)
    except TomlError as error:
        raise PresetError(f"preset {name}: {error}") from None
    allowed = ("about", "also", "over", *_KEYS, "interval", *RAW_DIMS)
    if unknown := sorted(fields.keys() - set(allowed)):
        raise PresetError(f"preset {name}: unknown key {unknown[0]}: {expected(unknown[0], allowed)}")
    try:
        about = _convert("about", fields.pop("about", ""), str)
        also, over = _texts(fields, "also"), _texts(fields, "over")
        return Preset(name, about, _sweep(fields), also, over)
    except SpecError as error:
        raise PresetError(f"preset {name}: {error}") from None


def _texts(fields: dict[str, Any], key: str) -> tuple[str, ...]:
    """Take out a key that holds a text or a list of them."""
    found = fields.pop(key, [])
    return tuple(_convert(key, each, str) for each in (found if isinstance(found, list) else [found]))


def _sweep(fields: dict[str, Any]) -> Sweep:
    given = _automatic(fields)
    for key, (field, kind, several) in _KEYS.items():
        if key not in fields or field in given:
            continue
        values = fields[key] if several and isinstance(fields[key], list) else [fields[key]]
        found = [_pair(key, value) if key in _PAIRS else _convert(key, value, kind) for value in values]
        given[field] = tuple(found) if several else found[0]
    raw = {key: _convert(key, fields[key], int) for key in RAW_DIMS if key in fields}
    if given.get("workload", LANGUAGE_MODEL) != LANGUAGE_MODEL and raw.keys() == {"num_heads"}:
        given["heads"] = raw.pop("num_heads")
    if raw:
        if missing := [key for key in RAW_DIMS if key not in raw]:
            raise SpecError("raw dimensions", "incomplete", f"{', '.join(missing)} missing; give all of them")
        beside = CUSTOM_SIZE in given.get("sizes", ())
        if "sizes" in given and not beside:
            allowed = f"give either size or raw dimensions, or {CUSTOM_SIZE} among the sizes"
            raise SpecError("size", ",".join(given["sizes"]), allowed)
        vocab_size = given.get("vocab_size", _PLAIN.vocab_size)
        given["dims"] = ModelDims(**raw, vocab_size=vocab_size)
        given["vocab_size"] = vocab_size if beside else _PLAIN.vocab_size
    if given.get("workload") == "collective":
        given = NOT_OF_COLLECTIVES | given
    sweep = Sweep(**given)
    sweep.check()
    return sweep


def _automatic(fields: dict[str, Any]) -> dict[str, Any]:
    """The choices of those counts that are ``auto`` or a time, in a list or not."""
    given: dict[str, Auto] = {}
    for key, field in _COUNTED.items():
        value = fields.get(key)
        values = value if isinstance(value, list) else [value]
        found = [auto for word in values if isinstance(word, str) and (auto := auto_of(field, word))]
        if found and len(values) > 1:
            raise SpecError(key, ",".join(map(str, values)), found[0].alone)
        if found:
            given[key] = found[0]
    if "interval" in fields and "steps" not in given:
        raise SpecError("interval", fields["interval"], 'is for steps = "auto"')
    share = share_of(str(fields["interval"])) if "interval" in fields else None
    return _PLAIN.counts(given.get("warmup"), given.get("steps"), share)


def _pair(key: str, text: Any) -> tuple[str, str]:
    name, equals, value = _convert(key, text, str).partition("=")
    if not (name.strip() and equals):
        raise SpecError(key, text, "expected a list of texts as name=value")
    return name.strip(), value.strip()


def _convert(key: str, value: Any, kind: type) -> Any:
    if key == "lanes" and value == "auto":
        return value
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        or_auto = ' or "auto"' if key == "lanes" else ""
        or_auto = ' or "auto" or a time as "10s"' if key in _COUNTED else or_auto
        raise SpecError(key, value, f"expected {_KINDS[kind]}{or_auto}")
    return value


def _presets_in(folder: Path) -> PresetSet:
    presets: list[Preset] = []
    problems: list[str] = []
    for name, file in _toml_files(folder, ""):
        try:
            presets.append(from_toml(name, read_text(file)))
        except PresetError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"preset {name}: cannot be read: {error.strerror}")
    return PresetSet(tuple(presets), tuple(problems))


def _toml_files(folder: Path, prefix: str) -> list[tuple[str, Path]]:
    """Name and file of every preset below a folder, by name; none when there is no such folder."""
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError:
        return []
    found: list[tuple[str, Path]] = []
    for entry in entries:
        if entry.is_dir() and prefix.count("/") < _DEPTH:
            found += _toml_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".toml"):
            found.append((prefix + entry.name.removesuffix(".toml"), entry))
    return found


def _edition_rank(name: str) -> tuple[int, str]:
    edition, slash, _ = name.partition("/")
    return (-int(edition) if slash and edition.isdigit() else 1, name)


MOST_RECENT = 10
"""Number of recent models that are kept."""


class RecentModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model by its name, with what it was run with."""

    model: str
    args: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


def models_in(sweep: Sweep) -> tuple[RecentModel, ...]:
    """Users' own models that the sweep runs, in its order."""
    return tuple(
        RecentModel(model=name, args=sweep.model_args, path=sweep.model_path, annotations=sweep.annotations)
        for name in sweep.models
        if is_imported(name)
    )


def recent_models(file: Path | None = None) -> tuple[RecentModel, ...]:
    """Recent models, newest first; none if the file cannot be read."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(read_small(file or _recent_models_file()), type=tuple[RecentModel, ...])[
            :MOST_RECENT
        ]
    return ()


def remember(models: Iterable[RecentModel], file: Path | None = None) -> tuple[RecentModel, ...]:
    """Put these before those that were run earlier; the models that are kept now.

    Of one name in the same folders the latest is kept. A file that cannot be written is left as it is.
    """
    file = file or _recent_models_file()
    kept: dict[tuple[str, tuple[str, ...]], RecentModel] = {}
    for model in (*models, *recent_models(file)):
        kept.setdefault((model.model, model.path), model)
    newest = tuple(kept.values())[:MOST_RECENT]
    with contextlib.suppress(UnicodeEncodeError):
        write_quietly(file, msgspec.json.format(msgspec.json.encode(newest)))
    return newest


def _recent_models_file() -> Path:
    return platformdirs.user_state_path("cs336-tui", appauthor=False) / "recent-models.json"
