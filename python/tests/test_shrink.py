"""Training through the loss of a rank, where a job goes on without: gradients are averages of those who are left."""

import os
import unittest
from pathlib import Path

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import average
from sidecars import needed
from test_restart import OPERATOR, Restarted
from torch.nn.parallel import DistributedDataParallel

RANKS = 3
#: The step that the last rank does not live to see.
LOST_AT = 3
STEPS = 7
RATE = 0.125
SIZE = 64


def example(rank, step):
    """What a rank sees in a step; the gradient of a sum of products with it is the example itself."""
    return torch.arange(SIZE, dtype=torch.float32).roll(step) * (rank + 1)


def own_run(ranks_of):
    """The weights that those who are left would come to by themselves."""
    weights = torch.zeros(SIZE)
    for step in range(STEPS):
        ranks = ranks_of(step)
        weights -= RATE * torch.stack([example(rank, step) for rank in ranks]).mean(0)
    return weights


class Weights(torch.nn.Module):
    """A model whose gradient is what it is given."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(SIZE))

    def forward(self, given):
        return (self.weights * given).sum()


def train():
    """By DDP as it is, by DDP with a hook of ours, and by an arena; the weights of all three."""
    rank = dist.get_rank()
    plain, hooked, bare = Weights(), Weights(), Weights()
    models = [DistributedDataParallel(plain), DistributedDataParallel(hooked), bare]
    models[1].register_comm_hook(fireflyer.hooks.State(), fireflyer.hooks.allreduce)
    arena = fireflyer.Arena(bare)
    optimizers = [torch.optim.SGD(one.parameters(), lr=RATE) for one in (plain, hooked, bare)]
    for step in range(STEPS):
        if step == LOST_AT and rank == RANKS - 1:
            os._exit(1)
        for model, optimizer in zip(models[:2], optimizers):
            optimizer.zero_grad()
            model(example(rank, step)).backward()
            optimizer.step()
        arena.zero_grad()
        bare(example(rank, step)).backward()
        arena.wait()
        optimizers[2].step()
    return [one.weights.tolist() for one in (plain, hooked, bare)]


def average_elsewhere():
    """Over gloo: the hook that divides by itself, and the arena without shared memory."""
    rank = dist.get_rank()
    model, bare = Weights(), Weights()
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(dist.group.WORLD, average.average)
    wrapped(example(rank, 0)).backward()
    arena = fireflyer.Arena(bare)
    arena.zero_grad()
    bare(example(rank, 0)).backward()
    arena.wait()
    return model.weights.grad.tolist(), bare.weights.grad.tolist()


class ShrinkTest(unittest.TestCase):
    @needed
    @unittest.skipUnless(Path(OPERATOR).exists(), "there is no operator beside the sidecar")
    def test_training_through_a_loss_comes_to_what_those_who_are_left_come_to_alone(self):
        with Restarted(RANKS, 1) as sidecars:
            ends = sidecars.run(train)
        self.assertIsInstance(ends[-1], gang.Died)
        wanted = own_run(lambda step: range(RANKS if step < LOST_AT else RANKS - 1))
        for trained in gang.successes(ends[:-1]):
            for way, weights in zip(("ddp", "hook", "arena"), trained):
                with self.subTest(way):
                    torch.testing.assert_close(torch.tensor(weights), wanted)

    def test_over_gloo_an_average_is_divided_by_all(self):
        wanted = torch.stack([example(rank, 0) for rank in range(2)]).mean(0).tolist()
        ends = gang.successes(gang.run(average_elsewhere, 2, backend="gloo"))
        self.assertEqual(ends, [(wanted, wanted)] * 2)
