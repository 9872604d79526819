"""A student's containers of several ranks, right ones and wrong ones, under the names of the course's adapters."""

import copy
import os
import threading
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef


class Individual(nn.Module):
    """Sends each gradient as soon as it is there."""

    starts_equal = True
    averages = True
    leaves_out = ""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.works: list[tuple[dist.Work, torch.Tensor]] = []
        for name, parameter in module.named_parameters():
            if self.starts_equal:
                dist.broadcast(parameter.data, src=0)
            if parameter.requires_grad and name != self.leaves_out:
                parameter.register_post_accumulate_grad_hook(self._send)

    def _send(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None
        self.works.append((work, parameter.grad))

    def forward(self, *arguments):
        return self.module(*arguments)

    def finish_gradient_synchronization(self) -> None:
        for work, gradient in self.works:
            work.wait()
            if self.averages:
                gradient /= dist.get_world_size()
        self.works.clear()


class AsUnderTorchrun(Individual):
    """Asks for its rank by name and in the environment, and trains a copy of the model."""

    def __init__(self, module: nn.Module, rank: int, world_size: int) -> None:
        told = [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
        assert told == [rank, rank, world_size, world_size] == [dist.get_rank()] * 2 + [dist.get_world_size()] * 2
        super().__init__(copy.deepcopy(module))


class TellsItsPlace(Individual):
    """Prints the place that the environment tells a rank, and whether torch meets in the store that it names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        told = os.environ
        store, rank, ranks = next(dist.rendezvous("env://"))
        assert (rank, ranks) == (dist.get_rank(), dist.get_world_size())
        print(
            f"place {told['RANK']} of {told['WORLD_SIZE']}, local {told['LOCAL_RANK']} of {told['LOCAL_WORLD_SIZE']},",
            f"node {told['NODE_RANK']}, store {store.num_keys() > 0}",
        )


class Sums(Individual):
    averages = False


class Forgets(Individual):
    leaves_out = "layers.0.attention_norm.weight"


class StartsUnequal(Individual):
    starts_equal = False


def get_ddp(module: nn.Module) -> nn.Module:
    return Individual(module)


def ddp_on_after_backward(ddp_model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    ddp_model.finish_gradient_synchronization()


ddp_bucketed_on_after_backward = fsdp_on_after_backward = ddp_on_after_backward


def get_ddp_individual_parameters(module: nn.Module) -> nn.Module:
    """Of 2024 and 2025; nothing beside it, so that the container's own method is called."""
    return Individual(module)


class Hangs(Individual):
    """The last rank never ends its first forward."""

    def forward(self, *arguments):
        if dist.get_rank() == dist.get_world_size() - 1:
            threading.Event().wait()
        return super().forward(*arguments)


class RunsOut(Individual):
    """The first rank runs out of memory in its third forward."""

    forwards = 0

    def forward(self, *arguments):
        self.forwards += 1
        if dist.get_rank() == 0 and self.forwards == 3:
            raise MemoryError("no memory for it")
        return super().forward(*arguments)


class Bucketed(nn.Module):
    """Sends gradients in buckets of at most so many megabytes, in the order in which backward makes them."""

    def __init__(self, module: nn.Module, bucket_size_mb: float) -> None:
        super().__init__()
        self.module = module
        self.buckets: list[list[torch.Tensor]] = [[]]
        self.bucket_of: dict[torch.Tensor, int] = {}
        self.waiting: list[int] = []
        self.works: list[tuple[dist.Work, torch.Tensor, list[torch.Tensor]]] = []
        size = 0.0
        for parameter in reversed(list(module.parameters())):
            dist.broadcast(parameter.data, src=0)
            if not parameter.requires_grad:
                continue
            size += parameter.nbytes
            if self.buckets[-1] and size > bucket_size_mb * 1e6:
                self.buckets.append([])
                size = parameter.nbytes
            self.buckets[-1].append(parameter)
            self.bucket_of[parameter] = len(self.buckets) - 1
            parameter.register_post_accumulate_grad_hook(self._ready)

    def start(self) -> None:
        self.waiting = [len(bucket) for bucket in self.buckets]

    def _ready(self, parameter: torch.Tensor) -> None:
        number = self.bucket_of[parameter]
        self.waiting[number] -= 1
        if not self.waiting[number]:
            bucket = self.buckets[number]
            flat = torch.cat([each.grad.flatten() for each in bucket])
            self.works.append((dist.all_reduce(flat, async_op=True), flat, bucket))

    def forward(self, *arguments):
        return self.module(*arguments)

    def finish_gradient_synchronization(self) -> None:
        for work, flat, bucket in self.works:
            work.wait()
            parts = (flat / dist.get_world_size()).split([each.numel() for each in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.works.clear()


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float) -> nn.Module:
    return Bucketed(module, bucket_size_mb)


def ddp_bucketed_on_train_batch_start(ddp_model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    ddp_model.start()


class Sharded(nn.Module):
    """Each rank keeps an equal part of each parameter, and gathers the whole ones for a step."""

    averages = True

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.module, self.compute_dtype = module, compute_dtype
        self.owners = [
            (owner, name, f"{path}.{name}" if path else name, parameter.shape)
            for path, owner in module.named_modules()
            for name, parameter in owner.named_parameters(recurse=False)
        ]
        self.shards = nn.ParameterList()
        self.used: list[torch.Tensor] = []
        for owner, name, _, _ in self.owners:
            flat = self._padded(owner._parameters.pop(name).detach())
            self.shards.append(nn.Parameter(flat.chunk(dist.get_world_size())[dist.get_rank()].clone()))

    @staticmethod
    def _padded(whole: torch.Tensor) -> torch.Tensor:
        flat = whole.flatten()
        return torch.nn.functional.pad(flat, (0, -flat.numel() % dist.get_world_size()))

    def gathered(self, shard: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        flat = shard.new_empty(shard.numel() * dist.get_world_size())
        dist.all_gather_into_tensor(flat, shard.detach())
        return flat[: shape.numel()].view(shape)

    def forward(self, *arguments):
        self.used = []
        for (owner, name, _, shape), shard in zip(self.owners, self.shards, strict=True):
            whole = self.gathered(shard, shape).to(self.compute_dtype or shard.dtype).requires_grad_()
            setattr(owner, name, whole)
            self.used.append(whole)
        return self.module(*arguments)

    def finish_gradient_synchronization(self) -> None:
        for whole, shard in zip(self.used, self.shards, strict=True):
            gradient = torch.empty_like(shard)
            dist.reduce_scatter_tensor(gradient, self._padded(whole.grad).to(shard.dtype))
            if self.averages:
                gradient /= dist.get_world_size()
            shard.grad = gradient if shard.grad is None else shard.grad + gradient


class Zero3(Sharded):
    """Nothing in its name says that it shards, and it gathers by a method of its own."""

    def gather_full_params(self) -> dict[str, torch.Tensor]:
        return fsdp_gather_full_params(self)


class SumsShards(Sharded):
    averages = False


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
    return Sharded(module, compute_dtype)


def get_fsdp_in_bf16(module: nn.Module, compute_dtype: torch.dtype) -> nn.Module:
    """Nothing beside it but what gathers, and no default of its own."""
    assert compute_dtype == torch.bfloat16
    return Sharded(module, compute_dtype)


def get_fsdp_that_sums(module: nn.Module, compute_dtype: torch.dtype | None = None) -> nn.Module:
    return SumsShards(module, compute_dtype)


def fsdp_gather_full_params(fsdp_model: nn.Module) -> dict[str, torch.Tensor]:
    of_each = zip(fsdp_model.owners, fsdp_model.shards, strict=True)
    return {path: fsdp_model.gathered(shard, shape) for (_, _, path, shape), shard in of_each}


class ShardedOptimizer(torch.optim.Optimizer):
    """Each rank updates every n-th parameter and sends it to the others."""

    sends = True
    leaves_out = 0

    def __init__(self, params, optimizer_cls: type[torch.optim.Optimizer], **kwargs) -> None:
        everything = list(params)
        super().__init__(everything, kwargs)
        self.everything = everything[self.leaves_out :]
        self.inner = optimizer_cls(self.everything[dist.get_rank() :: dist.get_world_size()], **kwargs)

    def step(self, closure=None):
        self.inner.step(closure)
        for number, parameter in enumerate(self.everything if self.sends else ()):
            dist.broadcast(parameter.data, src=number % dist.get_world_size())


class BareOptimizer(ShardedOptimizer):
    """Passes the course's tests without the constructor of its base class."""

    def __init__(self, params, optimizer_cls: type[torch.optim.Optimizer], **kwargs) -> None:
        self.everything = list(params)
        self.inner = optimizer_cls(self.everything[dist.get_rank() :: dist.get_world_size()], **kwargs)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        del set_to_none
        for parameter in self.everything:
            parameter.grad = None


class Keeps(ShardedOptimizer):
    sends = False


class LeavesOut(ShardedOptimizer):
    leaves_out = 1


class MovesNothing(ShardedOptimizer):
    """An optimizer that keeps all parameters, and whose ranks agree in that."""

    def step(self, closure=None):
        pass


def get_sharded_optimizer(params, optimizer_cls: type[torch.optim.Optimizer], **kwargs) -> torch.optim.Optimizer:
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


class Breaks(Individual):
    """The second rank's synchronisation has a mistake."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        if dist.get_rank() == 1:
            raise KeyError("bucket 7")


class NeverLeaves(Breaks):
    """The others wait for the second rank, and leaving the group waits for them, as it may under NCCL."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        dist.destroy_process_group = lambda: threading.Event().wait()

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        dist.barrier()


class Plain(nn.Embedding):
    """A model that is compiled in a moment."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size, vocab_size)


class HasUnused(Plain):
    """A model with a parameter that no step uses."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.unused = nn.Parameter(torch.zeros(3))


class Toy(nn.Module):
    """Tied weights, a frozen bias and parameter, and a buffer, as the models of the course's tests have them."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.linear = nn.Linear(d_model, d_model)
        self.linear.bias.requires_grad = False
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.head.weight = self.embedding.weight
        self.fixed = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(self.embedding(tokens)) * self.scale)


class OnItsGpu(Plain):
    """A model whose process may use no GPU but its own."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        gpus = range(torch.cuda.device_count())
        used = [gpu for gpu in gpus if torch.cuda.memory_stats(gpu).get("allocation.all.allocated")]
        if used != [tokens.device.index]:
            raise RuntimeError(f"GPUs {used} are in use by a rank on {tokens.device}")
        return super().forward(tokens)


class Draws(Plain):
    """A model that drops in evaluation, too."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(tokens), 0.5, training=True)


class Drops(nn.Sequential):
    """A model that drops in training only."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(nn.Embedding(vocab_size, vocab_size), nn.Dropout(0.5))


class HasNoRoomAlone(Plain):
    """A model whose first step has no memory on the first rank."""

    forwards = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        HasNoRoomAlone.forwards += 1
        if HasNoRoomAlone.forwards == 1 and dist.get_rank() == 0:
            raise MemoryError("no memory for it")
        return super().forward(tokens)


class WrongWhenCompiled(Individual):
    """Computes something else once it is compiled."""

    def forward(self, *arguments):
        return super().forward(*arguments) * (2 if torch.compiler.is_compiling() else 1)


class Unlike(nn.Embedding):
    """A model with one more token on each further rank."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size + dist.get_rank(), vocab_size)


class SendsUnequal(Individual):
    """The second rank sends less of the last gradient."""

    def finish_gradient_synchronization(self) -> None:
        super().finish_gradient_synchronization()
        dist.all_reduce(torch.zeros(64 - 8 * dist.get_rank()))


class BuiltAlone(nn.Module):
    """A model that is built only if no parameter of the models before it is alive."""

    parts: ClassVar[list[StorageWeakRef]] = []  # Python's own weak references do not see what C++ keeps

    def __init__(self, vocab_size: int) -> None:
        if alive := sum(not each.expired() for each in self.parts):
            raise RuntimeError(f"{alive} parameters of the models before this one are alive")
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, vocab_size)
        self.layers = nn.ModuleList(nn.Linear(vocab_size, vocab_size) for _ in range(2))

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:  # before the hooks of FSDP, which gather
        own = (each.to_local() if isinstance(each, DTensor) else each for each in self.parameters())
        self.parts += [StorageWeakRef(each.untyped_storage()) for each in own]
        return super().__call__(tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found = self.embedding(tokens)
        for layer in self.layers:
            found = layer(found)
        return found
