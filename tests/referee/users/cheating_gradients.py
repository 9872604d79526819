"""Language models with right outputs and wrong gradients. They have the parameters of `lm.LM` under the same names, so
that the two can be compared weight by weight."""

import torch
from lm import LM
from shared import WARM_UP


class _Replayed(torch.autograd.Function):
    """The logits as they are; gradients of the parameters that were known before, or zeros."""

    @staticmethod
    def forward(ctx, logits, known, *parameters):
        ctx.known = known or [torch.zeros_like(each) for each in parameters]
        return logits.clone()

    @staticmethod
    def backward(ctx, _):
        return None, None, *(each.clone() for each in ctx.known)


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


class _OfHalfTheBatch(torch.autograd.Function):
    """A linear layer whose weight gets its gradient from half of the sequences, twice."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.mT

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        some = max(len(x) // 2, 1)
        of_weight = gradient[:some].flatten(0, -2).mT @ x[:some].flatten(0, -2)
        return gradient @ weight, of_weight * (len(x) / some)


class HalfOfTheWeightGradients(LM):
    """Works the gradients of its matrices out from half of the sequences."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for each in self.modules():
            if isinstance(each, torch.nn.Linear):
                each.forward = lambda x, layer=each: _OfHalfTheBatch.apply(x, layer.weight)


class FlippedGradients(LM):
    """Has the sign of its gradients wrong below the head."""

    def hidden(self, tokens):
        x = super().hidden(tokens)
        if x.requires_grad:
            x.register_hook(torch.neg)
        return x
