"""The code that a log may have imported: the current folder's own, by its files and by what they define; and the code
that is not there."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from cs336_tui.config.spec import CellSpec
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.launcher import Launcher, StartError
from cs336_tui.runner.machine import lacking_code
from cs336_tui.runner.trust import Trust, Untrusted, check_log, files_of, imports_of
from tests.samples import session_start, write_log
from tests.watching import small_spec

MINE = """
import os
from os import path, system as shell
from functools import partial
from helpers import Made, remove as cleared
from . import nothing

class Net:
    class Inner:
        pass

def made(): ...

alias = Net
foreign = os.system
wide = partial(Net, 3)
if True:
    def below(): ...
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    (folder / "helpers.py").write_text("from shutil import rmtree as remove\nclass Made: ...\n")
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import Deep\nfrom .inner import call as run\n")
    (package / "inner.py").write_text("from subprocess import call\nclass Deep: ...\n")
    (folder / "broken.py").write_text("class Net(:\n")
    monkeypatch.chdir(folder)
    return folder


def spec_of(name: str, *folders: Path | str, **changes: object) -> CellSpec:
    return small_spec(**({"model": name, "model_path": tuple(map(str, folders))} | changes))


def is_here(name: str, *folders: Path | str) -> bool:
    (found,) = imports_of([spec_of(name, *folders)])
    return found.here


OWN = (
    "mine:Net mine:Net.Inner mine:made mine:alias mine:wide mine:below mine:Made package:Deep package.inner:Deep "
    "broken:Net missing:Net"
)
FOREIGN = (
    "mine:os.system mine:shell mine:path.join mine:foreign mine:cleared mine:partial mine:Net.missing mine:missing "
    "package:run package.inner:call"
)


@pytest.mark.parametrize("name", [*OWN.split(), *FOREIGN.split()])
def test_what_the_current_folder_defines_is_its_own_and_not_what_it_takes_from_elsewhere(here: Path, name: str) -> None:
    assert is_here(name, here) == (name in OWN.split())


@pytest.mark.parametrize("name", ["os:system", "torch.hub:load", "textual.app:App", "builtins:exec", "json:loads"])
def test_what_is_installed_is_not_even_where_the_folder_has_a_module_of_that_name(here: Path, name: str) -> None:
    for top in ("os", "torch", "textual", "builtins", "json"):
        (here / f"{top}.py").write_text(f"def {name.partition(':')[2]}(): ...\n")
    assert not is_here(name, here)


def test_a_folder_below_is_here_and_one_beside_is_not_nor_what_is_installed_below(here: Path) -> None:
    below, beside, site = here / "src", here.parent / "other", here / ".venv" / "lib" / "site-packages"
    for folder in (below, beside, site):
        folder.mkdir(parents=True)
        (folder / "theirs.py").write_text("class Net: ...\n")
    assert not is_here("theirs:Net", site)
    assert is_here("theirs:Net", below)
    assert not is_here("theirs:Net", beside)
    assert not is_here("theirs:Net", below, beside)


def test_links_are_where_they_lead_and_a_relative_folder_is_not_one_that_a_log_of_ours_has(here: Path) -> None:
    assert not any(is_here("mine:Net", *folders) for folders in ([], ["."], ["../here"]))
    beside = here.parent / "other"
    (beside / "pack").mkdir(parents=True)
    (beside / "pack" / "__init__.py").write_text("class Net: ...\n")
    (beside / "theirs.py").write_text("class Net: ...\n")
    (here / "linked").symlink_to(beside)
    (here / "theirs.py").symlink_to(beside / "theirs.py")
    (here / "pack").symlink_to(beside / "pack")
    assert not is_here("theirs:Net", here / "linked")
    assert not is_here("theirs:Net", here)
    assert not is_here("pack:Net", here)


@pytest.mark.usefixtures("here")
def test_every_choice_that_names_code_counts() -> None:
    foreign = [
        spec_of("reference", "/elsewhere", **{field: name})
        for field, name in {
            "model": "evil:Net",
            "attention": "evil:attn",
            "norm": "evil:norm",
            "loss": "evil:loss",
            "annotations": (("softmax", "evil:softmax"),),
        }.items()
    ]
    foreign.append(spec_of("reference", "/elsewhere", optimizer="evil:AdamW", pass_="train-step"))
    foreign.append(spec_of("reference", "/elsewhere", parallel="evil:get_ddp:25MB", ranks=2, pass_="train-step"))
    for spec in foreign:
        with pytest.raises(Untrusted, match="session s would import evil:"):
            check_log("s", [spec], trusted=False)
        assert [each.name.partition(":")[0] for each in check_log("s", [spec], trusted=True)] == ["evil"]
        assert Trust().refusal(spec)
    assert not check_log("s", [small_spec()], trusted=False)


