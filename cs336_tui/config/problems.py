"""The handouts' problems, each declared once: what a session answers each part of it with.

Those of one device are here, those of several ranks in `config.problem`. Derived from `PROBLEMS` are
``export --problem``, `cs336-tui problems`, the app's list of problems and the test of ``docs/problems.md``. A preset
named ``EDITION/NAME`` runs what the problem asks for. `export.problems` makes what an `Answer` names.
"""

from __future__ import annotations

from collections.abc import Iterator

from cs336_tui.config.axis import SpecError
from cs336_tui.config.problem import COMMENT, SEVERAL_RANKS, Answer, Pairs, Part, Problem, by_edition
from cs336_tui.config.variants import expected, plain

_MODEL: Pairs = (("workload", "language-model"),)
_ALONE: Pairs = (("workload", "attention"),)
_NORM_ALONE: Pairs = (("workload", "norm"),)
_STEPS = ("size", "context", "pass", "precision", "warmup", "n", "mean", "std", "median", "min", "max")
_FORWARD: Pairs = (("pass", "forward"),)
_KERNELS, _ALLOCATOR = "its kernels", "its allocator"

_TIMINGS = (
    Answer("results", columns=_STEPS, where=_MODEL),
    Answer("phases", where=_MODEL),
    Answer("figure", "passes-by-size", where=_MODEL),
)
_WARM_UP = (
    Answer("layout", "warm-up", where=_MODEL, over="warmup"),
    Answer("figure", "step-times", where=_MODEL, over="warmup"),
)
_SWEEP = (Answer("results", where=_MODEL), Answer("layout", "min-max", where=_MODEL), _TIMINGS[-1])
_CONTEXTS = Answer("figure", "context-length", where=_MODEL, over="context")
_OVER_CELLS = Answer("report", "kernels-over-cells", where=_MODEL)
_KERNEL_PARTS = (
    Part(
        "total time of the forward pass, profiled beside timed",
        (
            _OVER_CELLS._replace(
                rows=(("part", "forward"),),
                columns=("kernel_ns", "kernel_difference_s", "span_ns", "span_difference_s", "timed_s"),
            ),
        ),
        COMMENT,
    ),
    Part(
        "the kernel that takes most of forward, its count, and whether it is the same with backward",
        (
            _OVER_CELLS._replace(columns=("part", "top_short", "top_instances", "top_share", "same_as_forward")),
            Answer("report", "kernels/kernels-", where=_FORWARD, most=5),
        ),
    ),
    Part(
        "kernels of forward beside matrix products",
        (
            Answer("report", "kernels/kernel-kinds", where=_FORWARD),
            Answer("report", "kernels/kernels-", where=_FORWARD, but=(("kind", "matrix multiply"),), most=5),
        ),
    ),
    Part(
        "share of matrix products in a training step against forward, and of the others",
        (
            _OVER_CELLS._replace(columns=("part", "matmul_share", "softmax_share", "optimizer_share")),
            Answer("report", "kernels/kernel-kinds", where=(("pass", "train-step"),)),
        ),
    ),
    Part(
        "softmax against matrix products inside attention, in time and in FLOPs",
        (Answer("report", "kernels/attention", where=_FORWARD),),
    ),
)
_RANGES = Answer("report", "kernels/kernel-ranges", where=_FORWARD)
_ACCUMULATION = (Answer("report", "precision/accumulation"),)
_TOY = Part("dtypes in the toy model under autocast", (Answer("report", "precision/toy-dtypes"),))
_MIXED = Part(
    "passes with and without mixed precision, for each size",
    (
        Answer("report", "mixed-precision", over="precision"),
        Answer("phases", where=_MODEL, over="precision"),
        Answer("figure", "precision", over="precision"),
    ),
    COMMENT,
)
_SCRIPT = "the script is yours to write; cs336-tui bench is one that does what is asked, and a check on it"


_HELD = (("category", "parameters"), ("category", "buffers"))


