"""Arguments of a user's own attention, model and optimizer as choices: several values of one are a sweep's."""

from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given

from cs336_tui.cli.flags import choice_options
from cs336_tui.cli.tune import asked_search
from cs336_tui.config.choices import command_of, sweep_from, sweep_of
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import Sweep
from cs336_tui.config.tuned_sweep import command_of_search, search_of
from cs336_tui.config.tuning import space_of
from cs336_tui.config.variants import pairs_of, settings_of, values_in
from tests.strategies import pairs

OWN = "mine:flash"


def swept(**choices: Any) -> Sweep:
    return sweep_from(**{"devices": ("cpu",), "passes": ("forward",)} | choices)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("16", ("16",)),
        ("16, 32,64", ("16", "32", "64")),
        ("(1,2),[3,4]", ("(1,2)", "[3,4]")),
        ("'a,b',c", ("'a,b'", "c")),
        ("16,", ("16,",)),
        ("", ("",)),
        ("(1,2", ("(1,2",)),
        ("it's,here", ("it's,here",)),
    ],
)
def test_commas_separate_values_but_in_brackets_and_quotes(text: str, values: tuple[str, ...]) -> None:
    assert values_in(text) == values


@given(pairs)
def test_settings_are_the_product_and_come_back_as_its_arguments(given_pairs: tuple[tuple[str, str], ...]) -> None:
    settings = settings_of(given_pairs)
    assert settings_of(pairs_of(settings)) == settings or len(dict(given_pairs)) < len(given_pairs)


def test_an_argument_given_twice_has_the_values_of_both() -> None:
    cells = swept(attentions=(OWN,), attention_args=(("BLOCK_M", "16"), ("BLOCK_M", "32"))).cells()
    assert [cell.attention_args for cell in cells] == [(("BLOCK_M", "16"),), (("BLOCK_M", "32"),)]


def test_each_combination_of_an_own_attention_is_a_cell_and_others_have_none() -> None:
    arguments = (("BLOCK_M", "16,32"), ("BLOCK_N", "32,64"))
    sweep = swept(attentions=("sdpa", OWN), attention_args=arguments)
    cells = sweep.cells()
    assert len(cells) == len(sweep) == 5
    assert [cell.attention_args for cell in cells if cell.attention == "sdpa"] == [()]
    combinations = [dict(cell.attention_args) for cell in cells if cell.attention == OWN]
    assert combinations == [{"BLOCK_M": m, "BLOCK_N": n} for m in ("16", "32") for n in ("32", "64")]
    assert cells[1].variants == ("flash", "BLOCK_M=16", "BLOCK_N=32")
    assert sweep_of(cells) == sweep
    assert "--attention-arg BLOCK_M=16,32 --attention-arg BLOCK_N=32,64" in command_of(sweep)


def test_an_argument_for_one_of_several_is_of_that_one_alone() -> None:
    sweep = swept(attentions=(OWN, "mine:other"), attention_args=(("flash.BLOCK_M", "16,32"), ("scale", "1")))
    assert len(sweep) == len(sweep.cells()) == 3
    assert {cell.attention_args for cell in sweep.cells() if cell.attention != OWN} == {(("scale", "1"),)}
    models = swept(models=("a:G", "a:H"), model_args=(("G.x", "1,2"), ("y", "3,4")))
    assert len(models) == len(models.cells()) == 6
    assert {*sweep_of(models.cells()).cells()} == {*models.cells()}


def test_arguments_of_an_optimizer_count_where_it_steps() -> None:
    passes = ("forward", "train-step")
    sweep = swept(passes=passes, optimizers=("adamw", "a:Opt"), optimizer_args=(("lr", "0.1,0.2"),))
    assert [(cell.pass_, cell.optimizer_args) for cell in sweep.cells()] == [
        ("forward", ()), ("train-step", ()), ("train-step", (("lr", "0.1"),)), ("train-step", (("lr", "0.2"),)),
    ]  # fmt: skip
    assert len(sweep) == 4


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        ({"attention_args": (("BLOCK_M", "16"),)}, "only an attention of your own has arguments; give --attention too"),
        ({"optimizer_args": (("lr", "1"),)}, "only an optimizer of your own has arguments; give --optimizer too"),
        ({"attentions": (OWN,), "attention_args": (("BLOCK_M", "16,16"),)}, "names the same value twice"),
        ({"attentions": (OWN,), "attention_args": (("fast.B", "1"),)}, "before the dot goes one of flash"),
        (
            {"attentions": (OWN,), "attention_args": tuple((name, "1,2,3,4,5,6,7,8,9,0") for name in "abcdefgh")},
            "too many",
        ),
    ],
)
def test_what_arguments_cannot_be(choices: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError, match=line):
        swept(**choices)