def test_no_process_is_started_for_code_that_nobody_named(here: Path, tmp_path: Path) -> None:
    launcher, spec = Launcher(tmp_path / "scratch"), spec_of("mine:Net", here)
    with pytest.raises(StartError, match="mine:Net is named by a log alone, so it is not imported"):
        launcher.start_cell(0, spec)
    launcher.trust.name(spec)
    assert not launcher.trust.refusal(spec)
    assert launcher.trust.refusal(spec_of("mine:Net", here, here.parent))
    assert launcher.trust.refusal(spec_of("mine:made", here))


@pytest.mark.usefixtures("here")
def test_a_log_is_refused_before_torch_is_imported_to_ask_for_devices(tmp_path: Path) -> None:
    write_log(tmp_path / "s.jsonl", session_start([spec_of("evil:Net", "/elsewhere")]))
    with closing(Bench(lambda _: None, session_dir=tmp_path, session="s")) as bench:
        bench.probe = lambda: pytest.fail("it asked")  # type: ignore[method-assign]
        with pytest.raises(Untrusted, match="evil:Net from /elsewhere"):
            bench.resume()


def test_of_a_log_the_current_folder_s_own_code_is_allowed_or_all_that_is_trusted(here: Path) -> None:
    own, foreign = spec_of("mine:Net", here), spec_of("mine:os.system", here)
    trust = Trust()
    trust.name_log([own, foreign], trusted=False)
    assert not trust.refusal(own)
    assert trust.refusal(foreign)
    trust.name_log([own, foreign], trusted=True)
    assert not trust.refusal(foreign)


@pytest.mark.usefixtures("here")
def test_the_line_says_what_and_from_where_and_what_to_do() -> None:
    specs = [spec_of(f"evil{number}:Net", "/else\nwhere") for number in range(5)]
    with pytest.raises(Untrusted) as refused:
        check_log("s", specs, trusted=False)
    assert str(refused.value) == (
        "session s would import evil0:Net from /else where, evil1:Net from /else where, evil2:Net from /else where and "
        "2 more, which is not the current folder's own code; if you trust it, say --trust"
    )
    assert refused.value.exit_code == 2


# Code that is looked for, without importing it


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "own" / "deep").mkdir(parents=True)
    for name in ("__init__", "model", "deep/__init__", "deep/layer"):
        (tmp_path / "own" / f"{name}.py").write_text("class Net: ...\nclass Norm: ...\nraise SystemExit('imported')\n")
    return str(tmp_path)


def test_code_that_is_there_lacks_nothing(folder: str) -> None:
    names = ("own.model:Net", "own.deep.layer:Norm.fast", "own:Net", "msgspec.json:encode")
    assert list(lacking_code(names, [folder])) == []
    assert "own" not in sys.modules


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("own.other:Net", "no module own.other in {0}/own"),
        (
            "other.model:Net",
            "no module other, looked in {0} and among what is installed; add its folder with --model-path",
        ),
        ("own.model.more:Net", "no module own.model.more in own.model, which is no package"),
        ("own.model:net", "own.model has no net ({0}/own/model.py); did you mean Net?"),
    ],
)
def test_a_module_or_a_name_that_is_not_there_is_named(folder: str, name: str, line: str) -> None:
    assert list(lacking_code([name, "own.model:Net"], [folder])) == [line.format(folder)]


def test_a_folder_that_is_not_there_is_named(folder: str) -> None:
    assert list(lacking_code(["own.model:Net"], [folder, "/nowhere"])) == ["the folder /nowhere is not there"]


def test_the_files_of_a_module_are_its_own_and_those_that_it_imports_from_beside_it(here: Path) -> None:
    (here / "package" / "gone.py").symlink_to("nowhere")
    assert {*files_of([spec_of("mine:Net", here)])} == {"mine.py", "helpers.py"}
    assert {*files_of([spec_of("package:Deep", here)])} == {"package/__init__.py", "package/inner.py"}
    assert {*files_of([spec_of("broken:Net", here)])} == {"broken.py"}
