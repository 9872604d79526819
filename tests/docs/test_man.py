"""Man pages: one for each command, with all its options, and nothing that their readers warn of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tools import man, reference

PAGES = man.pages()


def test_each_command_has_a_page_with_its_options() -> None:
    for title, command in reference.commands().items():
        page = PAGES[f"{title.replace(' ', '-')}.1"]
        said = re.sub(r"\\f[BIR]", "", page).replace(r"\-", "-")
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert all(name in said for name in option.opts), f"{title}: {option.opts}"
    whole = PAGES["cs336-tui.1"]
    assert all(rf".BR {name.removesuffix('.1')} (1)".replace("-", r"\-") in whole for name in PAGES if "tui-" in name)


def test_text_is_no_request_and_no_escape() -> None:
    assert man._text(".so it's \\ a - b ±") == r"\&.so it\(aqs \e a \- b \[u00B1]"


@pytest.mark.parametrize("reader", ["groff -man -Tutf8 -ww -z", "mandoc -Tlint -Wwarning"])
def test_readers_of_man_pages_warn_of_nothing(reader: str, tmp_path: Path) -> None:
    program, *words = reader.split()
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}: apt-get install {program}")
    man.write(tmp_path)
    files = sorted(map(str, (tmp_path / man.FOLDER).iterdir()))
    assert len(files) == len(PAGES)
    done = subprocess.run([program, *words, *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_page_reads_as_help_does() -> None:
    if shutil.which("groff") is None:
        pytest.skip("needs groff: apt-get install groff")
    page = PAGES["cs336-tui-bench.1"]
    shown = subprocess.run(["groff", "-man", "-Tascii", "-P-c"], input=page, capture_output=True, text=True, check=True)
    plain = " ".join(re.sub(r".\x08", "", shown.stdout).split())
    assert "OPTIONS What to run --preset NAME Start from this preset; other options change it." in plain
