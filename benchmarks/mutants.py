"""Share of sampled mutants that the tests kill: ``python -m benchmarks.mutants --help`` names its two commands."""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import click

PACKAGE = Path("cs336_tui")
SEED, EACH = 336, 40
BY_ALL_TESTS = ("config", "stats", "analysis", "session", "runner")
BY_OWN_TESTS = ("export", "cli", "tui", "worker")
"""Groups whose mutants are tried only with the tests of the folder of the same name: pictures and whole runs go over
most of their lines."""
GROUPS = (*BY_ALL_TESTS, *BY_OWN_TESTS)
_COMPARISONS = "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Lt_GtE LtE_Gt Gt_LtE GtE_Lt Is_IsNot IsNot_Is"
_ARITHMETIC = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul"
OPERATORS = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in _COMPARISONS.split()),
    *(f"ReplaceBinaryOperator_{pair}" for pair in _ARITHMETIC.split()),
    *"ReplaceAndWithOr ReplaceOrWithAnd ReplaceTrueWithFalse ReplaceFalseWithTrue AddNot NumberReplacer".split(),
    *"ReplaceUnaryOperator_Delete_Not ReplaceUnaryOperator_Delete_USub".split(),
    *"ReplaceBreakWithContinue ReplaceContinueWithBreak ExceptionReplacer ZeroIterationForLoop".split(),
)
QUICK_S = 0.5
STAGES_S = (2.0, 15.0)
"""A mutant's tests run in processes of their own up to these sums of durations, then up to `--seconds`."""
STARTS_A_CHILD = "Launcher._start_once"
"""Lines that no test runs in its own process are tried with the tests that run this function."""
_WRITES = itertools.count(1)


@dataclass(frozen=True)
class Mutant:
    """One change of one line, named so that it is found again after files have moved. `nth` counts the operator's
    changes of lines like it in functions of this name."""

    group: str
    file: str
    function: str
    operator: str
    before: str
    after: str
    nth: int


@dataclass(frozen=True)
class Place:
    """A mutant in the tree at hand: cosmic-ray's number of the change, first and last line of the statement."""

    mutant: Mutant
    occurrence: int
    lines: tuple[int, int]

    @property
    def path(self) -> Path:
        return PACKAGE / self.mutant.file

    def mutated(self) -> str:
        """The module's source with the change."""
        operator = operators()[self.mutant.operator]()
        from cosmic_ray.mutating import mutate_code

        return str(mutate_code(self.path.read_text(), operator, self.occurrence))

    def described(self) -> Mutant:
        """The mutant with what its line becomes."""
        pairs = zip(self.path.read_text().splitlines(), self.mutated().splitlines(), strict=False)
        return replace(self.mutant, after=next(new.strip() for old, new in pairs if old != new))


def operators() -> Any:
    """cosmic-ray's operators by name. The project does not depend on it."""
    try:
        from cosmic_ray.operators.provider import OperatorProvider
    except ImportError:
        install = "pip install pytest-cov parso attrs stevedore && pip install --no-deps cosmic-ray"
        raise click.ClickException(f"cosmic-ray makes the mutants: {install}") from None
    return OperatorProvider()