def _norm_under_autocast(toy: str) -> Part:
    why = f"which operations of layer norm are sensitive, and why, is an argument; the dtypes are at ({toy})"
    return Part("layer norm under autocast", person=why)


def _memory(sizes: str, context: int = 0) -> tuple[Part, ...]:
    """Parts a to e, in which the peaks are over `sizes`. `context` is that of the reference hyperparameters."""

    def peaks(precision: str) -> tuple[Answer, ...]:
        where = (("precision", precision),)
        return Answer("pivot", f"{sizes}:pass memory", where=where), Answer(
            "report", "memory/memory-peaks", where=where
        )

    low = "fp16-mixed" if sizes == "size" else "bf16-mixed"
    inference = (("pass", "inference,forward"), ("precision", "fp32"))
    return (
        Part(
            "memory over a step: inference and a whole training step",
            (Answer("figure", "memory-timeline"), Answer("report", "memory/memory-phases")),
            f"pictures of memory_viz are taken in a browser, from the snapshots beside the session's log; {COMMENT}",
        ),
        Part("peaks of inference and of a training step", peaks("fp32")),
        Part("the same peaks in mixed precision", peaks(low), COMMENT),
        Part(
            "size of a tensor of the residual stream, with its derivation",
            (Answer("report", "memory/residual-stream", where=(("precision", "fp32"),), context=context),),
        ),
        Part(
            "the largest allocations of forward, and where they come from",
            (Answer("report", "memory/memory-largest", where=inference, but=_HELD, most=8),),
        ),
    )


_RESIDUALS = Part(
    "memory that a block saves for backward, its five largest contributors, and the gradients of a block by how its "
    "backward changes memory",
    (
        Answer("report", "memory/memory-saved", where=(("pass", "train-step"),)),
        Answer("report", "memory/memory-blocks", where=(("pass", "train-step"),)),
    ),
    "screenshots of Nsight Systems are taken in its window",
)
_ATTENTION = (Answer("layout", "attention", where=_ALONE),)
_AS_WRITTEN = (Answer("layout", "attention", where=(*_ALONE, ("attention", "naive"), ("compile", "off"))),)
_COMPILED_ALONE = (Answer("layout", "attention", where=(*_ALONE, ("attention", "naive")), over="compile"),)
_DO_BENCH_ALONE = (Answer("layout", "do_bench", where=_ALONE), *_ATTENTION)
_JUDGED_ALONE: Pairs = (("timer", "do_bench"), ("pass", "forward+backward"), *_ALONE)
_JUDGED: Pairs = (("timer", "do_bench"), ("pass", "train-step"), *_MODEL)
_LEADERBOARD = (
    Answer("layout", "leaderboard", where=_JUDGED),
    Answer("layout", "do_bench", where=_JUDGED),
    Answer(
        "results",
        where=_JUDGED,
        columns=tuple(
            "size context batch pass precision n median compile_time first_step whole within memory status".split()
        ),
    ),
)
_COMPILED = (Answer("layout", "compiled", where=_MODEL, over="compile"),)

_NORMS_ALONE = (Answer("layout", "norm", where=_NORM_ALONE),)
_NORMS_COMPILED = {
    pass_: (Answer("layout", "norm", where=(*_NORM_ALONE, ("pass", pass_)), over="compile"),)
    for pass_ in ("forward", "forward+backward")
}
_NORMS = tuple(
    Answer("pivot", f"size:norm {value}", where=_MODEL, over="norm") for value in ("mean", "speedup over norm=rmsnorm")
)
_NORMS_FORWARD = tuple(each._replace(where=(*_MODEL, *_FORWARD)) for each in _NORMS)
_OWN_NORM = (
    "your kernel is named with --norm rmsnorm,layernorm,package.module:function; without it torch's own is shown"
)

