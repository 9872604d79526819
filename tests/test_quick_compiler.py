"""The compiler of the tests compiles what each version of torch gives it."""

import subprocess
from pathlib import Path

import pytest

from tests import quick_compiler
from tests.quick_compiler import HEADER


@pytest.mark.parametrize("before", ["", "#include <vector>\n"])
@pytest.mark.parametrize("torch_precompiles", [False, True])
def test_torchs_header_is_defined_once(
    torch_precompiles: bool, before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch up to 2.11 precompiles its header itself, by a file that includes it, whatever the environment says."""
    monkeypatch.setenv("CXX", "g++")
    compiler = quick_compiler.make(tmp_path)
    if compiler is None:
        pytest.skip("needs GCC")
    header, source, own = tmp_path / "include" / HEADER, tmp_path / "source.cpp", tmp_path / "own.h"
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\nstruct Once { int value; };\n")
    own.write_text(f"#include <{HEADER}>\n")
    source.write_text(f'{before}#include <{HEADER}>\nextern "C" int value(Once once) {{ return once.value; }}\n')
    flags = ["-fPIC", *(["-include", str(own)] if torch_precompiles else []), f"-I{tmp_path / 'include'}"]
    words = [compiler, str(source), "-shared", *flags, "-o", str(tmp_path / "made.so")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "headers" / "first.h.gch").iterdir()), "the header was not compiled beforehand"
