"""Finds what a user named, on Python's path and in the user's folders, imports it in this process, and reads its
revision: the hash of its file, and the commit of the git repository that has it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import is_imported, no_such_part, why_no_folder, why_no_module
from cs336_tui.worker.workload.import_problems import SITES, ImportProblem, explained, is_users_file, remember

_entered: dict[str, frozenset[str]] = {}  # Folders put on the path, and top-level modules loaded before


def find(name: str, paths: tuple[str, ...]) -> Any:
    """The object named ``package.module:attribute``. Raises `ImportProblem`, in one line, if it is not found."""
    module_name, _, attribute = name.partition(":")
    try:
        look_in(paths)
        _remember(module_name.partition(".")[0])
        return attribute_of(_import(name, paths), module_name, attribute)[1]
    except ImportProblem as problem:
        problem.code = name
        raise


def attribute_of(module: ModuleType, home: str, path: str) -> tuple[Any, Any]:
    """The object at a dotted path in a module that was named `home`, after its owner. Raises `ImportProblem`."""
    owner = found = module
    for part in path.split("."):
        owner = found
        try:
            found = getattr(owner, part)
        except AttributeError:
            raise ImportProblem(_missing(module, home, owner, part)) from None
        home = f"{home}.{part}"
    return owner, found


def look_in(paths: Iterable[str]) -> None:
    """Add these folders to Python's path, before installed modules. Those of an earlier call that are not among them
    are removed and their modules forgotten, so that one process can import two versions of a module in turn."""
    folders = [str(Path(path).resolve()) for path in paths]
    for folder in folders:
        if wrong := why_no_folder(folder):
            raise ImportProblem(f"model path {folder}: {wrong}")
    for left in [folder for folder in _entered if folder not in folders]:
        _forget(left, _entered.pop(left))
    kept = [entry for entry in sys.path if str(Path(entry).resolve()) not in folders]
    at = next((number for number, entry in enumerate(kept) if Path(entry).name in SITES), len(kept))
    path = [*kept[:at], *dict.fromkeys(folders), *kept[at:]]
    if path != sys.path:
        sys.path[:] = path
    for folder in folders:
        _entered.setdefault(folder, frozenset(name.partition(".")[0] for name in sys.modules))
        remember(folder, named=False)
        if not any(Path(folder).glob("*.dist-info")):  # a repository, not installed packages
            remember(folder, named=True)
    offer_metadata(folders)
    importlib.invalidate_caches()


class UserModules(NamedTuple):
    """Modules and path of a user's folders while another version of them is in use."""

    path: tuple[str, ...]
    entered: dict[str, frozenset[str]]
    modules: dict[str, ModuleType]


def detach_user_modules() -> UserModules:
    """Remove a user's folders and modules from this process; `attach_user_modules` undoes that."""
    path, entered = tuple(sys.path), dict(_entered)
    modules: dict[str, ModuleType] = {}
    for folder, loaded_before in entered.items():
        modules |= _forget(folder, loaded_before)
    _entered.clear()
    offer_metadata(())
    return UserModules(path, entered, modules)


def attach_user_modules(aside: UserModules) -> None:
    """Put detached modules and folders in place again. Detach others first."""
    sys.path[:] = aside.path
    sys.modules.update(aside.modules)
    _entered.update(aside.entered)
    offer_metadata(aside.entered)


def _forget(folder: str, loaded_before: frozenset[str]) -> dict[str, ModuleType]:
    """Remove modules that were imported from this folder, and return them."""
    sys.path[:] = [entry for entry in sys.path if entry != folder]
    tops = {name.partition(".")[0] for name in sys.modules} - loaded_before
    gone = {top for top in tops if (module := sys.modules.get(top)) is not None and _home(module) == folder}
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in gone}


def _home(module: ModuleType) -> str | None:
    """The folder on the path in which a top-level module was found."""
    if locations := list(getattr(module, "__path__", ())):
        return str(Path(locations[0]).resolve().parent)
    file = getattr(module, "__file__", None)
    return str(Path(file).resolve().parent) if file else None


def _remember(top: str) -> None:
    """Remember the user's files: the package of the named module if it is installed, else its whole folder."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module that was made by hand
        return
    if spec is None or top in sys.stdlib_module_names:
        return
    packages = list(spec.submodule_search_locations or ())
    for place in packages or ([spec.origin] if spec.origin else []):
        home = Path(place).resolve().parent
        if not any(site in home.parts for site in SITES):
            remember(str(home), named=True)
        elif packages:
            remember(place, named=True)


def _import(name: str, paths: tuple[str, ...]) -> ModuleType:
    """The module of ``module:attribute``."""
    module = name.partition(":")[0]
    with explained(f"importing {module}", lambda error: _hint(error, name, paths)):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            own = isinstance(error.name, str) and f"{module}.".startswith(f"{error.name}.")
            if own and not isinstance(error, PackageNotFoundError):
                raise ImportProblem(why_no_module(name, paths) or f"no module {error.name}") from None
            raise


def _hint(error: BaseException, name: str, paths: tuple[str, ...]) -> str:
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        top = name.partition(":")[0].partition(".")[0]
        packages = [Path(path).resolve() for path in paths if (Path(path) / f"{top}.py").is_file()]
        if packages and packages[0].name.isidentifier():
            return f"; it is part of a package: write {packages[0].name}.{name} with --model-path {packages[0].parent}"
        return "; it is part of a package: write package.module:name with --model-path for the folder above the package"
    return hint_of_import(error)


def hint_of_import(error: BaseException) -> str:
    """The remedy for a module or a package's metadata that is missing; empty for other errors."""
    if isinstance(error, PackageNotFoundError):
        return "; install that package beside cs336-tui (pip install --no-deps -e FOLDER)"
    if isinstance(error, ModuleNotFoundError):
        return "; install it beside cs336-tui, or give the folder that has it with --model-path"
    return ""


