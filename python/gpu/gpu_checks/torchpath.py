"""What PyTorch puts between a script and a collective works: DDP with futures, hooks, FSDP2, objects, inference mode, other
allocators, and a GPU that is not the first.

A model that two ranks train for 50 steps has the parameters of one that a single process trains on the whole batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import device, gang, kit
from .findings import Findings

_STEPS, _REHEARSED_STEPS = 50, 3
_BATCH, _WIDTH = 32, 256
_ALLOCATORS = {
    "PyTorch's allocator": {},
    "expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
#: Largest relative difference to the single process: sums of floats in another order; with sums in bfloat16.
_TOLERANCE, _TOLERANCE_BF16 = 1e-3, 5e-2


def check(found: Findings) -> None:
    """A gang for each allocator; the first one does all."""
    rehearses = kit.current().rehearses
    steps = _REHEARSED_STEPS if rehearses else _STEPS
    for number, (allocator, variables) in enumerate(_ALLOCATORS.items()):
        if rehearses and number > 0:
            break  # The CPU has no other.
        arguments = {"all_of_it": number == 0, "steps": steps}
        _judge(found, gang.run(__name__, "train", arguments, variables=variables), allocator)
    if rehearses or torch.cuda.device_count() < 2:
        found.not_judged("a GPU that is not the first", "this machine shows one GPU")
        return
    seen = gang.run(__name__, "second_gpu", {})
    found.holds("reduces on cuda:1", all(seen))
    seen = gang.run(__name__, "first_gpu", {}, variables={"CUDA_VISIBLE_DEVICES": "1"})
    found.holds("reduces on cuda:0 of CUDA_VISIBLE_DEVICES=1", all(seen))


def quick(found: Findings, before: list[str]) -> None:
    """Once, with ranks that are started under another program."""
    seen = gang.run(
        __name__, "train", {"all_of_it": False, "steps": _REHEARSED_STEPS}, before=before
    )
    _judge(found, seen, "PyTorch's allocator")


def _judge(found: Findings, seen: list[dict[str, str]], allocator: str) -> None:
    for case in seen[0]:
        wrong = [rank[case] for rank in seen if rank[case]]
        found.holds(f"{case} with {allocator}", not wrong, "; ".join(wrong))


def train(all_of_it: bool, steps: int) -> dict[str, str]:
    """In each rank: what is wrong, by case; empty where nothing is."""
    alone = _model()
    _learn(alone, steps, lambda batch: batch)
    seen = {"DDP": _difference(_ddp(steps, None), alone, _TOLERANCE)}
    if not all_of_it:
        return seen
    import fireflyer

    for name, hook, tolerance in (
        ("DDP with hooks.allreduce", fireflyer.hooks.allreduce, _TOLERANCE),
        ("DDP with hooks.bf16", fireflyer.hooks.bf16, _TOLERANCE_BF16),
    ):
        seen[name] = _difference(_ddp(steps, hook), alone, tolerance)
    if not kit.current().rehearses:
        # Its streams of the CPU lack functions in older versions of PyTorch.
        seen["FSDP2"] = _fsdp(steps, alone)
    objects: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    ranks = [one["rank"] for one in objects]
    seen["all_gather_object"] = "" if ranks == [*range(len(ranks))] else f"gathered {objects}"
    with torch.inference_mode():
        tensor = torch.full((1000,), float(dist.get_rank() + 1), device=device.DEVICE)
        dist.all_reduce(tensor)
        total = float(tensor.mean())
    seen["inference mode"] = "" if total == sum(r + 1 for r in ranks) else f"summed to {total}"
    return seen


def _model() -> torch.nn.Module:
    torch.manual_seed(7)
    layers = [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.GELU(), torch.nn.Linear(_WIDTH, _WIDTH)]
    return torch.nn.Sequential(*layers).to(device.DEVICE)


def _learn(model: torch.nn.Module, steps: int, own: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Trains on what `own` takes of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    random = torch.Generator().manual_seed(3)
    for _ in range(steps):
        batch = torch.randn(_BATCH, _WIDTH, generator=random)
        target = batch.roll(1, dims=1)
        output = model(own(batch).to(device.DEVICE))
        loss = torch.nn.functional.mse_loss(output, own(target).to(device.DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    device.synchronize()


def _part(batch: torch.Tensor) -> torch.Tensor:
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def _ddp(steps: int, hook: Any) -> torch.nn.Module:
    model = _model()
    # Small buckets, so that several are on their way at once.
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2)
    if hook is not None:
        import fireflyer

        ddp.register_comm_hook(fireflyer.hooks.State(), hook)
    _learn(ddp, steps, _part)
    return model


def _fsdp(steps: int, alone: torch.nn.Module) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = _model()
    mesh = init_device_mesh(device.DEVICE.type, (dist.get_world_size(),))
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _learn(model, steps, _part)
    whole = copy.deepcopy(alone)
    for place, parameter in zip(whole.parameters(), model.parameters()):
        place.data.copy_(parameter.full_tensor())
    return _difference(whole, alone, _TOLERANCE)


def _difference(model: torch.nn.Module, alone: torch.nn.Module, tolerance: float) -> str:
    """What differs from the model that one process has trained."""
    for (name, one), other in zip(model.named_parameters(), alone.parameters()):
        largest = float((one - other).abs().max() / other.abs().max())
        if not largest <= tolerance:
            return f"{name} differs by {largest:.2e} of its largest element"
    return ""


def second_gpu() -> bool:
    """In each rank: whether a sum on cuda:1 is right."""
    return _sums(torch.device("cuda", 1))


def first_gpu() -> bool:
    """In each rank: whether a sum on cuda:0 is right."""
    return _sums(torch.device("cuda", 0))


def _sums(place: torch.device) -> bool:
    torch.cuda.set_device(place)
    tensor = torch.full((3 << 20,), float(dist.get_rank() + 1), device=place)
    dist.all_reduce(tensor)
    size = dist.get_world_size()
    return bool(tensor.eq(size * (size + 1) / 2).all())