def modules() -> list[str]:
    return sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def statements(tree: ast.AST, name: str = "", in_function: bool = False) -> Iterator[tuple[str, int, int]]:
    """Function, first and last line of each statement in a function; of a compound one, of its head."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from statements(node, f"{name}.{node.name}".lstrip("."), not isinstance(node, ast.ClassDef))
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
            body = getattr(node, "body", None)
            last = max(first, body[0].lineno - 1) if body else getattr(node, "end_lineno", first)
            if in_function:
                yield name, first, last
            yield from statements(node, name, in_function)


def places(file: str) -> Iterator[Place]:
    """Every mutant of a module, but those of module and class bodies, heads of functions and annotations."""
    provider = operators()
    from cosmic_ray.ast import ast_nodes, get_ast

    source = (PACKAGE / file).read_text()
    module, texts = ast.parse(source), source.splitlines()
    # Of the statements that a line is in, the last one counts: it is the innermost.
    inside = {line: (name, first, last) for name, first, last in statements(module) for line in range(first, last + 1)}
    annotated = {node.annotation.lineno for node in ast.walk(module) if isinstance(node, ast.AnnAssign)}
    nodes, seen = list(ast_nodes(get_ast(source))), Counter[tuple[str, str, str]]()
    for operator in OPERATORS:
        starts = [start for node in nodes for start, _ in provider[operator]().mutation_positions(node)]
        for occurrence, (line, _) in enumerate(starts):
            before = texts[line - 1].strip()
            # cosmic-ray's ExceptionReplacer fails on dotted names.
            if line in inside and line not in annotated and not (operator == "ExceptionReplacer" and "." in before):
                function, first, last = inside[line]
                nth = seen[function, operator, before]
                seen[function, operator, before] += 1
                yield Place(Mutant("", file, function, operator, before, "", nth), occurrence, (first, last))


def find(wanted: Sequence[Mutant]) -> Iterator[tuple[Place | None, str]]:
    """The place of each mutant here, and "same" function and line, a "like" line, or "gone"."""
    by_operator = defaultdict[str, list[Place]](list)
    for file in modules():
        for place in places(file):
            by_operator[place.mutant.operator].append(place)
    line = difflib.SequenceMatcher(autojunk=False)
    for mutant in wanted:
        line.set_seq2(mutant.before)

        def likeness(place: Place, mutant: Mutant = mutant) -> float:
            """Likeness of two lines, 0 to 1.23; the same line in a function of another name has 1."""
            has, name = place.mutant, mutant.function.rpartition(".")[2]
            line.set_seq1(has.before)
            ratio = line.ratio() if line.real_quick_ratio() > 0.6 and line.quick_ratio() > 0.6 else 0.0
            same = has.function == mutant.function, has.nth == mutant.nth, has.file == mutant.file
            return ratio + 0.2 * (has.function.rpartition(".")[2] == name) + sum(same) / 100

        best = max(by_operator[mutant.operator], key=likeness)
        moved = replace(mutant, group=best.mutant.group, file=best.mutant.file, after=best.mutant.after)
        yield (best, "same" if moved == best.mutant else "like") if likeness(best) >= 0.95 else (None, "gone")


def durations(log: Path) -> dict[str, float]:
    """Seconds of set-up, call and tear-down of each test that passed, from pytest's output."""
    took, failed = defaultdict[str, float](float), set[str]()
    for line in log.read_text().splitlines():
        match line.split(maxsplit=2):
            case [seconds, "setup" | "call" | "teardown", test] if seconds.endswith("s"):
                took[test.strip()] += float(seconds[:-1])
            case ["FAILED" | "ERROR", *_]:
                failed.add(line.split(maxsplit=1)[1].partition(" - ")[0])
    return {test: seconds for test, seconds in took.items() if test not in failed}


def covering(data: Path, took: Mapping[str, float], wanted: Sequence[Place]) -> list[list[str]]:
    """The tests of its group that run each statement: quick ones of a file named like its module, then by duration."""
    from coverage import CoverageData

    coverage = CoverageData(str(data))
    coverage.read()
    ran, starting = defaultdict[tuple[str, int], set[str]](set), set[str]()
    paths = {path.rpartition(f"/{PACKAGE}/")[2]: path for path in coverage.measured_files()}
    for file in modules():
        for line, contexts in coverage.contexts_by_lineno(paths.get(file, "")).items():
            ran[file, line] |= {context.partition("|")[0] for context in contexts} & took.keys()
        for function, first, _ in statements(ast.parse((PACKAGE / file).read_text())):
            starting |= ran[file, first] if function == STARTS_A_CHILD else set()

    def in_order(place: Place) -> list[str]:
        file, (first, last) = place.mutant.file, place.lines
        found = set[str]().union(*(ran[file, line] for line in range(first, last + 1))) or starting
        if place.mutant.group in BY_OWN_TESTS:
            found = {test for test in found if test.startswith(f"tests/{place.mutant.group}/")}
        far = {test: took[test] > QUICK_S or Path(file).stem not in test.partition("::")[0] for test in found}
        return sorted(found, key=lambda test: (far[test], took[test], test))

    return [in_order(place) for place in wanted]


