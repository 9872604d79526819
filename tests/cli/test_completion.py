"""Shell completion: values of options, and what real shells make of the scripts."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cs336_tui.cli.completion import _CLASSES, PLACES, VARIABLE, script
from cs336_tui.cli.main import COMMANDS, cli
from cs336_tui.config.spec import size_names
from cs336_tui.config.values import PASSES
from cs336_tui.events.gpus import known_gpus
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.export.writeups import LAYOUTS
from cs336_tui.session import store
from tests.commands import COMMAND, call
from tests.loading import python
from tests.samples import DEMO_LOG
from tests.terminal import Terminal

OLD, NEW = "2026-01-02T03-04-05-0000001", "2026-02-03T04-05-06-0000002"


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in (OLD, NEW):
        shutil.copy(DEMO_LOG, folder / f"{name}.jsonl")
    store.annotate(folder / f"{OLD}.jsonl", name="first")
    store.annotate(folder / f"{OLD}.jsonl", name="before fusing")
    return folder


def values(*words: str, shell: str = "zsh") -> Sequence[str]:
    """The completions of the last word."""
    asked = _CLASSES[shell](cli, {}, "cs336-tui", VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [item.value for item in asked]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("", [name for name, each in COMMANDS.items() if each.about]),
        ("su", ["summary"]),
        ("--the", ["--theme"]),
        ("presets sh", ["show"]),
        ("bench --size ", list(dict.fromkeys(size_names("2026")) | dict.fromkeys(size_names("2024")))),
        ("bench --edition 2024 --size ", list(size_names("2024"))),
        ("bench --pass ", list(PASSES)),
        ("bench --edition 202", ["2024", "2025", "2026"]),
        ("bench --compile max", ["max-autotune"]),
        ("bench --format ", ["markdown", "latex", "typst", "csv", "json", "html", "table"]),
        ("bench --size small,m", ["small,medium"]),
        ("bench --size=sm", ["--size=small"]),
        ("bench --seed sm", []),
        ("presets show qu", ["quick"]),
        ("estimate --gpu ", [gpu.name for gpu in known_gpus()]),
        ("export last --columns ", list(COLUMNS)),
        ("export last --layout ", list(LAYOUTS)),
        ("export last --problem flash_b", ["flash_benchmarking"]),
        ("export last --pivot size:pas", ["size:pass"]),
        ("export last --where precis", ["precision="]),
        ("export last --where precision=bf", ["precision=bf16-mixed", "precision=bf16"]),
        ("tune --over att", ["attention", "attention-arg", "attention-dropout"]),
        ("tune --over attention,check", ["attention,checkpoint"]),
        ("tune --over attention=na", ["attention=naive"]),
        ("tune --over attention=naive,s", ["attention=naive,sdpa"]),
        ("tune --over ranks=", []),
        ("tune --goal tokens/", ["tokens/s", "tokens/J"]),
        ("config set ref", ["refresh"]),
        ("config set columns size,pas", ["size,pass"]),
        ("config set low_bandwidth ", ["true", "false"]),
        ("config set refresh ", []),
    ],
)
def test_the_last_word_is_completed(typed: str, completed: list[str]) -> None:
    assert values(*typed.split(" ")) == completed


def test_of_many_values_some_are_there_and_none_comes_twice() -> None:
    assert values("bench", "--device", "c")[:2] == ["cpu", "cuda"]
    assert "forward,forward" not in values("bench", "--pass", "forward,f")
    assert "2026/warmup" in values("bench", "--preset", "2026/")
    assert "cs336-light" in values("--theme", "")
    assert "cs336-light" in values("config", "set", "theme", "cs")
    assert "2026/warmup" in values("config", "set", "preset", "2026/w")
    assert "latex" in values("config", "set", "export_format", "")


def test_sessions_by_time_and_by_name(sessions: Path) -> None:
    folder = ("--session-dir", str(sessions))
    assert values("show", *folder, "") == ["last", NEW, OLD]
    assert values("show", *folder, "2026-01") == [OLD]
    assert values("show", *folder, "before") == ["before fusing"]
    assert values("export", *folder, NEW, "2026") == [OLD]
    assert values("compare", *folder, NEW, "2026-0") == [NEW, OLD]
    assert values("show", *folder, "fi") == []


def test_a_session_is_found_by_its_name(sessions: Path) -> None:
    assert store.find("before fusing", sessions).stem == OLD
    assert store.name_of(sessions / f"{OLD}.jsonl") == "before fusing"
    assert store.name_of(sessions / f"{NEW}.jsonl") == ""
    store.annotate(sessions / f"{NEW}.jsonl", name="before fusing")
    with pytest.raises(store.LogError, match="fits 2"):
        store.find("before fusing", sessions)


@pytest.mark.parametrize(
    ("line", "word", "answer"),
    [
        ("bench --size sm", "sm", "plain,small"),
        ("bench --size=sm", "sm", "plain,small"),
        ("bench --size=", "=", "plain,tiny"),
        ("export a --where precision=tf", "tf", "plain,tf32"),
        ("export a --pivot size:pas", "pas", "plain,pass"),
        ("estimate --gpu H200\\ N", "H200\\ N", "plain,H200\\ NVL\\ 141GB"),
        ("estimate --gpu 'H200 N", "'H200 N", "plain,H200 NVL 141GB"),
        ("bench -o ", "", "file,"),
    ],
)
def test_bash_gets_the_part_that_it_replaces(
    line: str, word: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"cs336-tui {line}")
    monkeypatch.setenv("COMP_CWORD", word)
    assert _CLASSES["bash"](cli, {}, "cs336-tui", VARIABLE).complete().splitlines()[0] == answer


def test_what_cannot_be_completed_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", "cs336-tui show --session-dir /dev/null/none ")
    monkeypatch.setenv("COMP_CWORD", "")
    assert _CLASSES["bash"](cli, {}, "cs336-tui", VARIABLE).complete() == "plain,last"
    monkeypatch.delenv("COMP_WORDS")
    assert _CLASSES["bash"](cli, {}, "cs336-tui", VARIABLE).complete() == ""


def test_completion_loads_nothing_heavy() -> None:
    asked = ["bench --preset ", "export last --columns ", "estimate --gpu ", "show "]
    done = python(
        f"""
