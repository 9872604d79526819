"""The random batch."""

import torch

from cs336_tui.worker.workload.transformer import random_batch


def test_targets_are_the_next_tokens() -> None:
    batch = random_batch(4, 16, 100, device="cpu", seed=0)
    assert batch.inputs.shape == batch.targets.shape == (4, 16)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.inputs.is_contiguous()
    assert batch.targets.is_contiguous()


def test_tokens_cover_the_vocabulary_and_no_more() -> None:
    inputs = random_batch(8, 512, 10, device="cpu", seed=0).inputs
    assert inputs.unique().tolist() == list(range(10))


def test_same_seed_same_tokens() -> None:
    first, again, other = (random_batch(4, 16, 100, device="cpu", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
