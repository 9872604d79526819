"""Builds sdist and wheel, and tries them as people install them: ``make dist``.

The wheel is installed by ``uv tool install`` and by ``pipx install`` into a home of its own, without the network.
In the place of each dependency, torch among them, stands a wheel of the same name and version as here that has no code
but leads to this environment's. So both resolve all that `pyproject.toml` asks for, and nothing large is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cs336_tui.cli.completion import script
from tools import man

ROOT = Path(__file__).parents[1]
_COMPLETIONS = {
    "bash": "bash-completion/completions/cs336-tui",
    "zsh": "zsh/site-functions/_cs336-tui",
    "fish": "fish/vendor_completions.d/cs336-tui.fish",
}
_KEPT = ("PATH", "LANG", "TMPDIR")


def main() -> None:
    for path in (ROOT / "dist").glob("cs336_tui-*"):
        path.unlink()
    wheel = build(ROOT, ROOT / "dist")
    with tempfile.TemporaryDirectory() as box:
        stand_ins = make_stand_ins(Path(box) / "wheels")
        for name, install in INSTALLERS.items():
            command = install(wheel, stand_ins, Path(box) / name)
            print(f"{name}: {run([str(command), '--version']).strip()}")
            listed = run([str(command), "presets"], Path(box) / name).count("\n2026/")
            print(f"{name}: {listed} presets of 2026, {len(data_files(command))} data files")
    print("for people: uv tool install dist/*.whl, pipx install dist/*.whl or pip install dist/*.whl")


def build(source: Path, target: Path) -> Path:
    """Builds an sdist of `source` and of that the wheel, which is returned; twine must have nothing to say."""
    man.write(source)
    for shell, name in _COMPLETIONS.items():
        path = source / "share" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script(shell), encoding="utf-8")
    python = [sys.executable, "-m"]
    run([*python, "build", "--no-isolation", "--outdir", str(target), str(source)], inherit=True)
    (wheel,) = target.glob("cs336_tui-*.whl")
    (sdist,) = target.glob("cs336_tui-*.tar.gz")
    print(run([*python, "twine", "--no-color", "check", "--strict", str(wheel), str(sdist)], inherit=True).strip())
    return wheel


def dependencies() -> Iterator[str]:
    """The names of what the package depends on."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for each in project["dependencies"]:
        found = re.match(r"[\w.-]+", each)
        assert found, each
        yield found[0]


def make_stand_ins(folder: Path) -> Path:
    """A wheel for each dependency, of the version that is here; the first leads to the packages of this environment."""
    folder.mkdir(parents=True)
    here = f"{sysconfig.get_path('purelib')}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    for number, name in enumerate(dependencies()):
        plain, release = re.sub(r"[-_.]+", "_", name).lower(), version(name).partition("+")[0]
        info = f"{plain}-{release}.dist-info"
        files = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tools.dist\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        } | ({"stand-ins.pth": here} if not number else {})
        record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        with zipfile.ZipFile(folder / f"{plain}-{release}-py3-none-any.whl", "w") as wheel:
            for path, text in (files | {f"{info}/RECORD": record}).items():
                wheel.writestr(path, text)
    return folder


def install_by_uv(wheel: Path, stand_ins: Path, home: Path) -> Path:
    """Runs ``uv tool install`` in a home of its own; returns the command that it made."""
    folders = {"UV_TOOL_DIR": home / "tools", "UV_TOOL_BIN_DIR": home / "bin", "UV_CACHE_DIR": home / "cache"}
    words = ["uv", "tool", "install", "--no-config", "--offline", "--no-index", "--find-links", str(stand_ins)]
    run([sys.executable, "-m", *words, "--python", _python(), str(wheel)], home, folders)
    return home / "bin" / "cs336-tui"


def install_by_pipx(wheel: Path, stand_ins: Path, home: Path) -> Path:
    """Runs ``pipx install`` in a home of its own, with uv for pip, which pipx else downloads."""
    folders = {
        "PIPX_HOME": home / "pipx",
        "PIPX_BIN_DIR": home / "bin",
        "PIPX_MAN_DIR": home / "man",
        "PIPX_COMPLETION_DIR": home / "completions",
        "UV_CACHE_DIR": home / "cache",
    }
    offline = f"--offline --no-index --find-links {stand_ins}"
    words = ["pipx", "install", "--backend", "uv", "--python", _python(), f"--pip-args={offline}", str(wheel)]
    run([sys.executable, "-m", *words], home, folders)
    return home / "bin" / "cs336-tui"


INSTALLERS = {"uv": install_by_uv, "pipx": install_by_pipx}


def data_files(command: Path) -> set[str]:
    """Files of the installed package that are no code, by their names in it, and those of its ``share/``."""
    place = command.resolve().parents[1]
    (package,) = place.glob("lib/python*/site-packages/cs336_tui")
    found = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    shared = {path.relative_to(place) for path in (place / "share").rglob("*") if path.is_file()}
    return {str(path) for path in found | shared if path.suffix not in (".py", ".pyc")}


def run(
    command: list[str], home: Path | None = None, folders: Mapping[str, Path] | None = None, *, inherit: bool = False
) -> str:
    """Output of a command, run in a home of its own, with nothing else of this environment unless it inherits that.
    Ends the program with all that the command said if it fails."""
    environment = {name: os.environ[name] for name in (os.environ if inherit else _KEPT) if name in os.environ}
    environment |= {name: str(folder) for name, folder in {"HOME": home, **(folders or {})}.items() if folder}
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _python() -> str:
    """The interpreter itself, not that of a virtual environment."""
    return str(getattr(sys, "_base_executable", sys.executable))


if __name__ == "__main__":
    main()
