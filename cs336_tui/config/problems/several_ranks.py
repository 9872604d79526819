"""The handouts' measuring problems of several ranks."""

from __future__ import annotations

from cs336_tui.config.problems.problem import Answer, Pairs, Part, Problem

_MODEL: Pairs = (("workload", "language-model"),)
_COMMENT = "the comment is yours"

SEVERAL_RANKS: tuple[Problem, ...] = (
    Problem(
        "optimizer_state_sharding_accounting",
        ("2026",),
        "memory and step time of two ranks with and without sharded optimizer state",
        (
            Part(
                "a",
                "memory after initialisation, before and after the optimizer step, by what it holds",
                (Answer("report", "rank-memory", over="parallel"),),
                _COMMENT,
            ),
            Part(
                "b",
                "step time with and without",
                (
                    Answer(
                        "results",
                        where=_MODEL,
                        columns=tuple("size context batch ranks parallel n mean std memory status".split()),
                        over="parallel",
                    ),
                ),
                "your sharded optimizer is named with --optimizer package.module:get_sharded_optimizer",
            ),
            Part("c", "ZeRO stage 1 beside it", person="how the two differ is an argument"),
        ),
        gpu="two GPUs and their times",
    ),
)
"""In the order of the handouts."""
