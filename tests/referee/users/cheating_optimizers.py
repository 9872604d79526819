"""Optimizers that would be AdamW, and move parameters elsewhere or not at all. All have the defaults of torch's."""

import gc
import threading

import torch

STEPS = [0]


class AdamW(torch.optim.AdamW):
    """An honest one, whose step can be left out."""

    def really(self):
        """Take the step of torch's AdamW."""
        return torch.optim.AdamW.step(self)

    def gradients(self):
        parameters = (each for group in self.param_groups for each in group["params"])
        return [each.grad for each in parameters if each.grad is not None]


class Nothing(AdamW):
    """Moves nothing."""

    def step(self, closure=None):
        pass


class FirstParameter(AdamW):
    """Moves the first parameter only."""

    def __init__(self, params, lr=1e-3):
        super().__init__(list(params)[:1], lr)


class OneElement(torch.optim.Optimizer):
    """Moves one number of each parameter; it does not say that it is AdamW."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.view(-1)[0] -= group["lr"]


class SmallParameters(AdamW):
    """Leaves the largest parameters as they are."""

    def __init__(self, params, lr=1e-3):
        params = list(params)
        most = max(each.numel() for each in params)
        super().__init__([each for each in params if each.numel() < most], lr)


class AllButTheLast(AdamW):
    """Leaves the last parameter as it is."""

    def __init__(self, params, lr=1e-3):
        super().__init__(list(params)[:-1], lr)


class FirstRows(AdamW):
    """Moves the first half of the rows of each parameter."""

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        parameters = [each for group in self.param_groups for each in group["params"]]
        before = [each[len(each) // 2 :].clone() for each in parameters]
        self.really()
        for each, rest in zip(parameters, before, strict=True):
            each[len(each) // 2 :] = rest


class EverySecondStep(AdamW):
    """Takes every second step."""

    steps = 0

    def step(self, closure=None):  # noqa: ARG002
        self.steps += 1
        if self.steps % 2:
            self.really()


class EveryFourthStep(AdamW):
    """Takes every fourth step, of which the compared one is."""

    steps = 0

    def step(self, closure=None):  # noqa: ARG002
        self.steps += 1
        if self.steps % 4 == 0:
            self.really()


class MatricesEveryFourthStep(AdamW):
    """Moves vectors in each step and matrices in every fourth."""

    steps = 0

    def step(self, closure=None):  # noqa: ARG002
        self.steps += 1
        for group in self.param_groups if self.steps % 4 else ():
            for each in group["params"]:
                each.grad = None if each.dim() > 1 else each.grad
        self.really()


class NoneWhileMeasured(AdamW):
    """Takes no step of the twelve that are measured after three."""

    steps = 0

    def step(self, closure=None):  # noqa: ARG002
        self.steps += 1
        if not 3 < self.steps <= 15:
            self.really()


class LeftColumns(AdamW):
    """Drops the gradients of the right half of each parameter."""

    def step(self, closure=None):  # noqa: ARG002
        for each in self.gradients():
            each[..., each.shape[-1] // 2 :] = 0
        self.really()


class ClearsAndStays(AdamW):
    """Clears the gradients, and moves nothing."""

    def step(self, closure=None):  # noqa: ARG002
        self.zero_grad()


class HonestAtFirst(AdamW):
    """Takes its first steps."""

    steps = 0

    def step(self, closure=None):  # noqa: ARG002
        self.steps += 1
        if self.steps <= 3:
            self.really()


class HonestAtFirstInProcess(AdamW):
    """Takes the first steps of the process."""

    def step(self, closure=None):  # noqa: ARG002
        STEPS[0] += 1
        if STEPS[0] <= 3:
            self.really()


class WrongSign(AdamW):
    """Climbs instead of going down."""

    def step(self, closure=None):  # noqa: ARG002
        torch._foreach_neg_(self.gradients())
        self.really()


class NoDecay(AdamW):
    """Has no weight decay, and says that it has."""

    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            decay, group["weight_decay"] = group["weight_decay"], 0.0
            self.really()
            group["weight_decay"] = decay


class NoRate(AdamW):
    """Says that it has a learning rate, and takes its steps with none."""

    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            rate, group["lr"] = group["lr"], 0.0
            self.really()
            group["lr"] = rate


class ZeroRate(AdamW):
    """Has a learning rate of zero by default."""

    def __init__(self, params, lr=0.0):
        super().__init__(params, lr)


class FixedState(AdamW):
    """Keeps the moments of its first step."""

    def step(self, closure=None):  # noqa: ARG002
        kept = {each: {name: held.clone() for name, held in state.items()} for each, state in self.state.items()}
        self.really()
        for each, state in kept.items():
            self.state[each].update(state)


class SignAlone(AdamW):
    """Moves each number by the learning rate, with the sign of its gradient and without moments."""

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * each.grad.sign())


class NoBiasCorrection(AdamW):
    """Does not correct the bias of the moments."""

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(each), torch.zeros_like(each)
                state["m"].lerp_(each.grad, 0.1)
                state["v"].lerp_(each.grad.square(), 0.001)
                each.mul_(1 - group["lr"] * group["weight_decay"])
                each.sub_(group["lr"] * state["m"] / (state["v"].sqrt() + 1e-8))


class StateInBfloat16(AdamW):
    """Keeps its moments in bfloat16."""

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["step"] = 0
                    state["m"], state["v"] = (torch.zeros_like(each, dtype=torch.bfloat16) for _ in range(2))
                state["step"] += 1
                first, second = 1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]
                m, v = 0.9 * state["m"].float() + 0.1 * each.grad, 0.999 * state["v"].float() + 0.001 * each.grad**2
                state["m"], state["v"] = m.bfloat16(), v.bfloat16()
                each.mul_(1 - group["lr"] * group["weight_decay"])
                each.sub_(group["lr"] * (state["m"] / first) / ((state["v"] / second).sqrt() + 1e-8))


class InZeroGrad(AdamW):
    """Moves the parameters where gradients are set to zero, one step late."""

    def step(self, closure=None):
        pass

    def zero_grad(self, set_to_none=True):
        self.really()
        super().zero_grad(set_to_none)


class InThread(AdamW):
    """Moves the parameters in a thread, which goes on when the step is over."""

    def step(self, closure=None):  # noqa: ARG002
        threading.Thread(target=self.really, daemon=True).start()


class InCollector(AdamW):
    """Moves the parameters when garbage is collected, between steps."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, lr)
        gc.callbacks.append(lambda phase, _: self.really() if phase == "start" else None)

    def step(self, closure=None):
        pass


class FirstGradients(AdamW):
    """Takes its step with the gradients of the first one, which it keeps."""

    kept = None

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        parameters = [each for group in self.param_groups for each in group["params"]]
        self.kept = self.kept or [each.grad.clone() for each in parameters]
        for each, gradient in zip(parameters, self.kept, strict=True):
            each.grad = gradient.clone()
        self.really()


class TenTimesTheDecay(AdamW):
    """Says that its weight decay is torch's, and decays ten times as much."""

    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            group["weight_decay"] *= 10
            self.really()
            group["weight_decay"] /= 10
