"""Language models that work where no clock sees it, or replace clocks and functions that the tool uses. They have the
parameters of `lm.LM` under the same names, so that the two can be compared weight by weight."""

import gc
import os
import sys
import threading
import time

import torch
import torch.nn.functional as F
from lm import LM
from shared import nothing
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only

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


class PatchesActivation(LM):
    """Replaces torch's SiLU by nothing, for the reference, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.nn.functional.silu = lambda x, inplace=False: x  # noqa: ARG005


class PatchesMask(LM):
    """Replaces the tensor's masking by nothing, so that attention sees the future, in the reference, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.Tensor.masked_fill = lambda self, *_: self


class PatchesModule(LM):
    """Replaces the forward of torch's embedding by one that looks a single row up, in the reference, too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        torch.nn.Embedding.forward = lambda self, tokens: self.weight[0].expand(*tokens.shape, -1)