def attempt(tree: Path, tests: Sequence[str], limit_s: float) -> tuple[str, str]:
    """Run tests until one fails: "survived", "killed" or "timeout", and the test that failed."""
    (tree / "chosen").write_text("\n".join(tests))  # thousands of names are too long for a command line
    command = [sys.executable, *"-m pytest -x -q -rfE -p no:cacheprovider -p no:pytest_cov @chosen".split()]
    with (tree / "output").open("w") as output:  # a pipe would be held open by what tests leave running
        env = os.environ | {"PYTHONPATH": str(tree)}
        started = subprocess.Popen(command, cwd=tree, env=env, start_new_session=True, stdout=output, stderr=output)
        try:
            status = started.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            return "timeout", ""
    lines = (tree / "output").read_text(errors="replace").splitlines()
    by = [line.split(maxsplit=1)[1].partition(" - ")[0] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return "killed" if status else "survived", by[0] if by else ""


def try_mutant(
    tree: Path, place: Place, tests: Sequence[str], took: Mapping[str, float], seconds: float
) -> dict[str, object]:
    """Apply a mutant in a tree, run its tests of `seconds` in all, restore."""
    path = tree / place.path
    source = path.read_text()
    spent, done, outcome, by = 0.0, 0, "uncovered", ""

    def write(text: str) -> None:
        path.write_text(text)
        written = next(_WRITES)
        os.utime(path, (written, written))  # each text has a time of its own, by which Python knows stale bytecode

    try:
        write(place.mutated())
        for until in (*STAGES_S, seconds):
            begin = done
            while done < len(tests) and spent + took[tests[done]] <= until:
                spent += took[tests[done]]
                done += 1
            if begin < done and outcome in ("uncovered", "survived"):
                outcome, by = attempt(tree, tests[begin:done], 30 + 5 * spent)
    finally:
        write(source)
    if by in took and attempt(tree, [by], 30 + 5 * took[by])[0] != "survived":  # it fails without a mutant, too
        return try_mutant(tree, place, [test for test in tests if test != by], took, seconds)
    return {"outcome": outcome, "by": by, "tests": len(tests), "tried": done}


@click.group()
def main() -> None:
    """Measure which share of mutants the tests kill: `sample` chooses them, `run` tries them."""


@main.command()
@click.argument("listed", type=click.Path(path_type=Path))
def sample(listed: Path) -> None:
    """Write mutants of lines chosen at random in each group of modules to LISTED, one of each line."""
    chance, chosen = random.Random(SEED), list[Mutant]()
    for group in GROUPS:
        by_line = defaultdict[tuple[str, int, str], list[Place]](list)
        for place in (place for file in modules() if file.startswith(f"{group}/") for place in places(file)):
            by_line[place.mutant.file, place.lines[0], place.mutant.before].append(place)
        lines = chance.sample(sorted(by_line), EACH)
        chosen += [replace(chance.choice(by_line[line]).described(), group=group) for line in lines]
    listed.write_text(json.dumps([asdict(mutant) for mutant in chosen], indent=1))


@main.command()
@click.argument("listed", type=click.Path(exists=True, path_type=Path))
@click.option("--coverage", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--durations", "log", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--jobs", default=2, show_default=True)
@click.option("--seconds", default=25.0, show_default=True, help="Sum of the durations of a mutant's tests, at most.")
def run(listed: Path, coverage: Path, log: Path, out: Path, jobs: int, seconds: float) -> None:
    """Try each mutant that is found in this tree with the tests that run its line, in copies of the tree.

    An existing OUT is continued: survivors are tried with more tests if --seconds is larger. The data of --coverage
    and the log of --durations come from one run of the whole suite:

    COVERAGE_FILE=data python -m pytest -n 2 --dist loadfile --durations=0 --durations-min=0 --cov=cs336_tui
    --cov-context=test --cov-report= | tee log
    """
    out, took = out.absolute(), durations(log)
    wanted = [Mutant(**each) for each in json.loads(listed.read_text())]
    results: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else [{} for _ in wanted]
    todo = dict[int, Place]()
    for number, (place, found) in enumerate(find(wanted)):
        if results[number].get("outcome") not in ("killed", "timeout"):
            results[number] = asdict(wanted[number]) | {"found": found, "outcome": "gone"}
            if place:
                results[number]["now"] = asdict(place.described()) | {"line": place.lines[0]}
                todo[number] = place
    tests = dict(zip(todo, covering(coverage, took, list(todo.values())), strict=True))
    with tempfile.TemporaryDirectory(prefix="mutants") as folder, ThreadPoolExecutor(jobs) as pool:
        trees = SimpleQueue[Path]()
        for job in range(jobs):
            trees.put(Path(folder, str(job)))
            shutil.copytree(".", Path(folder, str(job)), ignore=shutil.ignore_patterns(".git", ".venv*", ".mypy_cache"))

        def try_one(number: int) -> None:
            tree, place = trees.get(), todo[number]
            results[number] |= try_mutant(tree, place, tests[number], took, seconds)
            trees.put(tree)
            click.echo("{outcome:<9} {file} {function}: {before} => {after} | {by}".format(**results[number]))

        list(pool.map(try_one, todo))
    out.write_text(json.dumps(results, indent=1))
    for group in GROUPS:
        of = Counter(each["outcome"] for each in results if each["group"] == group)
        click.echo(f"{group:<9} {of['killed'] + of['timeout']} of {of.total()} killed  {dict(of)}")


if __name__ == "__main__":
    main()
