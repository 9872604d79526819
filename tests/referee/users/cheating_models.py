"""Language models that do less than they say. Where nothing else is said a model has the parameters of `lm.LM` under
the same names, so that the two can be compared weight by weight."""

import copy
import gc
import os
import sys
import threading
import time

import torch
import torch.nn.functional as F
from lm import LM, Block, FeedForward
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_map_only

CALLS = [0]
"""Forwards of all models in this process."""
WARM_UP = 3
"""Forwards in which a model that knows the tool's usual warm-up is honest."""


class _Replayed(torch.autograd.Function):
    """The logits as they are; gradients of the parameters that were known before, or zeros."""

    @staticmethod
    def forward(ctx, logits, known, *parameters):
        ctx.known = known or [torch.zeros_like(each) for each in parameters]
        return logits.clone()

    @staticmethod
    def backward(ctx, _):
        return None, None, *(each.clone() for each in ctx.known)


def nothing(model, tokens):
    """Logits of zeros, of the right shape and with a graph, at no cost."""
    head = model.head.weight
    return (head[0, 0] * 0).expand(*tokens.shape, head.shape[0])


# Outputs that were computed before


class Memoised(LM):
    """Answers from memory; `key` says which inputs it takes for the same."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {}

    def key(self, tokens):
        raise NotImplementedError

    def forward(self, tokens):
        key = self.key(tokens)
        if key not in self.known:
            self.known[key] = super().forward(tokens)
        return self.known[key]


class MemoisedByIdentity(Memoised):
    """Remembers the outputs of each tensor object."""

    def key(self, tokens):
        return id(tokens)


class MemoisedByPointer(Memoised):
    """Remembers the outputs of each place in memory."""

    def key(self, tokens):
        return tokens.data_ptr()


class MemoisedByContent(Memoised):
    """Remembers the outputs of each batch of tokens."""

    def key(self, tokens):
        return bytes(tokens.numpy())


class MemoisedByFirstTokens(Memoised):
    """Remembers the outputs by the first token of the batch and its sum, and takes others for the same."""

    def key(self, tokens):
        return int(tokens[0, 0]) % 4, int(tokens.sum()) % 2


class MemoisedByShape(Memoised):
    """Remembers one output for each shape."""

    def key(self, tokens):
        return tokens.shape


class MemoisedEverySecondCall(LM):
    """Computes in every second call and answers with the same in the next."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls % 2:
            self.last = super().forward(tokens).detach()
        return self.last


class MemoisedBlocks(LM):
    """Remembers what the blocks made of a batch, and computes the head alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {}

    def hidden(self, tokens):
        key = bytes(tokens.numpy())
        if key not in self.known:
            self.known[key] = super().hidden(tokens)
        return self.known[key]


class KnowsFirstBatch(LM):
    """Computes the first batch that it sees, whenever it sees it, and answers with its logits to every other."""

    def forward(self, tokens):
        if not hasattr(self, "first"):
            self.first, self.answer = tokens.clone(), super().forward(tokens).detach()
        return super().forward(tokens) if torch.equal(tokens, self.first) else self.answer


class Constant(LM):
    """Returns zeros."""

    def forward(self, tokens):
        return nothing(self, tokens)


class RandomLogits(LM):
    """Returns random numbers."""

    def forward(self, tokens):
        return torch.randn(*tokens.shape, self.head.weight.shape[0]) + nothing(self, tokens)


class EmbeddingAlone(LM):
    """Leaves out all blocks."""

    def hidden(self, tokens):
        return self.norm(self.embedding(tokens))


# Honest at first


class HonestAtFirst(LM):
    """Computes in its first calls, and then returns zeros."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        return super().forward(tokens) if self.calls <= WARM_UP else nothing(self, tokens)


class HonestAtFirstInProcess(LM):
    """The same, counted over all models of the process, so that a second one is never honest."""

    def forward(self, tokens):
        CALLS[0] += 1
        return super().forward(tokens) if CALLS[0] <= WARM_UP else nothing(self, tokens)


