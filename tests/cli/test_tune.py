"""`cs336-tui tune` as scripts call it."""

import json
import shlex
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.next_step import MOST_ROUNDS, NONE_LEFT
from cs336_tui.cli.files import Destination
from cs336_tui.cli.streams import TERMINAL
from cs336_tui.cli.tune import _saved, asked_search, race_text, show_plan, tune
from cs336_tui.config.presets import preset
from cs336_tui.config.tuned_sweep import Search, command_of_search
from cs336_tui.config.tuning import Tuning
from cs336_tui.events.prediction import Prediction
from cs336_tui.session.load import load
from tests.cli import a_machine
from tests.commands import DIMS, call, running, stopped
from tests.made_predictions import MadePredictor, made_prediction
from tests.made_race import race_events
from tests.referee.corpus import USERS
from tests.samples import state_of

SMALL = [*DIMS, *"--context 8 --batch 4 --device cpu --threads 1".split()]
OVER = ["--over", "attention=naive,sdpa", "--over", "optimizer=adamw,adamw-for-loop", "--over", "checkpoint=0,1"]


def searching(*words: str) -> Search:
    """The search that a command line asks for."""
    given = tune.make_context("tune", list(words)).params
    of_run = ("dry_run", "gpu", "session", "trusted", "save_preset", "format_", "output", "overwrite", "session_dir")
    return asked_search(**{name: value for name, value in given.items() if name not in of_run})


def the_plan(*words: str, gpu: str | None = None, predictor: MadePredictor | None = None) -> Any:
    return json.loads(planned(*words, gpu=gpu, predictor=predictor, format_="json"))


def planned(*words: str, gpu: str | None = None, predictor: Any = None, format_: str = "table") -> str:
    with a_machine(predictor or MadePredictor()):
        return show_plan(searching(*words), gpu, Destination(format_))


def test_a_whole_race_of_real_steps(tmp_path: Path) -> None:
    words = [*SMALL, *OVER, "--goal", "step", "--budget", "16s", "--save-preset", "raced", "--format", "json"]
    began = time.monotonic()
    done = call("tune", "--session-dir", str(tmp_path), *words, environment={"XDG_CONFIG_HOME": f"{tmp_path}/config"})
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["baseline"]["attention"] == "naive"
    assert found["best"] == found["ranking"][0]["spec"]
    assert {"spec", "ratio", "low", "high", "status"} <= found["ranking"][0].keys()
    assert len(found["ranking"]) == 8
    (start,) = (each for each in found["ranking"] if each["spec"] == found["baseline"])
    assert start["ratio"] == 1
    assert found["spent_s"] <= took_s
    assert found["spent_s"] <= 16 * 1.2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("race of 8 candidates; ")
    assert lines[1].startswith("round 1: ")
    assert not [line for line in lines if "too few steps" in line], "no verdicts on visits"
    (saved,) = (tmp_path / "config").rglob("raced.toml")
    assert "found by tune, goal step" in saved.read_text()
    (log,) = tmp_path.glob("*.jsonl")
    state = load(log)
    (command,) = state.commands
    again = searching(*shlex.split(command)[2:])
    assert again.asked.over == state.tuning.tuning.over
    table = call("resume", str(log), "--format", "table")
    assert table.returncode == 0
    assert table.stdout.startswith(found["finding"]), "what is told of an ended race is the same from its log"


def test_a_race_that_is_stopped_prints_the_best_so_far(tmp_path: Path) -> None:
    words = ("tune", "--session-dir", str(tmp_path), *SMALL, *OVER[:2], "--budget", "5m")
    with running(*words, cwd=tmp_path) as process:
        while not process.stderr.readline().startswith("round 1: "):
            assert process.poll() is None
        out = stopped(process)
    assert "Race of 2 candidates" in out
    assert "run it: cs336-tui bench " in out


@pytest.mark.parametrize(
    "words",
    [
        ["--over", "attention,checkpoint=0,2"],
        ["--over", "batch=1,2", "--goal", "tokens/s", "--within", "80%", "--budget", "90s"],
        ["--over", "ranks=1,2", "--over", "parallel=ddp:25MB", "--goal", "memory", "--within", "3GiB"],
        ["--over", "attention=naive,cheating_attention:honest", "--model-path", str(USERS)],
        ["--over", "attention=naive,sdpa", "--goal", "tokens/J", "--device", "cuda:0"],
    ],
)
def test_the_command_of_a_search_searches_again(words: list[str]) -> None:
    words = [*SMALL, *(["--over", "attention", *words[2:]] if words[1] == "attention,checkpoint=0,2" else words)]
    tuning = searching(*words).asked
    again = searching(*shlex.split(command_of_search(tuning))[2:]).asked
    assert as_searched(again) == as_searched(tuning)


def as_searched(tuning: Tuning) -> Tuning:
    """All of it but the steps of a run that is none of the search."""
    return msgspec.structs.replace(tuning, run=None)


