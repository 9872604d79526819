"""Searches: what `--over` names, the candidates that it comes to, the command line that searches again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.config.choices import sweep_from
from cs336_tui.config.presets import all_presets
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.tuned_sweep import (
    ENERGY_STEPS_S,
    Search,
    command_of_search,
    over_of,
    search_of,
    searched_axes,
    sweep_of_candidate,
)
from cs336_tui.config.tuning import (
    Goal,
    Over,
    Tuning,
    budget_of,
    check_budget,
    check_goal,
    label,
    limit_of,
    space_of,
)
from tests.samples import a_spec


def a_search(*over: str, goal: Goal = "step", limit: Mapping[str, Any] | None = None, **choices: Any) -> Search:
    sweep = sweep_from(**{"passes": ("train-step",), "devices": ("cpu",), **choices})
    return search_of(sweep, over, goal, 60.0, dict(limit or {}))


def a_tuning(*over: str, **more: Any) -> Tuning:
    return a_search(*over, **more).asked


def labels(tuning: Tuning) -> list[str]:
    return [label(tuning, spec) for spec in space_of(tuning).candidates]


def tokens(spec: CellSpec) -> int:
    """Tokens of all ranks in a step."""
    return spec.tokens_per_step * spec.ranks


def micro_batch(spec: CellSpec) -> int:
    return spec.rank_batch_size // spec.accumulate


def test_the_starting_point_comes_first_and_no_cell_twice() -> None:
    tuning = a_tuning("attention=sdpa,naive", "checkpoint=1,0")
    assert labels(tuning) == ["starting point", "attention sdpa, checkpoint 1", "attention sdpa", "checkpoint 1"]
    assert space_of(tuning).candidates[0] == tuning.base


def test_names_of_choices_stand_together_and_named_values_go_before_usual_ones() -> None:
    tuning = a_tuning("attention,compile")
    assert tuning.over == (Over("attention", ("naive", "sdpa")), Over("compile", ("off", "default")))
    assert a_tuning("checkpoint", checkpoints=(4,)).over[0].values == (4, 0, 1)
    for over in (("attention,compile", "attention=sdpa,math"), ("attention=sdpa,math", "compile,attention")):
        assert {each.name: each.values for each in a_tuning(*over).over} == {
            "attention": ("sdpa", "math"),
            "compile": ("off", "default"),
        }


def test_without_names_what_does_not_change_results_is_searched() -> None:
    fields = {each.field for each in a_tuning().over}
    assert {"attention", "compile", "optimizer", "checkpoint"} < fields
    assert not fields & {"precision", "dropout", "norm", "batch_size"}
    alone = a_tuning(workload="attention", passes=("forward",))
    assert [each.name for each in alone.over] == ["attention", "compile", "cuda-graph"]


def test_the_widest_usual_search_is_not_too_wide() -> None:
    every = "precision,attention,compile,optimizer,checkpoint,batch,cuda-graph"
    assert 500 < len(space_of(a_tuning(every, goal="tokens/s")).candidates) < 2000


def test_every_choice_that_can_be_searched_has_an_option_and_an_effect() -> None:
    names = {axis.option for axis in searched_axes()}
    assert {"attention", "model", "optimizer", "compile", "ranks", "parallel", "batch", "precision"} <= names
    kinds = {axis.kind for axis in searched_axes() if not axis.arguments_of}
    assert kinds == {str, int, float}, "a value that is named is read as one of these"
    assert not names & {"size", "context", "device", "warmup", "steps", "seed", "pass", "timer", "workload", "within"}


@pytest.mark.parametrize(
    ("over", "choices", "why"),
    [
        (("attention=naive",), {}, "over attention: these choices make one cell alone; name a choice with several"),
        ((f"checkpoint={','.join(map(str, range(2001)))}",), {}, "over 2001: these choices make too many candidates"),
        (("",), {}, "over (empty): expected one of "),
        (("colour",), {}, "over colour: expected one of "),
        (("size=tiny,small",), {}, "over size: expected one of "),
        (("attention=naive,bold",), {}, "attention bold: expected one of naive"),
        (
            ("precision=fp32,bf16,optimizer",),
            {},
            "over precision=...,optimizer: optimizer is a choice, not a value of precision; repeat --over for it: "
            "--over optimizer",
        ),
        (("batch=4,compile=off",), {}, "compile is a choice, not a value of batch; repeat --over for it"),
        (("precision=a,b,optimizer",), {}, "optimizer is a choice, not a value of precision; repeat --over for it"),
        (("attention=naive,,sdpa",), {}, "over attention=naive,,sdpa: expected NAME=VALUE,VALUE"),
        (("compile,checkpoint=0,1",), {}, "over compile,checkpoint=0,1: values are of one choice"),
        (("attention=sdpa,sdpa",), {}, "names the same value twice"),
        (("attention=naive,sdpa", "attention=sdpa"), {}, "over attention: named twice"),
        (("attention,compile,attention",), {}, "over attention: named twice"),
        (("checkpoint=many",), {}, "over checkpoint=many: expected a whole number"),
        (("dropout",), {}, "over dropout: has no values of its own; give some, such as dropout=0,0.1"),
        (("checkpoint=99",), {}, "checkpoint 99: expected at most the number of layers, 4"),
        (("optimizer",), {"passes": ("forward",)}, "over optimizer: changes nothing in pass forward; leave it out"),
        (("nesting",), {}, "over nesting: changes nothing while checkpoint is 0"),
        (("parallel",), {}, "over parallel: changes nothing while ranks is 1"),
        (("optimizer",), {"workload": "attention", "passes": ("forward",)}, "over optimizer: attention alone has none"),
        (("batch", "accumulate=1,2"), {}, "with --goal step the batch that is tried is a micro-batch"),
        (("batch",), {"passes": ("forward",)}, "choose --goal tokens/s, or --pass train-step"),
        (("ranks=1,2",), {}, "2 ranks would train a model each; search --over parallel=ddp,fsdp2 too"),
        (("attention",), {"precisions": ("fp32", "bf16")}, "precision fp32,bf16: the starting point is one cell"),
        (("attention",), {"passes": ("forward", "backward")}, "pass forward,backward: the starting point is one cell"),
        ((), {"workload": "collective", "passes": None}, "workload collective: a collective has nothing to search"),
    ],
)
def test_what_cannot_be_searched_is_said_in_a_line(over: Sequence[str], choices: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecError) as found:
        space_of(a_tuning(*over, **choices))
    assert why in str(found.value)
    assert "\n" not in str(found.value)


def test_what_no_cell_can_be_is_left_out_with_the_reason() -> None:
    tuning = a_tuning("checkpoint=0,9", "attention=naive,sdpa")
    (one, other) = space_of(tuning).left_out
    assert (one.words, other.words) == ("checkpoint 9, attention naive", "checkpoint 9, attention sdpa")
    assert "at most the number of layers" in one.why


@given(
    start=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 24),
            "ranks": st.sampled_from((1, 2, 4)),
            "batch_is": st.sampled_from(("per-rank", "global")),
            "accumulate": st.sampled_from((1, 2, 3)),
        }
    ),
    ranks=st.sampled_from((None, 1, 2, 3, 4)),
    choice=st.sampled_from(("none", "batch", "accumulate")),
    values=st.lists(st.integers(1, 24), min_size=1, max_size=3, unique=True),
    goal=st.sampled_from(("step", "memory")),
)
def test_every_step_trains_the_starting_points_tokens(
    start: dict[str, Any], ranks: int | None, choice: str, values: list[int], goal: Goal
) -> None:
    """Whatever the ranks, the micro-batches and the meaning of the batch, of all candidates that are tried."""
    shared = {"parallel": "ddp"} if start["ranks"] > 1 else {}
    try:
        base = a_spec(device="cpu", pass_="train-step", **start, **shared)
    except SpecError:
        return
    over = [Over("attention", ("naive", "sdpa"))]
    over += [Over("ranks", (ranks,)), Over("parallel", ("ddp",))] if ranks else []
    over += [Over({"batch": "batch_size"}.get(choice, choice), tuple(values))] if choice != "none" else []
    try:
        space = space_of(Tuning(base=base, over=tuple(over), goal=goal))
    except SpecError:
        return
    assert {tokens(spec) for spec in space.candidates} == {tokens(base)}
    tried = {spec for spec in space.candidates if spec != base}
    if choice == "batch":
        assert {micro_batch(spec) for spec in tried} <= {*values, micro_batch(base)}
    if choice == "accumulate":
        assert {spec.accumulate for spec in tried} <= set(values)
    if choice == "none":
        assert {spec.accumulate for spec in tried} <= {base.accumulate}


def test_a_smaller_micro_batch_accumulates_gradients() -> None:
    tuning = a_tuning("batch", batches=(8,))
    assert labels(tuning) == ["starting point", "accumulate 2", "accumulate 4", "accumulate 8"]
    assert {micro_batch(spec) for spec in space_of(tuning).candidates} == {8, 4, 2, 1}
    odd = a_tuning("batch", batches=(12,))
    assert {micro_batch(spec) for spec in space_of(odd).candidates} == {12, 6, 3}


def test_micro_batches_that_cuda_graphs_of_compile_would_overwrite_are_left_out() -> None:
    space = space_of(a_tuning("batch=8,4", "compile=off,default,reduce-overhead", batches=(8,), devices=("cuda:0",)))
    assert {(spec.accumulate, spec.compile) for spec in space.candidates} == {
        *((1, "off"), (1, "default"), (1, "reduce-overhead")),
        *((2, "off"), (2, "default")),
    }
    assert [left.words for left in space.left_out] == ["batch 4, compile reduce-overhead"]
    assert space.left_out[0].why.startswith("accumulate 2: compile reduce-overhead replays CUDA graphs")


def test_where_the_batch_is_free_it_is_the_batch() -> None:
    for goal in ("tokens/s", "tokens/J"):
        tuning = a_tuning("batch", goal=goal, batches=(3,))
        assert {spec.batch_size for spec in space_of(tuning).candidates} == {1, 2, 3, 4, 8, 16, 32, 64}
        assert {spec.accumulate for spec in space_of(tuning).candidates} == {1}


def test_ranks_share_the_batch_in_the_starting_points_words() -> None:
    tuning = a_tuning("ranks=1,2", "parallel=ddp", "batch=2,4", batches=(4,))
    assert labels(tuning) == [*("starting point", "accumulate 2"), *("ranks 2, parallel ddp, batch 2",)]
    assert (
        space_of(tuning).left_out[0].why == "batch 4: is no micro-batch of the 4 sequences of a step, shared by 2 ranks"
    )
    same = a_tuning("ranks=1,2", "batch=4", batches=(4,), ranks=(2,), parallels=("ddp",))
    assert labels(same) == ["starting point", "ranks 1, batch 8, accumulate 2"]


def test_ranks_may_train_apart_where_the_starting_point_does_or_nothing_is_trained() -> None:
    (_, two) = space_of(a_tuning("ranks=1,2", passes=("forward",), batches=(4,))).candidates
    assert (two.ranks, two.batch_size, two.parallel) == (2, 2, "none")
    apart = a_tuning("parallel=none,ddp", ranks=(2,))
    assert labels(apart) == ["starting point", "parallel ddp"]


def test_code_of_ones_own_among_the_values_is_looked_for_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("class Net: ...\n")
    (tmp_path / "mine" / "flash.py").write_text("def attend(): ...\n")
    monkeypatch.chdir(tmp_path)
    tuning = a_tuning("attention=sdpa,mine.flash:attend", "model=reference,mine:Net")
    own = [spec for spec in space_of(tuning).candidates if spec.brings_own_code]
    assert own
    assert all(spec.model_path == tuning.model_path and tuning.model_path for spec in own)
    assert all(not spec.model_path for spec in space_of(tuning).candidates if not spec.brings_own_code)
    assert "--model-path" in command_of_search(tuning)
    sweep = sweep_from(passes=("train-step",), devices=("cpu",))
    search = search_of(sweep, ("model=reference,mine:Net",), "step", 60.0, {}, model_args=(("rope", "7"),))
    (net,) = (spec for spec in space_of(search.asked).candidates if spec.brings_own_code)
    assert net.model_args == (("rope", "7"),)
    with pytest.raises(SpecError, match="attention yours:attend: no module yours, looked in"):
        a_tuning("attention=sdpa,yours:attend")


def test_a_visit_has_few_steps_and_the_command_of_the_best_those_of_a_run() -> None:
    tuning = a_tuning("attention", warmups=(7,), steps=40)
    assert (tuning.base.warmup_steps, tuning.base.measure_steps) == (3, 5)
    run = tuning.as_run(space_of(tuning).candidates[1])
    assert (run.warmup_steps, run.measure_steps, run.attention) == (7, 40, "sdpa")
    assert sweep_of_candidate(tuning, run).attentions == ("sdpa",)


def test_visits_are_timed_step_by_step_and_a_run_as_it_was_asked_for() -> None:
    search = a_search("ranks=1,2", "parallel=ddp", timers=("do_bench",), devices=("cuda:0",), batches=(2,))
    tuning = search.asked
    one, two = (next(s for s in space_of(tuning).candidates if s.ranks == ranks) for ranks in (1, 2))
    assert {one.timer, two.timer} == {"step"}
    assert {tuning.as_run(one).timer, tuning.as_run(two).timer} == {"do_bench"}
    assert tuning.as_run(two).warmup_for == tuning.as_run(one).warmup_for is not None


def test_energy_takes_longer_visits_and_is_that_of_a_gpu() -> None:
    tuning = a_tuning("attention", goal="tokens/J", devices=("cuda:0",))
    assert tuning.base.steps_for == ENERGY_STEPS_S
    assert tuning.visit_words == "3 warm-up steps and 2s of measured steps"
    assert a_tuning("attention").visit_words == "3 warm-up and 5 measured steps"
    with pytest.raises(SpecError, match="goal tokens/J: the energy of cpu cannot be read"):
        a_search("attention", goal="tokens/J").check()
    check_goal("tokens/J", "cuda:1")
    a_search("attention", goal="tokens/J", devices=("auto",)).check()


def test_what_only_a_gpu_has_is_searched_on_the_gpu_that_is_named() -> None:
    assert a_search("attention", devices=("cuda:0",), flush_l2=True).asked.base.flush_l2


def test_a_budget_shorter_than_a_visit() -> None:
    tuning = msgspec.structs.replace(a_tuning("attention"), budget_s=0.5)
    with pytest.raises(SpecError, match="budget 500ms: shorter than one visit, which takes at least 0:01"):
        check_budget(tuning)
    with pytest.raises(SpecError, match="at least 1:30"):
        check_budget(a_tuning("attention"), 90.0)
    check_budget(a_tuning("attention"), 59.0)


def test_values_of_a_preset_that_are_searched_begin_with_the_first() -> None:
    tuning = a_tuning("attention=naive,sdpa", attentions=("sdpa", "naive"))
    assert tuning.base.attention == "sdpa"
    several = a_tuning(attentions=("sdpa", "naive"), checkpoints=(0, 2))
    assert several.over == (Over("attention", ("sdpa", "naive")), Over("checkpoint", (0, 2)))


LIMITS = {"70GB": {"within_bytes": 70 * 10**9}, "2GiB": {"within_bytes": 2**31}, "80%": {"within_share": 0.8}}
BUDGETS = {"90s": 90, "10m": 600, "2h": 7200, "1.5min": 90}


def test_limits_of_memory_and_budgets_and_what_is_none() -> None:
    assert {text: limit_of(text) for text in LIMITS} == LIMITS
    assert {text: budget_of(text) for text in BUDGETS} == BUDGETS
    for text in ("", "70", "GB", "0GB", "0%", "120%", "-1GB", "a lot"):
        with pytest.raises(ValueError, match="expected memory such as 70GB, or a share"):
            limit_of(text)
    for text in ("", "10", "0s", "-1m", "soon"):
        with pytest.raises(ValueError, match="expected a time such as 90s, 10m or 2h"):
            budget_of(text)


def test_choices_that_presets_name_can_be_searched() -> None:
    named = [each for each in all_presets().presets if each.over]
    assert [each.name for each in named] == ["2026/leaderboard"]
    for each in named:
        search = search_of(each.sweep.with_devices(("cuda:0",)), each.over, "step", 600.0, {})
        assert len(space_of(search.asked).candidates) > 10


def test_a_tuning_reads_as_it_is_written() -> None:
    assert over_of(("threads=1,2",), a_spec(), "step") == (Over("threads", (1, 2)),), "no device is needed"
    tuning = a_tuning("attention", "checkpoint=0,1", limit={"within_share": 0.8})
    assert msgspec.json.decode(msgspec.json.encode(tuning), type=Tuning) == tuning