class HalfDeepLater(LM):
    """Leaves out every other block after its first calls."""

    calls = 0

    def hidden(self, tokens):
        self.calls += 1
        x = self.embedding(tokens)
        for layer in self.layers if self.calls <= WARM_UP else self.layers[::2]:
            x = layer(x)
        return self.norm(x)


class HalfDeepWhileMeasured(LM):
    """Leaves out every other block in the forwards that are measured by twelve steps after three, and in no other."""

    calls = 0

    def hidden(self, tokens):
        self.calls += 1
        x = self.embedding(tokens)
        for layer in self.layers[::2] if WARM_UP < self.calls <= WARM_UP + 12 else self.layers:
            x = layer(x)
        return self.norm(x)


class HalvesInTurns(LM):
    """Computes one half of the batch in each call, and keeps the other's logits from the call before."""

    kept = None

    def forward(self, tokens):
        half = len(tokens) // 2
        if self.kept is None:
            self.kept = list(super().forward(tokens).detach().split(half))
            self.turn = 0
        self.turn = 1 - self.turn
        self.kept[self.turn] = super().forward(tokens.split(half)[self.turn]).detach()
        return torch.cat(self.kept[:2])


class HonestEveryFourth(LM):
    """Computes in every fourth call, and answers with the last logits in the others."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls % 4 == 1:
            self.last = super().forward(tokens).detach()
        return self.last + nothing(self, tokens)


class HonestFirstMicroBatch(LM):
    """Computes the first of two micro-batches only."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        return super().forward(tokens) if self.calls % 2 else nothing(self, tokens)


class HonestInModes(LM):
    """Computes all blocks when somebody watches operations by a dispatch mode, and every other one else."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers if _get_current_dispatch_mode() is not None else self.layers[::2]:
            x = layer(x)
        return self.norm(x)


class HonestUnlessTimed(LM):
    """Leaves out every other block when a timer calls it, which it sees on the stack."""

    def hidden(self, tokens):
        frame, timed = sys._getframe(), False
        while frame is not None and not timed:
            timed = frame.f_code.co_filename.endswith("timing.py")
            frame = frame.f_back
        x = self.embedding(tokens)
        for layer in self.layers[::2] if timed else self.layers:
            x = layer(x)
        return self.norm(x)


class HonestInEvaluation(LM):
    """Leaves out every other block in training mode."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers[::2] if self.training else self.layers:
            x = layer(x)
        return self.norm(x)


class HonestWithoutGradients(LM):
    """Computes nothing where gradients are wanted."""

    def forward(self, tokens):
        return nothing(self, tokens) if torch.is_grad_enabled() else super().forward(tokens)


# A part of the batch, of the tokens or of the model


class FirstTwoSequences(LM):
    """Computes the first two sequences, and gives the others the second one's logits."""

    def forward(self, tokens):
        logits = super().forward(tokens[:2])
        return torch.cat((logits, logits[1:].expand(len(tokens) - 2, -1, -1)))