import os, sys
from cs336_tui.cli.main import main
os.environ.update(_CS336_TUI_COMPLETE="bash_complete", COMP_CWORD="")
for line in {json.dumps(asked)}:
    os.environ["COMP_WORDS"] = "cs336-tui " + line
    try:
        main([])
    except SystemExit as ended:
        assert not ended.code, ended.code
heavy = {{"torch", "textual", "numpy", "pynvml", "matplotlib", "rich.console", "cloup"}} & sys.modules.keys()
assert not heavy, heavy
"""
    )
    assert all(word in done.stdout for word in ("2026/warmup", "mean", "H100", "last"))


def test_the_script_says_where_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for shell, (place, _) in PLACES.items():
        done = call("completion", shell)
        assert done.returncode == 0
        assert done.stdout == script(shell)
        assert f"#   cs336-tui completion {shell} > {place}" in done.stdout.splitlines()[:4]
    assert script("zsh").startswith("#compdef cs336-tui\n")
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert call("completion").stdout == script("fish")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert call("completion").stderr == "cs336-tui: name a shell: bash, zsh, fish\n"


START = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}
SET_UP = {
    "bash": "bind 'set enable-bracketed-paste off'; PS1='> '; . ./script",
    "zsh": "unsetopt zle_bracketed_paste; PS1='> '; autoload -Uz compinit; compinit -u -D; . ./script",
    "fish": "function fish_prompt; echo '> '; end; source ./script",
}


@pytest.fixture(params=START)
def shell(request: pytest.FixtureRequest, tmp_path: Path, sessions: Path) -> Iterator[Terminal]:
    name = request.param
    if not (program := shutil.which(name)):
        pytest.skip(f"needs {name}: apt-get install {name}")
    (tmp_path / "script").write_text(script(name))
    environment = {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PATH": f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}",
        "HISTFILE": "",
    }
    (tmp_path / "data" / "cs336-tui").mkdir(parents=True)
    sessions.rename(tmp_path / "data" / "cs336-tui" / "sessions")
    terminal = Terminal([program, *START[name]], env=environment, cwd=tmp_path)
    try:
        terminal.send(f"{SET_UP[name]}; echo rea''dy\r")
        terminal.until("ready")
        yield terminal
    finally:
        terminal.close()


def test_a_real_shell_completes_values(shell: Terminal) -> None:
    for typed, completed in (
        ("bench --size small,me\t", "bench --size small,medium"),
        ("estimate --gpu H200\\ N\t", "--gpu H200\\ NVL\\ 141GB"),
        ("export --pivot=size:pas\t", "--pivot=size:pass"),
        ("show bef\t", "show before\\ fusing"),
    ):
        shell.send(f"cs336-tui {typed}")
        shell.until(completed)
        shell.send("\x15")  # the line anew
    shell.send("cs336-tui bench --precision fp\t\t")
    shell.until(lambda text: "fp16-mixed" in text and "fp8-mixed" in text)