def test_a_dry_run_tells_candidates_what_is_left_out_and_the_plan() -> None:
    found = the_plan(*SMALL[:-4], "--device", "cuda:0", *OVER, "--over", "precision=fp32,fp8-mixed", "--budget", "5m")
    assert found["baseline"]["attention"] == "naive"
    assert len(found["candidates"]) == 8
    assert {"spec", "needed_bytes", "flops", "low_s"} <= found["candidates"][0].keys()
    assert len(found["left_out"]) == 8
    assert all("fp8-mixed" in each["words"] for each in found["left_out"])
    assert found["plan"]["visits"] == 8
    assert found["plan"]["most_rounds"] == min(int(300 / found["plan"]["round_low_s"]), MOST_ROUNDS)


def test_a_dry_run_says_who_is_visited_first_where_the_budget_is_short() -> None:
    words = ["--size", "xl", "--context", "512", "--device", "cuda:0", "--steps", "100", *OVER]
    round_s = the_plan(*words)["plan"]["round_low_s"]
    short = [*words, "--budget", f"{round_s:.3f}s"]
    assert the_plan(*short)["plan"]["visits"] == 4, "half of the budget"
    assert the_plan(*short, "--goal", "memory")["plan"]["visits"] == 8, "which is measured once"
    text = planned(*short)
    assert "a round of all: 8 visits of 3 warm-up and 100 measured steps" in text
    assert "first round: about 4 of these visits, in " in text
    assert "The starting point first, then each value by itself, then the combinations whose values gained most" in text


def test_a_dry_run_counts_combinations_that_differ_only_in_a_choice_without_effect() -> None:
    words = [*SMALL, "--over", "checkpoint=0,1", "--over", "nesting=off,halves", "--budget", "5m"]
    assert len(the_plan(*words)["candidates"]) == 3
    text = planned(*words)
    assert text.startswith("3 candidates on ")
    assert ", 1 combination like another; goal: " in text.splitlines()[0]


def test_without_a_result_a_terminal_gets_the_reasons_alone_and_files_get_all() -> None:
    lost = dict.fromkeys(range(8), "RuntimeError: no driver") | {3: "out of registers"}
    state = state_of(race_events(rounds=(range(8),), lost=lost, ended=NONE_LEFT))
    first, *lines = race_text(state, TERMINAL).splitlines()
    assert first == "No candidate could be measured: RuntimeError: no driver (7 of 8)."
    told = " ".join(lines)
    assert told.startswith("RuntimeError: no driver: starting point; ")
    assert told.endswith(" and 4 more out of registers: checkpoint 1, optimizer adamw-for-loop")
    assert len(json.loads(race_text(state, "json"))["ranking"]) == 8
    assert race_text(state, "markdown").count("| failed ") == 8


def test_the_best_of_a_race_is_saved_once_and_of_none_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    none = state_of(race_events(rounds=(range(8),), lost=dict.fromkeys(range(8), "no driver"), ended=NONE_LEFT))
    assert [_saved(none, "best", code, overwrite=False) for code in (0, 1)] == [0, 1]
    assert capsys.readouterr().err == "no preset saved: no candidate could be measured\n" * 2
    assert not list(tmp_path.rglob("*.toml"))
    raced = state_of(race_events())
    assert [_saved(raced, "best", 0, overwrite=overwrite) for overwrite in (False, False, True)] == [0, 1, 0]
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == third
    assert first.startswith(f"preset best: {tmp_path}")
    assert second.startswith("no preset saved: ")


def test_a_preset_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    own = tmp_path / "cs336-tui" / "presets" / "best.toml"
    own.parent.mkdir(parents=True)
    own.write_text("pass = 'forward'\n")
    words = ["tune", *SMALL, *OVER, "--save-preset", "best", "--dry-run", "--session-dir", str(tmp_path)]
    done = call(*words, environment={"XDG_CONFIG_HOME": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert "preset best: exists already; choose another name, or say --force" in done.stderr
    forced = call(*words, "--force", environment={"XDG_CONFIG_HOME": str(tmp_path)})
    assert "leave out --dry-run" in forced.stderr, "it is past the check of the name"


def test_the_leaderboard_says_what_fits_and_what_ten_minutes_leave() -> None:
    def made(spec: Any) -> Prediction:
        return made_prediction(spec, peak_bytes=10**9 * (600 if spec.checkpoint == 0 else 150) // spec.ranks)

    words = ["--preset", "2026/leaderboard"]
    found = the_plan(*words, gpu="B200", predictor=MadePredictor(made))
    assert {each["spec"]["ranks"] for each in found["candidates"]} == {1, 2}
    assert {each["spec"]["checkpoint"] for each in found["left_out"]} == {0}
    left = {each["left_to_compile_at_most_s"] for each in found["candidates"]}
    run = preset("2026/leaderboard").sweep
    assert max(left) == 600 - (run.warmup_for or 0) - (run.steps_for or 0)
    text = planned(*words, gpu="B200", predictor=MadePredictor(made))
    assert "its steps take at least 0:40, so that at most 9:20 is left for start-up, compiling and autotuning" in text
    assert "unknown until they are measured" in text