ONE_DEVICE: tuple[Problem, ...] = (
    Problem.of(
        "benchmarking_script",
        ("2024", "2025", "2026"),
        "forward, backward and optimizer step of every size",
        Part("a script that times passes", person=_SCRIPT),
        Part("mean and std of each pass and size, after warm-up", _TIMINGS, COMMENT),
        Part("the same without warm-up, and with a step or two", _WARM_UP, COMMENT, "warmup"),
    ),
    Problem.of(
        "warmup",
        ("2024", "2025", "2026"),
        "what steps without warm-up cost: benchmarking_script (c) alone",
        Part("steps without warm-up, and with a step or two", _WARM_UP, COMMENT),
    ),
    *(
        Problem.of(
            "end_to_end",
            (edition,),
            f"a sweep over {over}, as write-ups show it",
            Part("step times, tokens/s and memory of the whole sweep", answers),
        )
        for edition, over, answers in (
            ("2025", "sizes, passes and warm-up", _SWEEP),
            ("2026", "sizes, contexts and passes", (*_SWEEP, _CONTEXTS)),
        )
    ),
    Problem.of(
        "nsys_profile", ("2025", "2026"), "kernels of each pass over sizes and contexts", *_KERNEL_PARTS, gpu=_KERNELS
    ),
    Problem.of("function_call_table", ("2024",), "kernels of each pass of xl", *_KERNEL_PARTS[:4], gpu=_KERNELS),
    Problem.of(
        "flame_graph",
        ("2024",),
        "shares of parts of the model in forward",
        Part(
            "a flame graph, and where its cycle comes from",
            (Answer("figure", "flame-graph", where=_FORWARD),),
            "where the cycle comes from is yours to say",
        ),
        Part("share of RMSNorm", (_RANGES._replace(rows=(("name", "norms"),)),)),
        Part("share of softmax", (_RANGES._replace(rows=(("name", "softmax"),)),)),
        Part("what was not expected", person="what you expected is yours to say"),
        gpu=_KERNELS,
    ),
    Problem.of(
        "mixed_precision_accumulation",
        ("2025", "2026"),
        "0.01 added 1,000 times in four ways",
        Part("the four sums, and how far each is off", _ACCUMULATION, COMMENT),
        gpu="",
    ),
    *by_edition(
        "benchmarking_mixed_precision",
        "mixed precision against fp32, and dtypes of a toy model",
        {
            ("2024",): (_MIXED, _TOY, _norm_under_autocast(toy="b")),
            ("2025", "2026"): (_TOY, _norm_under_autocast(toy="a"), _MIXED),
        },
    ),
    Problem.of(
        "pytorch_layernorm",
        ("2024",),
        "RMSNorm against torch's LayerNorm, alone and in the model",
        Part("forward of both norms alone over four widths", _NORMS_ALONE, COMMENT),
        Part("forward of every size with either norm", _NORMS_FORWARD, COMMENT),
    ),
    Problem.of(
        "rmsnorm_forward_benchmarking",
        ("2024",),
        "forward of your RMSNorm against both norms",
        Part("forward of each norm alone over four widths", _NORMS_ALONE, _OWN_NORM),
        Part("forward of every size with each norm", _NORMS_FORWARD, _OWN_NORM),
    ),
    Problem.of(
        "rmsnorm_benchmarking",
        ("2024",),
        "forward and backward of your RMSNorm against both norms",
        Part("forward and backward together of each norm alone", _NORMS_ALONE, _OWN_NORM),
        Part("forward and backward of every size with each norm, and the speed-up", _NORMS, _OWN_NORM),
    ),
    *by_edition(
        "memory_profiling",
        "memory of inference and of a training step",
        {
            ("2024",): _memory("size", 128),
            ("2025",): _memory("context"),
            ("2026",): (*_memory("context", 512), _RESIDUALS),
        },
        gpu=_ALLOCATOR,
    ),
    Problem.of(
        "gradient_checkpointing",
        ("2026",),
        "peak memory over how many blocks are recomputed together",
        Part(
            "the strategy of least memory, and its asymptotics",
            (Answer("layout", "checkpointing", where=(*_MODEL, ("pass", "forward+backward")), over="nesting"),),
            "the derivation and a sketch of code; the table measures groups within halves of halves",
        ),
        Part(
            "measured peak of the best group size without nesting, and of the next smaller and larger one",
            (Answer("layout", "checkpointing", where=(*_MODEL, ("nesting", "off")), over="checkpoint"),),
            COMMENT,
        ),
        gpu=_ALLOCATOR,
    ),
    Problem.of(
        "pytorch_attention",
        ("2025", "2026"),
        "attention alone over widths and sequence lengths",
        Part("times, memory before backward, and the accounting of what ran out", _AS_WRITTEN, COMMENT),
    ),
    Problem.of(
        "torch_compile",
        ("2024",),
        "a norm alone and the whole model under torch.compile",
        Part("forward of RMSNorm alone, compiled too", _NORMS_COMPILED["forward"]),
        Part("the same with backward", _NORMS_COMPILED["forward+backward"]),
        Part("passes as written and compiled, for each size", _COMPILED),
    ),
    Problem.of(
        "torch_compile",
        ("2025", "2026"),
        "attention alone and the whole model under torch.compile",
        Part("attention as written and compiled", _COMPILED_ALONE),
        Part("passes of the model as written and compiled", _COMPILED),
    ),
    Problem.of(
        "flash_benchmarking",
        ("2025", "2026"),
        "your FlashAttention-2 against plain attention",
        Part(
            "forward, backward and both, for each length, width and precision",
            _DO_BENCH_ALONE,
            "your kernel is named with --attention naive,package.module:function; without it torch's own is shown",
        ),
    ),
)
"""In the order of the handouts."""

