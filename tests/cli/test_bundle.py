"""`cs336-tui bundle` and `verify` as people and scripts call them."""

import csv
import getpass
import platform
import re
import zipfile
from pathlib import Path

import msgspec
import pytest

from cs336_tui.events import events as ev
from cs336_tui.export.bundle import packed, unpacked
from cs336_tui.session.log import LogReader
from tests.commands import DIMS, call, call_bench
from tests.samples import DEMO_LOG, mixed_session, write_log

MINE = """
import getpass, platform
from torch import nn
from parts import halves

class LM(nn.Module):
    def __init__(self, vocab_size, d_model, **_):
        super().__init__()
        print("token", "SESSION_TOKEN=made-up-secret-value", __file__, getpass.getuser(), "on", platform.node())
        self.body = nn.Sequential(nn.Embedding(vocab_size, d_model), nn.Linear(halves(d_model), vocab_size))

    def forward(self, tokens):
        return self.body(tokens)
"""
SECRETS = {"MY_API_KEY": "qwertz-123456", "SESSION_TOKEN": "made-up-secret-value"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user's repository, with a session of its model."""
    folder = tmp_path_factory.mktemp("repository-of-somebody")
    (folder / "mine.py").write_text(MINE)
    (folder / "diary.py").write_text("")
    (folder / "parts.py").write_text("def halves(width):\n    return width\n")
    words = [*DIMS, *"--context 8 --batch 1 --warmup 2 --steps 12 --device cpu --threads 1 --pass forward".split()]
    done = call_bench(*words, "--model", "mine:LM", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = call("bundle", "last", "--session-dir", "sessions", "-o", "run.zip", cwd=folder, environment=SECRETS)
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_private_is_in_the_members(home: Path) -> None:
    with zipfile.ZipFile(home / "run.zip") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    names = [getpass.getuser(), platform.node(), str(Path.home()), str(home), home.name, *SECRETS.values()]
    for private in names:
        is_short = len(private) < 4  # which is part of other words
        pattern = rb"(?<![A-Za-z0-9])%s(?![A-Za-z0-9])" if is_short else b"%s"
        for name, content in members.items():
            assert not re.search(pattern % re.escape(private.encode()), content), (private, name)
    assert b"SESSION_TOKEN=REDACTED PATH/mine.py user on host" in members["session.jsonl"]
    assert b'"mine.py": ' in members["code.json"]
    assert b'"parts.py": ' in members["code.json"]
    assert b"diary" not in members["code.json"]
    assert b"cs336-tui bench" in members["commands.txt"]


def test_a_bundle_is_verified_elsewhere_and_by_its_hash(home: Path, tmp_path: Path) -> None:
    made = call("bundle", "last", "--session-dir", str(home / "sessions"), "-o", "again.zip", cwd=tmp_path)
    done = call("verify", str(home / "run.zip"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "as they come of 12 measured steps" in done.stdout
    assert len(made.stdout.split()[0]) == 64
    assert call("verify", "again.zip", cwd=tmp_path).stdout.split()[0] == made.stdout.split()[0]


def test_a_bundle_is_run_again(home: Path) -> None:
    done = call("verify", "run.zip", "--rerun", "--session-dir", "sessions", "--format", "csv", cwd=home)
    (row,) = csv.DictReader(done.stdout.splitlines())
    answer = row["answer"]
    assert done.returncode == (0 if answer == "yes" else 1)
    assert answer in ("yes", "no")
    assert len(list((home / "sessions").glob("*.jsonl"))) == 2
    assert "imports mine:LM from" in done.stderr
    assert "is not as it was" not in done.stderr


def test_code_that_changed_is_named_and_foreign_code_is_not_run(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')\n")
    refused = call("verify", str(home / "run.zip"), "--rerun", "--session-dir", str(tmp_path), cwd=tmp_path)
    assert refused.returncode == 2
    assert "say --trust" in refused.stderr


def test_what_differs_is_1_and_what_is_no_bundle_2(home: Path, tmp_path: Path) -> None:
    members, _ = unpacked((home / "run.zip").read_bytes())
    members["tables/results.md"] = members["tables/results.md"].replace(b"forward", b"backward")
    (tmp_path / "forged.zip").write_bytes(packed(members))
    done = call("verify", "forged.zip", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "differs: tables/results.md: its SHA-256 is another one",
        *(line for line in done.stdout.splitlines() if "tables/results.md: line" in line),
    ]
    (tmp_path / "text.zip").write_text("no zip")
    for file in ("text.zip", "absent.zip"):
        done = call("verify", file, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert file in done.stderr


def test_a_bundle_is_written_over_unless_that_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.jsonl", LogReader(DEMO_LOG))
    assert call("bundle", str(log), cwd=tmp_path).returncode == 0
    assert call("bundle", str(log), "--no-clobber", cwd=tmp_path).returncode == 2
    assert call("bundle", str(log), cwd=tmp_path).returncode == 0


def test_cells_in_turns_cannot_be_measured_again(tmp_path: Path) -> None:
    events = mixed_session()
    turns = [
        msgspec.structs.replace(each, in_turns=True) if isinstance(each, ev.CellsQueued) else each for each in events
    ]
    write_log(tmp_path / "ab.jsonl", turns)
    assert call("bundle", "ab.jsonl", cwd=tmp_path).returncode == 0
    assert call("verify", "ab.zip", cwd=tmp_path).returncode == 0
    done = call("verify", "ab.zip", "--rerun", "--session-dir", "again", cwd=tmp_path)
    assert done.returncode == 1
    assert "no cell can be measured again: all were in turns" in done.stderr
    assert not (tmp_path / "again").exists()
