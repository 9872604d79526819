"""Export files: written whole or not at all, and never over another file unasked."""

import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from cs336_tui.export.writing.files import AlreadyThere, ExportError, LivingFile, check_writable, write_atomically
from tests.loading import python


def refusal(error: pytest.ExceptionInfo[ExportError], path: Path) -> str:
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert "; " in message, "a remedy follows the reason"
    return message


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_as_utf8_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_atomically(tmp_path / "results.md", "153.20 ± 0.41\n▇▂▁│▁\n")
    assert (tmp_path / "results.md").read_text("utf-8") == "153.20 ± 0.41\n▇▂▁│▁\n"
    assert names(tmp_path) == ["results.md"]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_atomically(tmp_path / "results.md", "x")
    assert stat.S_IMODE((tmp_path / "results.md").stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    path.write_text("mine")
    for attempt in (lambda: write_atomically(path, "new"), lambda: check_writable(path)):
        with pytest.raises(AlreadyThere) as error:
            attempt()
        assert "already exists" in refusal(error, path)
    assert path.read_text() == "mine"
    assert names(tmp_path) == ["results.md"]


def test_an_existing_file_is_replaced_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    path.write_text("old")
    check_writable(path, overwrite=True)
    write_atomically(path, "new", overwrite=True)
    assert path.read_text() == "new"


def test_of_many_writers_at_once_one_wins_and_its_text_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    ready = threading.Barrier(8)
    won: list[str] = []
    refused: list[ExportError] = []

    def write(text: str) -> None:
        ready.wait()
        try:
            write_atomically(path, text)
            won.append(text)
        except AlreadyThere as error:
            refused.append(error)

    threads = [threading.Thread(target=write, args=(str(number) * 10_000,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(refused)) == (1, 7)
    assert path.read_text() == won[0]
    assert names(tmp_path) == ["results.md"]


def test_a_reader_never_sees_half_a_rewrite(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    texts = {"a" * 500_000, "b" * 500_000}
    write_atomically(path, min(texts))
    done = threading.Event()

    def rewrite() -> None:
        for text in sorted(texts) * 10:
            write_atomically(path, text, overwrite=True)
        done.set()

    thread = threading.Thread(target=rewrite)
    thread.start()
    while not done.is_set():
        assert path.read_text() in texts
    thread.join()


REFUSED: dict[str, tuple[str, Callable[[Path], object], bool, str]] = {
    "no directory": ("missing/results.md", Path.exists, False, "does not exist; create it"),
    "a file in place of one": ("file/results.md", lambda at: (at / "file").touch(), False, "file is not a directory"),
    "a directory": (".", Path.exists, False, "is a directory; name a file in it"),
    "a directory to overwrite": (".", Path.exists, True, "is a directory; name a file in it"),
    "no file": ("pipe", lambda at: os.mkfifo(at / "pipe"), True, "not a regular file"),
    "too long a name": ("x" * 300, Path.exists, False, "choose another path"),
    "a directory that is not writable": ("results.md", lambda at: at.chmod(0o500), False, "not writable"),
    "a file that is not writable": ("results.md", lambda at: (at / "results.md").touch(0o400), True, "not writable"),
}


@pytest.mark.parametrize("write", [True, False], ids=["write", "check"])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(tmp_path: Path, write: bool, case: str) -> None:
    name, prepare, overwrite, said = REFUSED[case]
    if said == "not writable" and os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    prepare(tmp_path)
    before, path = names(tmp_path), tmp_path / name
    with pytest.raises(ExportError) as error:
        (partial(write_atomically, path, "text") if write else partial(check_writable, path))(overwrite=overwrite)
    assert said in refusal(error, path)
    assert names(tmp_path) == before, "nothing is left behind"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.md").symlink_to(tmp_path / "real" / "results.md")
    write_atomically(tmp_path / "link.md", "one")
    write_atomically(tmp_path / "link.md", "two", overwrite=True)
    assert (tmp_path / "real" / "results.md").read_text() == "two"
    assert (tmp_path / "link.md").is_symlink()


FULL_DISK = """
import resource, sys
from pathlib import Path
from cs336_tui.export.writing.files import ExportError, write_atomically

resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for overwrite in (False, True):
    try:
        write_atomically(Path(sys.argv[1 + overwrite]), "x" * 5000, overwrite=overwrite)
    except ExportError as error:
        print(error)
"""


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("old")
    said = python(FULL_DISK, str(tmp_path / "new.md"), str(tmp_path / "old.md")).stdout
    assert [line.partition(": ")[2] for line in said.splitlines()] == [
        "file too large; free some space or choose another path"
    ] * 2
    assert names(tmp_path) == ["old.md"]
    assert (tmp_path / "old.md").read_text() == "old"


def test_a_living_file_is_rewritten_again_and_again_but_refuses_an_existing_one_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    living = LivingFile(path)
    assert names(tmp_path) == []
    for number in range(3):
        living.write(f"{number} cells")
        assert path.read_text() == f"{number} cells"
    with pytest.raises(AlreadyThere):
        LivingFile(path)
    LivingFile(path, overwrite=True).write("new")
    assert path.read_text() == "new"


def test_a_living_file_refuses_one_that_appeared_before_its_first_write(tmp_path: Path) -> None:
    living = LivingFile(tmp_path / "summary.md")
    (tmp_path / "summary.md").write_text("somebody else's")
    for _ in range(2):
        with pytest.raises(AlreadyThere):
            living.write("ours")
    assert (tmp_path / "summary.md").read_text() == "somebody else's"
