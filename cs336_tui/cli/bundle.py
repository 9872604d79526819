"""`cs336-tui bundle` and `verify`: a session as evidence that travels, and its check, by its bytes or by a new run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

import cs336_tui
from cs336_tui.analysis.merge import measured, results_of, without_visits
from cs336_tui.cli.files import Destination, file_options, say_written
from cs336_tui.cli.flags import FILE, session_argument, session_dir_option, timeout_option, trust_option
from cs336_tui.cli.help import command, heading, option
from cs336_tui.cli.run import EXIT_CELL_FAILED, EXIT_OK, HeadlessRun, Outputs, carry_out, say_imports
from cs336_tui.cli.streams import shown
from cs336_tui.config.reading import open_regular
from cs336_tui.export.bundle import Again, BundleError, Verified, again_table, make_bundle, sha256, verified
from cs336_tui.export.writing.files import write_atomically
from cs336_tui.export.writing.tables import Table
from cs336_tui.runner.bench import Bench
from cs336_tui.runner.trust import check_log, files_of
from cs336_tui.session import store
from cs336_tui.session.log import LogReader
from cs336_tui.session.state import SessionState
from cs336_tui.stats.quantities import counted


@command("bundle")
@session_argument
@heading("Output")
@option("-o --output", "Write here. [default: SESSION.zip]", type=FILE)
@option("--force/--no-clobber", "Write over a file that is there, or refuse to.", name="overwrite", default=True)
@session_dir_option
def bundle(*, session: str, session_dir: Path, output: Path | None, overwrite: bool) -> str:
    """Pack SESSION as one file that others check with `cs336-tui verify`.

    It holds the log, the environment, the command to repeat it, the record with verdicts, the tables, and hashes of the
    code; no names of users and machines, no folders and no secrets. Prints the manifest's SHA-256, which names the
    bundle: where it is told elsewhere, too, no other bundle can take its place.
    """
    log = store.find(session, session_dir)
    specs = [cell.spec for cell in store.load(log).cells.values()]
    data, manifest = make_bundle(list(LogReader(log)), {**_own_files(), **files_of(specs)})
    output = output or Path(f"{log.stem}.zip")
    write_atomically(output, data, overwrite=overwrite)
    say_written(output)
    return f"{manifest.sha256}  {output.name}, {counted(len(manifest.members), 'member')}"


def _own_files() -> dict[str, bytes]:
    """The sources of cs336-tui that build, run and time a step, as one."""
    worker = Path(cs336_tui.__file__).with_name("worker")
    return {"cs336_tui/worker": b"".join(file.read_bytes() for file in sorted(worker.rglob("*.py")))}


@command("verify")
@click.argument("file", type=FILE)
@heading("How it runs")
@option("--rerun", "Also run every measured cell again, here, and compare its mean with the old one.", is_flag=True)
@trust_option
@timeout_option
@file_options("table")
def verify(*, file: Path, rerun: bool, **given: Any) -> int:
    """Check the bundle FILE: its hashes, and every table against what comes of the raw steps of its log.

    With --rerun its cells run again, in a new session, and a table says of each whether the new mean lies in the old
    95 % interval. Code of one's own is taken from the current folder. Exits with 0 when all is as it should be, 1 when
    something differs, failed or is not known, 2 for a file that is no bundle.
    """
    try:
        with open_regular(file) as opened:
            found = verified(opened.read())
    except OSError as error:
        raise BundleError(f"{file}: {error.strerror}") from None
    except BundleError as error:
        raise BundleError(f"{file}: {error}") from None
    for problem in found.problems:
        click.echo(f"differs: {problem}", err=rerun)
    code = EXIT_CELL_FAILED if found.problems else EXIT_OK
    if found.state and not found.problems:
        steps = counted(sum(len(cell.step_times_s) for cell in found.state.cells.values()), "measured step")
        members = counted(len(found.manifest.members), "member")
        click.echo(f"{found.manifest.sha256}  {members}, as they come of {steps}", err=rerun)
    return (_run_again(found, found.state, **given) or code) if rerun and found.state else code


def _run_again(
    found: Verified, state: SessionState, *, to: Destination, session_dir: Path, trusted: bool, timeout_s: float | None
) -> int:
    every = measured(results_of(state))
    before = [each for each in without_visits(every) if not each.cell.in_turns]
    if not before:
        why = "all were in turns or in a race" if every else "none was measured"
        raise click.ClickException(f"no cell can be measured again: {why}")
    if left_out := len(every) - len(before):
        click.echo(f"note: {counted(left_out, 'cell')} in turns or in a race cannot be measured again", err=True)
    here = (str(Path.cwd()),)
    specs = [
        msgspec.structs.replace(each.spec, model_path=here) if each.spec.brings_own_code else each.spec
        for each in before
    ]
    say_imports(check_log(found.manifest.session, specs, trusted=trusted))
    sums = set(map(sha256, {**_own_files(), **files_of(specs)}.values()))  # names may be redacted
    for name, known in found.files.items():
        if known not in sums:
            click.echo(f"note: {name} is not as it was when the bundle was made", err=True)
    run = HeadlessRun()
    bench = Bench(run.sink, session_dir=session_dir, timeout_s=timeout_s, explain_oom=False, ddof=state.ddof)
    reasons: list[str] = []

    def work() -> None:
        reasons.extend(str(bench.probe().refusal(spec) or "") for spec in specs)
        bench.add([(spec, 1) for spec, reason in zip(specs, reasons, strict=True) if not reason])
        bench.work()

    def again(after: SessionState) -> Table:
        ran = iter(results_of(after))
        pairs = zip(before, reasons or [""] * len(before), strict=True)
        return again_table([Again(old, None if reason else next(ran, None), reason) for old, reason in pairs])

    code = carry_out(bench, run, work, Outputs(lambda state: shown([again(state)], to.format), to))
    return code or (EXIT_OK if {*again(run.state).texts("answer")} <= {"yes"} else EXIT_CELL_FAILED)
