"""Documentation: links lead somewhere; commands, options and files exist. Man pages: one for each command, with all its
options, and nothing that their readers warn of."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import get_args

import click
import pytest
from markdown_it import MarkdownIt

from cs336_tui.analysis.judgement import VerdictName
from cs336_tui.export.record import document_of, to_csv
from cs336_tui.export.subjects.results_columns import COLUMNS
from cs336_tui.session.state import SessionState
from tools import man, reference

ROOT = Path(__file__).parents[2]
WRITTEN = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "themes" / "README.md")
    if not path.name.startswith(("gpu-report", "cs336-tui-summary"))
}
COMMANDS = reference.commands()
OTHERS_OPTIONS = {"--help", "--help-all", "--target", "--torch-backend", "--gpus"} | {
    option for path in (ROOT / "benchmarks").glob("*.py") for option in re.findall(r'"(--[a-z-]+)', path.read_text())
}
"""Options of every command, of pip, uv and docker, and of the benchmark scripts."""


@cache
def pages() -> Mapping[str, str]:
    """Every page by its path from the root, those that are made from the code among them."""
    return WRITTEN | {f"docs/reference/{name}": text for name, text in reference.pages().items()}


def tokens(text: str, kind: str) -> Iterator[tuple[str, str]]:
    """The content and the info of each token of a kind, inline ones too."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        for each in (token, *(token.children or ())):
            if each.type == kind:
                yield each.content, str(each.attrs.get("href", each.attrs.get("src", each.info)))


def slug(heading: str) -> str:
    """The anchor of a heading, as the site and GitHub make it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "").lower()).strip())


def anchors(text: str) -> set[str]:
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", without_code, flags=re.MULTILINE)}


def shell_lines(text: str) -> Iterator[str]:
    """The commands of the blocks of shell, one a line."""
    for content, info in tokens(text, "fence"):
        if info == "sh":
            joined = content.replace("\\\n", " ")
            yield from (part.strip() for line in joined.splitlines() for part in line.split("&&"))


@pytest.mark.parametrize("page", sorted(WRITTEN))
def test_links_and_anchors_resolve(page: str) -> None:
    text = WRITTEN[page]
    for kind in ("link_open", "image"):
        for _, target in tokens(text, kind):
            if target.startswith(("http", "mailto:")):
                continue
            path, _, anchor = target.partition("#")
            found = ((ROOT / page).parent / path).resolve().relative_to(ROOT).as_posix() if path else page
            assert found in pages() or (ROOT / found).exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(pages()[found]), f"{page}: {target}"


def test_every_page_is_in_the_navigation_and_the_site_fails_on_a_dead_link() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    listed = re.findall(r"[\w/-]+\.md", str(project["nav"]))
    assert sorted(listed) == sorted(page.removeprefix("docs/") for page in pages() if page.startswith("docs/"))
    assert project["strict"]
    assert project["validation"] == {"invalid_links": True, "invalid_link_anchors": True}
    assert project["theme"]["font"] is False


def check_command(line: str) -> None:
    """A command line of ours names a command, options that it has and values that they allow."""
    words = shlex.split(line, comments=True)
    if "cs336-tui" not in words:
        return
    words = words[words.index("cs336-tui") + 1 :]
    name = "cs336-tui"
    while words and f"{name} {words[0]}" in COMMANDS:
        name += f" {words.pop(0)}"
    options = {
        each: option
        for option in COMMANDS[name].params
        if isinstance(option, click.Option)
        for each in (*option.opts, *option.secondary_opts)
    }
    for word, value in zip_longest(words, words[1:], fillvalue=""):
        if (
            word.startswith("-")
            and word not in ("--help", "--help-all")
            and not word.lstrip("-").isdigit()
            and " " not in word
        ):
            assert word in options, f"{line}: {word}"
            if isinstance(kind := options[word].type, click.Choice):
                assert value in kind.choices, f"{line}: {word} {value}"
            if word in ("--a", "--b"):
                check_command(f"cs336-tui ab {value}")


@pytest.mark.parametrize("page", sorted(WRITTEN))
def test_commands_options_and_values_exist(page: str) -> None:
    text = WRITTEN[page]
    spoken = [content for content, _ in tokens(text, "code_inline")]
    for line in (*shell_lines(text), *(each for each in spoken if each.startswith("cs336-tui "))):
        check_command(line)
    known = set(OTHERS_OPTIONS)
    for command in COMMANDS.values():
        for option in command.params:
            known.update((*option.opts, *option.secondary_opts))
    for said in spoken:
        if said.startswith("--"):
            assert said.split()[0].partition("=")[0] in known, f"{page}: {said}"


@pytest.mark.parametrize("page", sorted(WRITTEN))
def test_files_modules_and_targets_exist(page: str) -> None:
    text = WRITTEN[page]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    said = [*shell_lines(text), *(content for content, _ in tokens(text, "code_inline"))]
    for line in said:
        words = line.split("#")[0].split()
        if words[:1] == ["make"]:
            assert targets.issuperset(word for word in words[1:] if "=" not in word and '"' not in word), line
        for module in re.findall(r"python -m ((?:benchmarks|tools)\.\w+)", line):
            assert importlib.util.find_spec(module), f"{page}: {line}"
        for path in re.findall(r"(?<![\w./-])(?:[\w.-]+/)+[\w.-]*\.(?:py|md|toml|csv|svg)\b", line):
            if page.startswith("docs/") or page == "CONTRIBUTING.md":
                folders = (ROOT, ROOT / "cs336_tui", ROOT / "docs")
                assert any((folder / path).exists() for folder in folders), f"{page}: {path}"
        if words[:1] == ["pytest"]:
            assert all((ROOT / word).exists() for word in words[1:] if not word.startswith("-")), f"{page}: {line}"


def test_the_reference_has_every_option_key_and_verdict() -> None:
    made = reference.pages()
    for command in COMMANDS.values():
        for option in command.params:
            if isinstance(option, click.Option):
                assert f"`{option.opts[-1]}" in made["options.md"] or f", {option.opts[-1]}" in made["options.md"]
    for key in (*to_csv(document_of(SessionState())).strip().split(","), *COLUMNS):
        assert f"`{key}`" in made["keys.md"]
    for verdict in get_args(VerdictName):
        assert f"| `{verdict}` |" in made["verdicts.md"]
        assert f"| `{verdict}` |" in WRITTEN["docs/measurement.md"]


def test_commits_are_checked_as_make_lint_checks() -> None:
    rule = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    linted = [line.strip().replace("$(BIN)", ".venv/bin") for line in rule.splitlines()[1:]]
    hooks = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks == linted


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
