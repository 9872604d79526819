"""The C++ compiler of all tests: without optimisation, and with torch's header, most of its work, compiled once a run.

A program: its arguments are a folder for the compiled header, the real compiler, and the words for that.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

HEADER = "torch/csrc/inductor/cpp_prefix.h"


def make(folder: Path) -> str | None:
    """A script in the folder that compiles so; None where there is no GCC."""
    real = shutil.which(os.environ.get("CXX", "g++"))
    if sys.platform != "linux" or real is None or not Path(real).name.startswith("g++"):
        return None
    script = folder / "quick-g++"
    words = [sys.executable, "-ISE", __file__, str(folder / "headers"), real]
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    return str(script)


def compile_header(folder: Path, real: str, words: list[str]) -> Path:
    """A file that includes the header, with the form of it that GCC takes for code compiled with these words, which
    name a source and an output."""
    left_out = {words.index("-o"), words.index("-o") + 1}
    flags = [
        word
        for place, word in enumerate(words)
        if place not in left_out and not word.endswith(".cpp") and not word.startswith(("-l", "-L", "-shared"))
    ]
    first = folder / "first.h"
    compiled = folder / "first.h.gch" / f"{zlib.crc32(shlex.join(flags).encode()):x}"
    compiled.parent.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not compiled.exists():
            first.write_text(f"#include <{HEADER}>\n")
            part = folder / f"{os.getpid()}"
            subprocess.run([real, "-x", "c++-header", str(first), *flags, "-O0", "-w", "-o", str(part)], check=True)
            part.rename(compiled)
    return first


def without_own_header(words: list[str]) -> list[str]:
    """The words without torch's own precompiled form of the header, which older versions make in any case."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    places = [place for place, (word, name) in enumerate(pairs) if word == "-include" and _only_includes(name)]
    return [word for place, word in enumerate(words) if place not in places and place - 1 not in places]


def _only_includes(name: str) -> bool:
    return Path(name).is_file() and Path(name).read_text().strip() == f"#include <{HEADER}>"


if __name__ == "__main__":
    folder, real, *words = sys.argv[1:]
    sources = [word for word in words if word.endswith(".cpp")]
    if sources and "-o" in words and f"#include <{HEADER}>" in Path(sources[0]).read_text():
        words = without_own_header(words)
        # GCC takes a compiled header only where it comes first; code that is profiled includes another one before.
        words[:0] = ["-include", str(compile_header(Path(folder), real, words))]
    os.execv(real, [real, *words, "-O0"])
