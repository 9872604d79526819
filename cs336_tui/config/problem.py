"""The declaration of a handout's measuring problem: its parts, and the tables and figures that answer each; and the
problems of several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

Pairs = tuple[tuple[str, str], ...]
Source = Literal["results", "phases", "layout", "pivot", "report", "figure"]


_TIMES = "times of a GPU"


class Answer(NamedTuple):
    """Tables or figures of a session. `name` is of a layout, of a pivot as ``ROWS:COLUMNS VALUE``, for a speed-up with
    `` over FIELD=VALUE``, of a report as ``KIND`` or ``KIND/TABLE``, of a figure; figures and tables are named by how
    their names begin."""

    source: Source
    name: str = ""
    where: Pairs = ()
    """Of these cells alone, as ``--where`` takes them; of a number ``2+`` is 2 or more."""
    rows: Pairs = ()
    """Of a report's table the rows whose records have these values."""
    but: Pairs = ()
    """Of a report's table the rows whose records have none of these values."""
    context: int = 0
    """The handout's context length, where an answer needs it and no cell may have it."""
    columns: tuple[str, ...] = ()
    """Columns of a table, by their keys, beside those that tell cells apart; empty: all."""
    most: int = 0
    """Rows of each of a report's tables at most; 0: all."""
    over: str = ""
    """The field in which cells must differ, as without that it says nothing."""


class Part(NamedTuple):
    """A part of a problem."""

    asks: str
    """The question, in a few words."""
    answers: tuple[Answer, ...] = ()
    person: str = ""
    """The reason why a person must do it, or the rest of it."""
    preset: str = ""
    """The preset's name without its edition, if it is not the problem's."""
    command: str = ""
    """The command that answers it by calculation, without cells."""
    letter: str = ""
    """By its place; empty if it is the only one."""


class Problem(NamedTuple):
    """A problem of one edition or several. `gpu` is what a GPU is needed for; empty if the CPU does as well."""

    name: str
    editions: tuple[str, ...]
    title: str
    parts: tuple[Part, ...]
    gpu: str
    preset_name: str
    """The preset's name without its edition, if it is another one."""

    @classmethod
    def of(
        cls, name: str, editions: tuple[str, ...], title: str, *parts: Part, gpu: str = _TIMES, preset_name: str = ""
    ) -> Problem:
        """The problem of these parts, which get their letters."""
        letters = "abcdef" if len(parts) > 1 else ("",)
        lettered = tuple(part._replace(letter=letter) for part, letter in zip(parts, letters, strict=False))
        return cls(name, editions, title, lettered, gpu, preset_name)

    @property
    def is_measured(self) -> bool:
        """True if cells answer any part of it; else it has no preset."""
        return any(part.answers for part in self.parts)

    def preset(self, edition: str, part: Part | None = None) -> str:
        """The preset that runs it, or what a part of it needs."""
        return f"{edition}/{(part.preset if part else '') or self.preset_name or self.name}"


def by_edition(
    name: str, title: str, parts: Mapping[tuple[str, ...], Sequence[Part]], **more: str
) -> Iterator[Problem]:
    """The problem of each of these editions, whose parts differ."""
    return (Problem.of(name, editions, title, *each, **more) for editions, each in parts.items())


_RANKS: Pairs = (("workload", "language-model"), ("ranks", "2+"))
_COLLECTIVE: Pairs = (("workload", "collective"),)
COMMENT = "write the comment yourself"
_TWO_GPUS = "two GPUs and their times"
_TWO_NODES = "2024's setting of two nodes: --launcher slurm --nodes 2 --gpus-per-node 1"

_WRAPPERS = Answer("layout", "data-parallel", where=_RANKS)
_SEVERAL_WRAPPERS = _WRAPPERS._replace(over="parallel")
_TRAFFIC = Answer("report", "kernels/rank-communication", where=_RANKS)
_STATE = Answer("report", "rank-memory", where=_RANKS, over="parallel")
_SHARDED = Answer("layout", "sharding", where=_RANKS, over="parallel")
_OVERLAP = _TRAFFIC._replace(columns=("rank", "communication_ns", "overlapped_ns", "overlapped_share"))


def _own(*functions: str) -> str:
    named = ",".join(f"my.adapters:{function}" for function in functions)
    return f"yours is named with --parallel {named}; without it torch's DDP is shown"


_NAIVE = Part(
    "step time with the gradient of each parameter all-reduced after backward, and the share that communicates",
    (_WRAPPERS,),
    _own("get_naive"),
)
_FLAT = Part(
    "the same with one all-reduce of all gradients, beside one of each",
    (_SEVERAL_WRAPPERS,),
    _own("get_naive", "get_flat"),
)
_OVERLAP_PARTS = (
    Part(
        "step time with communication during backward, beside the two before",
        (_SEVERAL_WRAPPERS,),
        _own("get_naive", "get_flat", "get_ddp"),
    ),
    Part(
        "a profile with and without overlap",
        (_TRAFFIC,),
        "pictures are taken in Perfetto, from each rank's Chrome trace beside the session's log, or in Nsight Systems",
    ),
)
_RATIO = Part("share of communication during which something is computed", (_OVERLAP,), COMMENT)
_BUCKETS = (
    Part(
        "step time over bucket sizes",
        (_SEVERAL_WRAPPERS,),
        f"{_own('get_ddp_bucketed:1MB', 'get_ddp_bucketed:10MB')}; {COMMENT}",
    ),
    Part("an equation of DDP's overhead and of the best bucket size", person="the equations are yours"),
)
_SHARDING = (
    Part("memory after initialisation, before and after the optimizer step, by what it holds", (_STATE,), COMMENT),
    Part(
        "step time with and without",
        (_SHARDED,),
        "your sharded optimizer is named with --optimizer my.adapters:get_sharded_optimizer",
    ),
    Part("ZeRO stage 1 beside it", person="how the two differ is an argument"),
)
_FSDP = (
    Part(
        "memory that FSDP saves at the peak",
        (_SHARDED, _STATE),
        "what is to be expected is yours to derive; yours is named with --parallel ddp,my.adapters:get_fsdp",
    ),
    Part(
        "whether the all-gather of weights ends in time for the forward",
        (Answer("report", "kernels/all-gathers", where=_RANKS), _TRAFFIC),
        "pictures of Nsight Systems are taken in its window",
    ),
)
_ALL_REDUCE = (
    Answer("layout", "collectives", where=_COLLECTIVE),
    Answer("figure", "busbw", where=_COLLECTIVE, over="size"),
)
_FORMULAS = "the expressions are yours; the command has the numbers for given speeds"
_PLAN = "cs336-tui plan --part ffn --size xl --gpu H100 --link 450GB/s"