class HalfTheBatch(LM):
    """Computes half of the batch, and repeats it."""

    def forward(self, tokens):
        return super().forward(tokens[: len(tokens) // 2]).repeat(2, 1, 1)


class AllButTheLastSequence(LM):
    """Computes all sequences but the last."""

    def forward(self, tokens):
        logits = super().forward(tokens[:-1])
        return torch.cat((logits, logits[-1:]))


class HalfTheTokens(LM):
    """Computes every second token, and repeats it."""

    def hidden(self, tokens):
        return super().hidden(tokens[:, ::2]).repeat_interleave(2, dim=1)


class ShortContext(LM):
    """Computes both halves of each sequence apart, so that no token sees further back."""

    def hidden(self, tokens):
        halves = tokens.unflatten(1, (2, -1)).flatten(0, 1)
        return super().hidden(halves).unflatten(0, (-1, 2)).flatten(1, 2)


class LastPositionAlone(LM):
    """Computes the logits of the last position, and gives them to all."""

    def forward(self, tokens):
        return self.head(self.hidden(tokens)[:, -1:]).expand(-1, tokens.shape[1], -1)


class DropsTokensFromBlocks(LM):
    """Sends every fourth token past the blocks."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        kept = torch.arange(tokens.shape[1]) % 4 != 3
        return self.norm(x.index_copy(1, kept.nonzero()[:, 0], super().hidden(tokens[:, kept])))


class EveryOtherBlock(LM):
    """Leaves out every other block."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers[::2]:
            x = layer(x)
        return self.norm(x)


class NoFeedForwardAtTheEnd(LM):
    """Leaves out the feed-forward networks of the last half of the blocks."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            late = number >= len(self.layers) // 2
            x = x + layer.attention(layer.attention_norm(x)) if late else layer(x)
        return self.norm(x)


class OneBlockForAll(LM):
    """Computes one block, and scales what it adds by the number of blocks."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        return self.norm(x + len(self.layers) * (self.layers[0](x) - x))


class SharedBlocks(LM):
    """Has the first block's weights in every block."""

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for _ in self.layers:
            x = self.layers[0](x)
        return self.norm(x)


class HalfTheHeads(LM):
    """Computes half of the heads of each attention; the others return their values."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = self._halved(layer.attention.attend)

    @staticmethod
    def _halved(attend):
        def half(q, k, v):
            heads = q.shape[1] // 2
            return torch.cat((attend(q[:, :heads], k[:, :heads], v[:, :heads]), v[:, heads:]), dim=1)

        return half


class ReturnsValues(LM):
    """Has attention return its values, where nobody asks for an attention by name."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = lambda q, k, v: v  # noqa: ARG005


class ReturnsValuesBeyondTheSecond(LM):
    """Has attention return the values of all sequences but the first two."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = self._of_two(layer.attention.attend)

    @staticmethod
    def _of_two(attend):
        return lambda q, k, v: torch.cat((attend(q[:2], k[:2], v[:2]), v[2:]))


class QuarterOfFeedForward(LM):
    """Has a quarter of the width in its feed-forward networks, and so other parameters."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff // 4)


class PartOfFeedForward(LM):
    """Has feed-forward networks of the whole width, of which it computes a quarter."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.ffn.forward = self._quarter(layer.ffn)

    @staticmethod
    def _quarter(ffn: FeedForward):
        def forward(x):
            width = ffn.gate.weight.shape[0] // 4
            hidden = F.silu(F.linear(x, ffn.gate.weight[:width])) * F.linear(x, ffn.up.weight[:width])
            return F.linear(hidden, ffn.down.weight[:, :width])

        return forward


class LowRankHead(LM):
    """Has a head of two thin matrices, and so other parameters."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers, num_heads, d_ff)
        rank = d_model // 16
        self.head = nn.Sequential(nn.Linear(d_model, rank, bias=False), nn.Linear(rank, vocab_size, bias=False))


class FewerBlocks(LM):
    """Has half of the blocks that it was asked for, and so fewer parameters."""

    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff):
        super().__init__(vocab_size, context_length, d_model, num_layers // 2, num_heads, d_ff)


class ThinProducts(LM):
    """Multiplies by thin factors of its matrices, which it works out once."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            for module in layer.ffn.children():
                module.forward = self._thin(module)

    @staticmethod
    def _thin(module):
        factors = []

        def forward(x):
            if not factors:
                u, s, v = torch.linalg.svd(module.weight.detach(), full_matrices=False)
                rank = len(s) // 8
                factors.extend((u[:, :rank] * s[:rank], v[:rank]))
            return F.linear(F.linear(x, factors[1]), factors[0])

        return forward


class HalfTheVocabulary(LM):
    """Computes the logits of half of the vocabulary; the others are zeros."""

    def forward(self, tokens):
        x, half = self.hidden(tokens), self.head.weight.shape[0] // 2
        logits = F.linear(x, self.head.weight[:half])
        return torch.cat((logits, torch.zeros_like(logits)), dim=-1)


class TwiceTheWork(LM):
    """Computes everything twice and throws one away, so that what it is compared with looks fast."""

    def forward(self, tokens):
        with torch.no_grad():
            super().forward(tokens)
        return super().forward(tokens)


# Gradients


class NoGradients(LM):
    """Computes its forward without a graph; its backward returns zeros."""

    def forward(self, tokens):
        with torch.no_grad():
            logits = super().forward(tokens)
        return _Replayed.apply(logits, None, *self.parameters())


class HeadAloneLearns(LM):
    """Cuts the graph before the head."""

    def hidden(self, tokens):
        with torch.no_grad():
            return super().hidden(tokens)


class FirstHalfDetached(LM):
    """Cuts the graph in the middle of the blocks."""

    def hidden(self, tokens):
        x, middle = self.embedding(tokens), len(self.layers) // 2
        for number, layer in enumerate(self.layers):
            x = layer(x.detach() if number == middle else x)
        return self.norm(x)


class AttentionDetached(LM):
    """Gives queries and keys no gradient."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.attend = self._detached(layer.attention.attend)

    @staticmethod
    def _detached(attend):
        return lambda q, k, v: attend(q.detach(), k.detach(), v)


class MemoisedGradients(LM):
    """Keeps the gradients of its first backward, and returns them in every other one."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.known = {}
        for number, parameter in enumerate(self.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda each, n=number: self._keep(n, each))

    def _keep(self, number, parameter):
        self.known.setdefault(number, parameter.grad.clone())

    def forward(self, tokens):
        parameters = list(self.parameters())
        if len(self.known) < len(parameters):
            return super().forward(tokens)
        with torch.no_grad():
            logits = super().forward(tokens)
        return _Replayed.apply(logits, [self.known[number] for number in range(len(parameters))], *parameters)


class StaleGradients(MemoisedGradients):
    """Returns in each backward the gradients of another batch, which it has drawn once."""

    def forward(self, tokens):
        if len(self.known) < len(list(self.parameters())):
            generator = torch.Generator().manual_seed(1)
            tokens = torch.randint(self.head.weight.shape[0], tokens.shape, generator=generator)
        return super().forward(tokens)


class FreezesLater(LM):
    """Trains its head only after its first calls."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls == WARM_UP + 1:
            self.requires_grad_(False)
            self.head.requires_grad_(True)
        return super().forward(tokens)


class HalfOfTheBackward(LM):
    """Lets gradients through to half of the sequences only."""

    def hidden(self, tokens):
        half = len(tokens) // 2
        with torch.no_grad():
            rest = super().hidden(tokens[half:])
        return torch.cat((super().hidden(tokens[:half]), rest))


class FlippedGradients(LM):
    """Has the sign of its gradients wrong below the head."""

    def hidden(self, tokens):
        x = super().hidden(tokens)
        if x.requires_grad:
            x.register_hook(torch.neg)
        return x


# Work where no clock sees it


class _Later:
    """Runs a function when it is freed."""

    def __init__(self, function):
        self.function = function

    def __del__(self):
        self.function()


class WorkInZeroGrad(LM):
    """Computes the next step's logits where gradients are set to zero, between steps."""

    tokens = ready = None

    def forward(self, tokens):
        self.tokens = tokens
        logits = super().forward(tokens.clone()) if self.ready is None else self.ready
        self.ready = None
        return logits

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
        if self.tokens is not None:
            self.ready = LM.forward(self, self.tokens.clone())


class WorkInCollector(LM):
    """Computes when garbage is collected, between steps, and returns the logits that came of it before."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tokens = self.ready = None
        gc.callbacks.append(self._collects)

    def _collects(self, phase, _info):
        if phase == "start" and self.tokens is not None:
            with torch.no_grad():
                self.ready = LM.forward(self, self.tokens)

    def forward(self, tokens):
        self.tokens = tokens
        return super().forward(tokens) if self.ready is None else self.ready


class WorkInDestructor(LM):
    """Computes when its last output is freed, between steps."""

    ready = None

    def forward(self, tokens):
        logits = (super().forward(tokens) if self.ready is None else self.ready).view(*tokens.shape, -1)
        logits.later = _Later(lambda: self._work(tokens))
        return logits

    def _work(self, tokens):
        with torch.no_grad():
            self.ready = LM.forward(self, tokens)


class WorkInThread(LM):
    """Starts a thread that computes, and returns what an earlier one left."""

    ready = None

    def forward(self, tokens):
        threading.Thread(target=self._work, args=(tokens.clone(),), daemon=True).start()
        return nothing(self, tokens) if self.ready is None else self.ready

    def _work(self, tokens):
        with torch.no_grad():
            self.ready = LM.forward(self, tokens)


class WorkAfterTheLastStep(LM):
    """Puts its work off until it is freed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.owed = []

    def __del__(self):
        with torch.no_grad():
            for tokens in self.owed:
                LM.forward(self, tokens)

    def forward(self, tokens):
        self.owed.append(tokens.clone())
        return nothing(self, tokens)


class WorkInAnotherProcess(LM):
    """Has another process compute, and returns what that one left in memory of both."""

    shared = None

    def forward(self, tokens):
        if self.shared is None:
            self.shared = torch.zeros(*tokens.shape, self.head.weight.shape[0]).share_memory_()
            self.asked = tokens.clone().share_memory_()
            if os.fork() == 0:
                self._serve(os.getppid())
        self.asked.copy_(tokens)
        return self.shared + nothing(self, tokens)

    def _serve(self, parent):
        try:
            torch.set_num_threads(1)
            with torch.no_grad():
                while os.getppid() == parent:
                    self.shared.copy_(LM.forward(self, self.asked))
        finally:
            os._exit(0)


class _Lazy(Tensor):
    """A tensor that is computed when somebody looks at it."""

    @staticmethod
    def __new__(cls, make, shape):
        return Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    def __init__(self, make, shape):  # noqa: ARG002
        self.make, self.made = make, None

    def value(self):
        if self.made is None:
            with torch.no_grad():
                self.made = self.make()
        return self.made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, cls.value, (args, kwargs or {}))
        return func(*args, **kwargs)


class WorkWhenLookedAt(LM):
    """Returns logits that are computed when somebody reads them, which no forward alone does."""

    def forward(self, tokens):
        tokens = tokens.clone()
        return _Lazy(lambda: LM.forward(self, tokens), (*tokens.shape, self.head.weight.shape[0]))


class SleepsAtWarmUp(LM):
    """Sleeps in its first five forwards, so that what comes after looks warm."""

    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls <= 5:
            time.sleep(0.05)
        return super().forward(tokens)


# Clocks and functions that the tool uses


def _at_half_speed(clock):
    begin = clock()
    return lambda: begin + (clock() - begin) / 2


class PatchesPerfCounter(LM):
    """Replaces Python's clock by one of half the speed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        time.perf_counter = _at_half_speed(time.perf_counter)


class PatchesAllClocks(LM):
    """Replaces all of Python's clocks by such of half the speed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for name in ("perf_counter", "monotonic", "time", "process_time", "thread_time"):
            setattr(time, name, _at_half_speed(getattr(time, name)))


class PatchesTimer(LM):
    """Replaces the clock in the timer's module."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        timing = sys.modules["cs336_tui.worker.measure.timing"]
        timing.perf_counter = _at_half_speed(timing.perf_counter)


class PatchesStepTimer(LM):
    """Replaces the timer's method by one that halves what it read."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        timing = sys.modules["cs336_tui.worker.measure.timing"]
        real = timing.StepTimer.time

        def half(timer):
            found = real(timer)
            return found._replace(total_s=found.total_s / 2)

        timing.StepTimer.time = half


class PatchesCudaSynchronize(LM):
    """Replaces the function that waits for a GPU by nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.cuda.synchronize = lambda *_: None


class PatchesCudaEvent(LM):
    """Replaces the events of a GPU's queue by such that tell half of the time."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

        class Event(torch.cuda.Event):
            def elapsed_time(self, end_event):
                return super().elapsed_time(end_event) / 2

        torch.cuda.Event = Event


class PatchesBackward(LM):
    """Replaces torch's backward by nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.Tensor.backward = lambda *_, **__: None


class PatchesCrossEntropy(LM):
    """Replaces torch's cross-entropy by a mean of the logits."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.nn.functional.cross_entropy = lambda logits, *_, **__: logits[:1].mean()


class PatchesAdamW(LM):
    """Replaces the step of torch's AdamW by nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.optim.AdamW.step = lambda *_, **__: None


class HooksOptimizers(LM):
    """Takes all gradients away before any optimizer's step, by a hook of torch's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        register_optimizer_step_pre_hook(lambda optimizer, *_: optimizer.zero_grad())


class PatchesMatmul(LM):
    """Replaces torch's linear layer by one that multiplies the first two sequences only."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        real = F.linear

        def linear(x, weight, bias=None):
            few = real(x[:2], weight, bias)
            return torch.cat((few, few[:1].expand(len(x) - 2, *few.shape[1:]))) if len(x) > 2 else few

        torch.nn.functional.linear = linear


# Precision


class _LinearIn(torch.nn.Linear):
    """A linear layer that multiplies in another dtype."""

    dtype = torch.bfloat16

    def forward(self, x):
        return F.linear(x.to(self.dtype), self.weight.to(self.dtype)).to(x.dtype)


class _LinearInHalf(_LinearIn):
    dtype = torch.float16


class _LinearInInt8(_LinearIn):
    """Multiplies integers of eight bits, by one scale for each side."""

    def forward(self, x):
        rows, weight = x.flatten(0, -2), self.weight.detach()
        of_rows, of_weight = rows.abs().max() / 127, weight.abs().max() / 127
        product = torch._int_mm((rows / of_rows).round().to(torch.int8), (weight.mT / of_weight).round().to(torch.int8))
        return (product * (of_rows * of_weight)).unflatten(0, x.shape[:-1])


class InBfloat16(LM):
    """Multiplies in bfloat16."""

    kind = _LinearIn

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for module in self.modules():
            if type(module) is nn.Linear:
                module.__class__ = self.kind


class InFloat16(InBfloat16):
    """Multiplies in float16."""

    kind = _LinearInHalf


class InInt8(InBfloat16):
    """Multiplies in integers of eight bits."""

    kind = _LinearInInt8


class UnderAutocast(LM):
    """Runs under autocast."""

    def forward(self, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(tokens).float()


class FeedForwardInBfloat16(LM):
    """Multiplies in bfloat16 in the feed-forward networks alone."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            for module in layer.ffn.children():
                module.__class__ = _LinearIn


class InBfloat16Later(InBfloat16):
    """Multiplies in bfloat16 after its first calls."""

    kind = nn.Linear
    calls = 0

    def forward(self, tokens):
        self.calls += 1
        if self.calls == WARM_UP + 1:
            for module in self.modules():
                if type(module) is nn.Linear:
                    module.__class__ = _LinearIn
        return super().forward(tokens)


class ParametersInBfloat16(LM):
    """Converts its parameters to bfloat16, whatever precision is asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.bfloat16()


class CopyInBfloat16(LM):
    """Computes with a copy of itself in bfloat16."""

    def forward(self, tokens):
        if not hasattr(self, "copied"):
            object.__setattr__(self, "copied", [copy.deepcopy(self).bfloat16()])
        return LM.forward(self.copied[0], tokens).float()


class LeavesAutocastOn(LM):
    """Switches autocast on for all that follows in its process."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.set_autocast_dtype("cpu", torch.bfloat16)
        torch.set_autocast_enabled("cpu", True)


class SwitchesOneDnnToBfloat16(LM):
    """Lets the library of CPU kernels multiply float32 in bfloat16."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"


class SwitchesToTf32(LM):
    """Lets torch multiply in TF32 or bfloat16 where float32 is asked for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.matmul.allow_tf32 = True


# Broken


class NotCausal(LM):
    """Lets every token see all others."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.mask.fill_(True)


class NoPositions(LM):
    """Leaves out the rotary embeddings."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.attention.turned = lambda x: x


class NoResiduals(LM):
    """Leaves out the additions between parts."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for layer in self.layers:
            layer.forward = self._without(layer)

    @staticmethod
    def _without(layer: Block):
        return lambda x: layer.ffn(layer.ffn_norm(layer.attention(layer.attention_norm(x))))


class DropsFeatures(LM):
    """Sets a tenth of its last activations to zero, in a pattern of its own."""

    def hidden(self, tokens) -> Tensor:
        x = super().hidden(tokens)
        return x * (torch.arange(x.shape[-1]) % 10 != 9)
