"""torch.compile around and inside what calls collectives: what works over gloo works over hfreduce, with the same values."""

import subprocess
import sys
import unittest

import gang
import torch
import torch.distributed as dist
from sidecars import Sidecars, needed
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
SIZE = 16
#: Heavy ones run over the newest PyTorch only.
IS_NEW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)


def layers():
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(SIZE, 2 * SIZE), torch.nn.ReLU(), torch.nn.Linear(2 * SIZE, SIZE)
    )


def untouched(model, **options):
    return model


def ddp_outside(compile):
    return compile(DistributedDataParallel(layers()))


def ddp_inside(compile):
    return DistributedDataParallel(compile(layers()))


def fsdp(compile):
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for part in (model[0], model[2], model):
        fully_shard(part)
    return compile(model)


def tensor_parallel(compile):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return compile(parallelize_module(layers(), mesh, plan))


WAYS = {"DDP outside": ddp_outside, "DDP inside": ddp_inside, "FSDP2": fsdp, "TP": tensor_parallel}


def train(make, compile):
    """The losses of some steps."""
    model = make(compile)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        # Alike on the ranks that share a batch, different ones elsewhere.
        torch.manual_seed(step if make is tensor_parallel else 10 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = model(torch.randn(4, SIZE)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def collectives(compile):
    """Collectives within one graph."""
    import torch.distributed._functional_collectives as functional

    def step(given):
        summed = functional.all_reduce(given * 2, "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(summed + dist.get_rank(), 0, dist.group.WORLD)
        part = functional.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD)
        in_place = part + 1
        dist.all_reduce(in_place)
        return in_place

    run = compile(step, fullgraph=True)
    return [run(torch.arange(4.0) + number).sum().item() for number in range(STEPS)]


def attempt(way, backend):
    """The result of a way with a backend, or the text of its error."""

    def compile(what, **options):
        return torch.compile(what, backend=backend, **options)

    chosen = untouched if backend is None else compile
    try:
        return train(WAYS[way], chosen) if way in WAYS else collectives(chosen)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def compiled(ways, backends, optimize):
    """The results of each way with each backend, and of the way that is not compiled."""
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = optimize
    results = {}
    for way in ways:
        for backend in (None, *backends):
            torch._dynamo.reset()
            results[way, backend] = attempt(way, backend)
    return results


class CompileTest(unittest.TestCase):
    def compare(self, ways, backends, optimize=True):
        with Sidecars(2, 1) as sidecars:
            ours = gang.successes(sidecars.run(compiled, ways, backends, optimize))
        theirs = gang.successes(gang.run(compiled, 2, ways, backends, optimize))
        worked = 0
        for mine, other in zip(ours, theirs):
            for (way, backend), values in other.items():
                with self.subTest(way, backend=backend):
                    if isinstance(values, str):
                        continue  # This PyTorch does not do it over gloo.
                    worked += 1
                    self.assertIsInstance(mine[way, backend], list, mine[way, backend])
                    torch.testing.assert_close(mine[way, backend], mine[way, None])
        return worked

    def test_import_torch_and_fireflyer_does_not_import_dynamo(self):
        code = (
            "import sys, torch, fireflyer, fireflyer.group, fireflyer.hooks\n"
            "sys.exit('torch._dynamo' in sys.modules)"
        )
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    @needed
    def test_a_compiled_model_in_or_around_ddp_trains_over_sidecars(self):
        ways = ["DDP outside", "DDP inside"]
        self.assertEqual(self.compare(ways, ["aot_eager"]), 2 * 2 * 2)

    @needed
    @unittest.skipUnless(IS_NEW, "runs over the newest PyTorch")
    def test_what_compiles_over_gloo_compiles_over_sidecars(self):
        ways = [*WAYS, "collectives"]
        self.assertGreaterEqual(self.compare(ways, ["aot_eager"]), 2 * 2 * 3)

    @needed
    @unittest.skipUnless(IS_NEW, "runs over the newest PyTorch")
    def test_a_compiled_model_around_ddp_trains_without_dynamos_splitting(self):
        self.compare(["DDP outside"], ["eager"], optimize=False)