def _missing(where: ModuleType, path: str, found: object, part: str) -> str:
    """The message that the object `found` at a dotted path in the module `where` has no such part, with hints."""
    top = where.__name__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{path} has no {part}: {top} is Python's own module; give yours another name"
    names = [name for name in dir(found) if not name.startswith("__")]
    folders = getattr(where, "__path__", ()) if found is where else ()
    return no_such_part(path, part, getattr(where, "__file__", None) or "no file", names, where.__name__, folders)


class _ProjectMetadata(Distribution):
    """Name and version of the package in a folder's ``pyproject.toml``."""

    def __init__(self, folder: str, name: str, version: str) -> None:
        self._folder = folder
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(self._folder) / path


class SourceFinder(DistributionFinder):
    """Finds metadata of packages in folders, no modules. Comes last, after installed packages."""

    def __init__(self, folders: Iterable[str]) -> None:
        self._folders = tuple(folders)

    def find_spec(self, *_: object) -> None:
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        wanted = context.name if context is not None else None
        for folder in self._folders:
            for place in (Path(folder), Path(folder).parent):  # beside the package, or above its src folder
                name, version = _project(place / "pyproject.toml")
                if name and (wanted is None or _canonical(name) == _canonical(wanted)):
                    yield _ProjectMetadata(folder, name, version)
                    break


def offer_metadata(folders: Iterable[str]) -> None:
    """Make ``importlib.metadata`` find packages in these folders instead of those of an earlier call."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, SourceFinder)]
    sys.meta_path.append(SourceFinder(folders))


def _project(file: Path) -> tuple[str, str]:
    """Name and version; empty if unknown."""
    try:
        project = tomllib.loads(file.read_text()).get("project", {})
    except (OSError, ValueError):
        return "", ""
    name, version = project.get("name"), project.get("version", "0")
    return (name, str(version)) if isinstance(name, str) else ("", "")


def _canonical(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


_BETWEEN = "; "  # Revisions
_GIT_TIMEOUT_S = 3.0
_HASH_LETTERS = 12
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # That git sets for its hooks


def revisions_of(spec: CellSpec, model: nn.Module) -> str | None:
    """Revisions of all user code in a spec's step, model first; None without user code. The named model may only wrap
    classes of other files, so the user's files with classes of its modules follow."""
    names = [name for name in spec.own_code if name != spec.optimizer or spec.pass_ == "train-step"]
    found = [(name, find(name, spec.model_path)) for name in names if is_imported(name)]
    revisions: list[str] = []
    for name, thing in found:
        revisions.append(revision_of(thing))
        if name == spec.model:
            revisions += revisions_of_classes(model)
    return joined(revisions)


def joined(revisions: Iterable[str | None]) -> str | None:
    """Each revision once, those of joined ones too; None if there is none."""
    each = (revision for several in revisions if several for revision in several.split(_BETWEEN))
    return _BETWEEN.join(dict.fromkeys(each)) or None


def revisions_of_classes(model: nn.Module) -> list[str]:
    """Revisions of the user's classes among those of its modules and their base classes, the outermost first."""
    kinds = dict.fromkeys(type(module) for module in model.modules())
    classes = dict.fromkeys(base for kind in kinds for base in kind.__mro__)
    files = ((kind, getattr(sys.modules.get(kind.__module__), "__file__", None)) for kind in classes)
    return [revision_of(kind) for kind, file in files if file and is_users_file(file, named_only=True)]


def revision_of(thing: Callable[..., Any]) -> str:
    """``model.py sha256 1a2b3c4d5e6f, git 0a1b2c3 with uncommitted changes``; without git if it is not tracked."""
    owner = getattr(thing, "__self__", None)  # of the apply of an autograd function
    try:
        file = inspect.getsourcefile(owner if isinstance(owner, type) else inspect.unwrap(thing))
    except TypeError:
        file = None
    if file is None or not Path(file).is_file():
        return "source unknown"
    return _revision(str(Path(file).resolve()))


@lru_cache(maxsize=64)
def _revision(file: str) -> str:
    folder, name = Path(file).parent, Path(file).name
    text = f"{name} sha256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:_HASH_LETTERS]}"
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    own = _git(folder, "status", "--porcelain", "--ignored", "--untracked-files=all", "--", name)
    if not commit or own is None or own.startswith("!!"):  # git ignores the file
        return text
    dirty = own or _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{text}, git {commit}{' with uncommitted changes' if dirty else ''}"


def _git(folder: Path, *words: str) -> str | None:
    """The output of a git command that only reads; None if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
            env=environment | {"GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