def test_code_of_a_file_may_be_named_by_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def flash(q, k, v, causal): ...\n")
    command = click.Command("x", params=[*choice_options(lambda: None).__click_params__])
    context = command.make_context("x", ["--attention", "mine.py:flash,other.py:flash,sdpa"])
    assert context.params["attentions"] == ("mine:flash", "other.py:flash", "sdpa")


def searched(*over: str, **choices: Any) -> Any:
    monkeyed = {"models": ("reference",), "attentions": (OWN,)} | choices
    return search_of(swept(**monkeyed), over, "step", 60.0, {})


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def flash(q, k, v, causal, BLOCK_M=16): ...\n")


@pytest.mark.usefixtures("mine")
def test_a_search_tries_combinations_of_arguments_and_its_command_does_too() -> None:
    over = ("attention-arg.BLOCK_M=16,32", "attention-arg.BLOCK_N=32,64")
    search = searched(*over, attention_args=(("stages", "2"),))
    found = [dict(each.attention_args) for each in space_of(search.asked).candidates[1:]]
    assert found == [{"stages": "2", "BLOCK_M": m, "BLOCK_N": n} for m in ("16", "32") for n in ("32", "64")]
    command = command_of_search(search.asked)
    assert all(f"--over {each}" in command for each in over)


@pytest.mark.usefixtures("mine")
def test_a_search_beside_other_attentions_leaves_their_arguments_alone() -> None:
    search = searched("attention=sdpa,mine:flash", "attention-arg.BLOCK_M=16,32", attentions=("naive",))
    space = space_of(search.asked)
    assert [(each.attention, each.attention_args) for each in space.candidates] == [
        ("naive", ()), ("sdpa", ()), (OWN, (("BLOCK_M", "16"),)), (OWN, (("BLOCK_M", "32"),)),
    ]  # fmt: skip


@pytest.mark.usefixtures("mine")
def test_an_argument_of_one_attention_is_searched_in_that_one_alone() -> None:
    search = searched("attention=naive,mine:flash", "attention-arg.flash.BLOCK_M=16,32")
    assert [(each.attention, each.attention_args) for each in space_of(search.asked).candidates] == [
        (OWN, ()), ("naive", ()), (OWN, (("BLOCK_M", "16"),)), (OWN, (("BLOCK_M", "32"),)),
    ]  # fmt: skip


@pytest.mark.usefixtures("mine")
def test_attentions_without_arguments_have_none_in_a_search() -> None:
    search = searched("attention=naive,mine:flash", attention_args=(("BLOCK_M", "16"),))
    assert [(each.attention, each.attention_args) for each in space_of(search.asked).candidates] == [
        (OWN, (("BLOCK_M", "16"),)), ("naive", ()),
    ]  # fmt: skip


@pytest.mark.usefixtures("mine")
def test_arguments_may_be_of_an_attention_among_the_searched_values_alone() -> None:
    search = asked_search(
        over=("attention=naive,mine:flash", "attention-arg.BLOCK_M=16,32"), goal="step", within=None, budget_s=60.0,
        devices=("cpu",), attention_args=(("stages", "2"),),
    )  # fmt: skip
    found = [dict(each.attention_args) for each in space_of(search.asked).candidates if each.attention == OWN]
    assert found == [{"stages": "2", "BLOCK_M": m} for m in ("16", "32")]
    assert "--attention-arg stages=2" in command_of_search(search.asked)


@pytest.mark.usefixtures("mine")
def test_a_search_takes_the_values_of_the_starting_point_if_nothing_is_named() -> None:
    search = searched(attention_args=(("BLOCK_M", "16,32"),))
    assert [dict(each.attention_args)["BLOCK_M"] for each in space_of(search.asked).candidates] == ["16", "32"]


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("over", "line"),
    [
        (("attention-arg=16",), "name an argument with its values, such as attention-arg.BLOCK_M=16,32"),
        (("attention-arg.BLOCK_N",), "such as attention-arg.BLOCK_N=16,32"),
        (("attention-arg.B=16,16",), "names the same value twice"),
        (("attention-arg.B=16", "attention-arg.B=32"), "names the same value twice"),
        (("attention.B=16",), "expected one of|did you mean"),
    ],
)
def test_what_a_search_of_arguments_cannot_be(over: tuple[str, ...], line: str) -> None:
    with pytest.raises(SpecError, match=line):
        searched(*over)
