"""The sdist and the wheel: built, and installed as people do, in a home of its own and without the network.

Stand-ins take the place of the dependencies (`tools.dist`): torch is not downloaded.
"""

import shutil
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cs336_tui import __version__
from cs336_tui.config.presets import bundled
from tests.terminal import Terminal
from tools import dist, man

DATA = (
    {
        path.relative_to(dist.ROOT / "cs336_tui").as_posix()
        for path in (dist.ROOT / "cs336_tui").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    | {path.relative_to(dist.ROOT).as_posix() for path in (dist.ROOT / "themes").iterdir()}
    | {"data/demo-session.jsonl"}
)
MADE = ("dist", "build", "site", "share", "reference", "__pycache__", "__snapshots__", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left here; twine has checked it."""
    folder = tmp_path_factory.mktemp("built")
    kept = shutil.ignore_patterns(*MADE)

    def left_out(place: str, names: list[str]) -> set[str]:
        hidden = {name for name in names if name.startswith(".") and name != ".gitignore"}
        return hidden | set(kept(place, names))

    shutil.copytree(dist.ROOT, folder / "source", ignore=left_out)
    return dist.build(folder / "source", folder / "dist")


def test_the_sdist_has_what_the_wheel_is_built_from(wheel: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "LICENSE", "README.md", "themes/cs336-dark.toml"} <= names
    assert {f"{man.FOLDER}/{name}" for name in man.pages()} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_asks_for_what_the_project_depends_on(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        (name,) = [each for each in found.namelist() if each.endswith(".dist-info/METADATA")]
        told = message_from_string(found.read(name).decode())
    asked = [canonicalize_name(Requirement(each).name) for each in told.get_all("Requires-Dist", []) if ";" not in each]
    assert sorted(asked) == sorted(map(canonicalize_name, dist.dependencies()))
    assert told["Version"] == __version__


@pytest.mark.parametrize("name", dist.INSTALLERS)
def test_it_installs_and_runs_in_a_home_of_its_own(name: str, wheel: Path, tmp_path: Path) -> None:
    stand_ins, home = dist.make_stand_ins(tmp_path / "wheels"), tmp_path / "home"
    command = dist.INSTALLERS[name](wheel, stand_ins, home)
    assert dist.run([str(command), "--version"], home) == f"cs336-tui {__version__}\n"
    listed = dist.run([str(command), "presets", "--all"], home)
    assert all(f"\n{preset.name} " in listed for preset in bundled())
    assert dist.data_files(command) >= DATA | {f"{man.FOLDER}/{page}" for page in man.pages()}
    terminal = Terminal([str(command), "--theme", "high-contrast"], env={"HOME": str(home)}, cwd=home)
    try:
        terminal.until("Configure")
        terminal.send("q")
        terminal.wait()
    finally:
        terminal.close()
    assert str(Path(__file__).parents[1]) not in dist.run([str(command), "completion", "bash"], home)
