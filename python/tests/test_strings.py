"""Strings of several backends, and PyTorch's own checks of one, over real sidecars: where PyTorch lets Python make a backend."""

import gc
import os
import unittest

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import group
from sidecars import Sidecars, needed
from test_backend import every_collective, train_with_ddp

BESIDE = "cpu:hfreduce,cuda:gloo"


def beside_another(backend):
    """Everything that a group of ours does, as one backend of a string."""
    dist.init_process_group(backend)
    ours = fireflyer.backend_of()
    seen = every_collective()
    used = ours.uses_sidecar, ours is fireflyer.backend_of(None, torch.device("cpu"))
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    return used, seen, fireflyer.participants(work), tuple(fireflyer.members())[1], ours.gloo_calls


def train_beside_another(backend):
    """DistributedDataParallel over one backend of a string."""
    dist.init_process_group(backend)
    return train_with_ddp(), fireflyer.backend_of().gloo_calls


def for_the_gpu_alone():
    """Tensors of the host go over the other backend."""
    dist.init_process_group("cpu:gloo,cuda:hfreduce")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return (
        tensor.item(),
        fireflyer.backend_of(None, torch.device("cpu")),
        fireflyer.backend_of().uses_sidecar,
    )


def come_back():
    """A group is destroyed and made again: the sidecar serves one at a time."""
    used = []
    for _ in range(2):
        dist.init_process_group(BESIDE)
        dist.all_reduce(torch.ones(1))
        used.append(fireflyer.backend_of().uses_sidecar)
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    return used


def checked():
    """A script with PyTorch's check of arguments on all ranks, and its flight recorder."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    dist.init_process_group("hfreduce")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    try:
        dist.all_reduce(torch.ones(1 + dist.get_rank() % 2))
    except RuntimeError as error:
        return tensor.item(), type(error).__name__, str(error)
    return None


@needed
@unittest.skipUnless(
    group.has_backends(), "this version of PyTorch does not let Python make a backend"
)
class StringsTest(unittest.TestCase):
    def run_in(self, function, *arguments):
        with Sidecars(2, 2) as sidecars:
            variables = sidecars.variables()
            return gang.successes(
                gang.run(function, 4, *arguments, backend=None, variables=variables)
            )

    def test_a_backend_of_a_string_does_what_a_group_does(self):
        theirs = gang.successes(gang.run(every_collective, 4, backend="gloo"))
        for rank, (used, seen, ranks, members, calls) in enumerate(
            self.run_in(beside_another, BESIDE)
        ):
            self.assertEqual((used, ranks, members), ((True, True), 4, 4))
            self.assertEqual(seen, theirs[rank])
            self.assertGreater(calls, 0)

    def test_ddp_learns_over_a_backend_of_a_string(self):
        results = self.run_in(train_beside_another, BESIDE)
        for (losses, weights), calls in results:
            self.assertLess(losses[-1], losses[0])
            self.assertEqual(weights, results[0][0][1])
            self.assertEqual(calls, 0)

    def test_tensors_of_another_device_go_over_the_other_backend(self):
        self.assertEqual(self.run_in(for_the_gpu_alone), [(4, None, True)] * 4)

    def test_a_group_of_several_backends_can_be_made_again(self):
        self.assertEqual(self.run_in(come_back), [[True, True]] * 4)

    def test_pytorchs_own_checks_see_what_ranks_call(self):
        for total, kind, text in self.run_in(checked):
            self.assertEqual(total, 4)
            self.assertIn("Detected mismatch", f"{kind}: {text}")