LEADERBOARDS: tuple[Problem, ...] = (
    Problem.of(
        "leaderboard",
        ("2025",),
        "forward and backward of attention, as do_bench times it",
        Part(
            "time of forward and backward together: 16 heads of width 64, 16,384 tokens",
            tuple(each._replace(where=_JUDGED_ALONE) for each in (Answer("layout", "leaderboard"), *_DO_BENCH_ALONE)),
            "your kernel is named with --attention package.module:function; its time is yours to submit",
        ),
    ),
    Problem.of(
        "leaderboard",
        ("2026",),
        "a training step of the 8B model, as do_bench times it",
        Part(
            "time of a training step, and the whole run from empty compile caches beside its 10 minutes",
            _LEADERBOARD,
            "the handout times two GPUs: --ranks 2 with --parallel; your model is named with --model; its time is "
            "yours to submit",
        ),
        gpu="180 GB and its times",
    ),
)


PROBLEMS: tuple[Problem, ...] = (*ONE_DEVICE, *SEVERAL_RANKS, *LEADERBOARDS)
"""In the order of the handouts. A name has one row for each way in which editions ask for it."""
EDITIONS = tuple(sorted({edition for row in PROBLEMS for edition in row.editions}, reverse=True))
"""The newest first."""


def problem_named(name: str, editions: tuple[str, ...] = ()) -> tuple[Problem, str]:
    """The problem of that name, ``EDITION/NAME`` or ``NAME``, its own or its preset's, and its edition: the first of
    `editions` that has it, else its newest. Raises `SpecError` naming the known ones."""
    asked, slash, word = name.rpartition("/")
    rows = {
        edition: row
        for row in reversed(PROBLEMS)  # of those with the same preset the first
        if plain(word) in (plain(row.name), plain(row.preset_name or row.name))
        for edition in row.editions
    }
    for edition in (asked,) if slash else (*editions, *sorted(rows, reverse=True)):
        if edition in rows:
            return rows[edition], edition
    known = [row.name for row in PROBLEMS if not slash or asked in row.editions] or [row.name for row in PROBLEMS]
    raise SpecError("problem", name, expected(word, known, see="`cs336-tui problems` lists them"))


def problem_of_preset(name: str) -> str:
    """The problem whose preset this is; empty for another preset."""
    return next((row.name for edition, row in every_problem() if row.preset(edition) == name), "")


def every_problem() -> Iterator[tuple[str, Problem]]:
    """Each edition with each of its problems, the newest edition first."""
    for edition in EDITIONS:
        yield from ((edition, row) for row in PROBLEMS if edition in row.editions)