_ACCOUNTS = (
    "cs336-tui plan --mesh 16x4:2x1 --memory 80GB --memory 95GB --arch gelu-learned --d-model 16384 --d-ff 53248 "
    "--num-layers 126 --num-heads 128 --context 1 --batch 1 --flops 4.6e14 --link 180GB/s"
)


def _calculated(name: str, title: str, *asks: str, first: str = "", last_shares_link: bool = False) -> Problem:
    """A problem of a part for each of `asks`; `first` is the reason for which the first is a person's."""
    commands = [_PLAN] * len(asks)
    if first:
        commands[0] = ""
    if last_shares_link:
        commands[-1] += " --shared-link"
    parts = (
        Part(each, person=_FORMULAS if command else first, command=command)
        for each, command in zip(asks, commands, strict=True)
    )
    return Problem.of(name, ("2026",), title, *parts, gpu="")


SEVERAL_RANKS: tuple[Problem, ...] = (
    Problem.of(
        "distributed_communication_single_node",
        ("2024", "2025", "2026"),
        "all-reduce over sizes and ranks in one node",
        Part(
            "time of an all-reduce for each size, number of ranks and backend",
            _ALL_REDUCE,
            COMMENT,
        ),
        gpu="up to 6 GPUs and their times",
        preset_name="all_reduce",
    ),
    Problem.of(
        "distributed_communication_multi_node",
        ("2024",),
        "all-reduce over sizes and ranks over two nodes",
        Part(
            "time of an all-reduce for each size, number of ranks and backend, between nodes",
            _ALL_REDUCE,
            f"its preset runs over nodes with --launcher slurm --nodes 2 --gpus-per-node 3; {COMMENT}",
        ),
        gpu="two nodes of 3 GPUs and their times",
        preset_name="all_reduce",
    ),
    *by_edition(
        "naive_ddp_benchmarking",
        "a step of naive data parallel on two ranks",
        {("2024",): (_NAIVE._replace(person=f"{_NAIVE.person}; {_TWO_NODES}"),), ("2025", "2026"): (_NAIVE,)},
        gpu=_TWO_GPUS,
    ),
    *by_edition(
        "minimal_ddp_flat_benchmarking",
        "a step with flat gradients beside naive",
        {("2024",): (_FLAT._replace(person=f"{_FLAT.person}; {_TWO_NODES}"),), ("2025", "2026"): (_FLAT,)},
        gpu=_TWO_GPUS,
    ),
    *by_edition(
        "ddp_overlap_individual_parameters_benchmarking",
        "a step with communication during backward beside naive and flat",
        {("2024",): (*_OVERLAP_PARTS, _RATIO), ("2025", "2026"): _OVERLAP_PARTS},
        gpu=_TWO_GPUS,
    ),
    Problem.of(
        "ddp_bucketed_benchmarking", ("2024", "2025"), "a step over the size of buckets", *_BUCKETS, gpu=_TWO_GPUS
    ),
    Problem.of(
        "communication_accounting",
        ("2025",),
        "memory and communication of a model of 126 blocks, on paper",
        *(
            Part(
                asks,
                person="the sentences are yours; the command has the numbers with their derivation",
                command=_ACCOUNTS,
            )
            for asks in (
                "memory of one device",
                "memory of a device with everything but half of the activations sharded",
                "the batch from which on 16 x 4 devices are bound by computation",
            )
        ),
        Part("other ways to a smaller batch", person="it is an argument"),
        gpu="",
    ),
    Problem.of(
        "optimizer_state_sharding_accounting",
        ("2024", "2025", "2026"),
        "memory and step time of two ranks with and without sharded optimizer state",
        *_SHARDING,
        gpu=_TWO_GPUS,
    ),
    Problem.of("fsdp_accounting", ("2026",), "memory that FSDP saves, and its all-gathers", *_FSDP, gpu=_TWO_GPUS),
    _calculated(
        "data_parallel_calcs",
        "when data parallel is bound by communication",
        "FLOPs of the backward",
        "time of its communication",
        "the most ranks",
    ),
    _calculated(
        "fsdp_calcs",
        "when FSDP is bound by communication",
        "FLOPs of backward and forward",
        "time of their communication",
        "the most ranks for either",
    ),
    _calculated(
        "tp_calcs",
        "when tensor parallel is bound by communication",
        "the backward in equations",
        "FLOPs of forward and backward",
        "time of their communication",
        "the most ranks for either",
        first="the equations are yours",
    ),
    _calculated(
        "fsdp_tp_calcs",
        "when FSDP and tensor parallel together are bound by communication",
        "FLOPs of the forward",
        "time of its communication",
        "the most ranks, if communication along both axes overlaps",
        "the most ranks, if both axes share a link",
        last_shares_link=True,
    ),
)
"""In the order of the handouts."""
