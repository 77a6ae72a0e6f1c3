"""Groups of some ranks over real sidecars: 2 nodes of 2 ranks on the loopback."""

import gc
import unittest

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError
from sidecars import Sidecars, needed
from test_hfreduce import Nobody

#: Two over the nodes, two within them, one of three ranks, and one of all.
GROUPS = ([0, 2], [1, 3], [0, 1], [2, 3], [0, 1, 3], [0, 1, 2, 3])


def open_groups():
    """The groups of this rank, with their ranks; every rank calls for all of them, as PyTorch wants it."""
    rank = dist.get_rank()
    groups = [(dist.new_group(ranks), ranks) for ranks in GROUPS]
    mine = [(group, ranks) for group, ranks in groups if rank in ranks]
    for group, _ in mine:
        assert group.uses_sidecar
        group.communicator.gloo = Nobody()
    return mine


def exchange(group, ranks):
    """Every collective of the sidecar, in one group."""
    rank = dist.get_rank()
    tensor = torch.tensor([float(rank), 1.0])
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [float(sum(ranks)), float(len(ranks))], tensor
    tensor = torch.full((1000,), float(rank))
    dist.broadcast(tensor, src=ranks[-1], group=group)
    assert tensor.eq(ranks[-1]).all()
    tensor = torch.tensor([rank])
    dist.reduce(tensor, dst=ranks[0], group=group)
    assert tensor.item() == (sum(ranks) if rank == ranks[0] else rank)
    parts = [torch.empty(1, dtype=torch.int64) for _ in ranks]
    dist.all_gather(parts, torch.tensor([rank]), group=group)
    assert [part.item() for part in parts] == ranks
    dist.barrier(group=group)


def use_groups(rounds):
    """Groups are made, used in an order of each rank's own, and destroyed, again and again."""
    for at in range(rounds):
        mine = open_groups()
        works = []
        for group, ranks in mine if (dist.get_rank() + at) % 2 else reversed(mine):
            tensor = torch.full((300,), float(dist.get_rank()))
            works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, ranks))
        for work, tensor, ranks in works:
            work.wait()
            assert tensor.eq(float(sum(ranks))).all()
        for group, ranks in mine:
            exchange(group, ranks)
        dist.barrier()
        while mine:
            dist.destroy_process_group(mine.pop()[0])
        gc.collect()
    return dist.group.WORLD.uses_sidecar


def train_across():
    """DistributedDataParallel over the groups that cross nodes, one for each place in a node."""
    mine = open_groups()
    group, _ = next(one for one in mine if one[1] in ([0, 2], [1, 3]))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(8, 4), process_group=group, bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(10):
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.tolist() for parameter in model.parameters()]


def share_out():
    """Reductions of which each rank gets its part, without gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.group.WORLD.communicator.gloo = Nobody()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for length in (1, 3, 1000):
            whole = torch.arange(size * length).to(dtype) % 5 + rank
            part = torch.empty(length, dtype=dtype)
            dist.reduce_scatter_tensor(part, whole.clone())
            ranks = [torch.arange(size * length).to(dtype) % 5 + one for one in range(size)]
            expected = torch.stack(ranks).sum(0).to(dtype).chunk(size)[rank]
            assert part.equal(expected), (dtype, length)
            part = torch.empty(length, dtype=dtype)
            dist.reduce_scatter(part, list(whole.chunk(size)))
            assert part.equal(expected), (dtype, length)
    # Under the names that newer versions of PyTorch call.
    group, own = dist.group.WORLD, torch.full((2,), float(rank))
    everybody = [float(one) for one in range(size) for _ in range(2)]
    whole = torch.empty(2 * size)
    group.all_gather_single(whole, own).wait()
    assert whole.tolist() == everybody
    group.all_gather_single_coalesced([whole.zero_()], [own]).wait()
    assert whole.tolist() == everybody
    options = dist.GatherOptions()
    options.rootRank = 1
    group.gather_single(whole.zero_() if rank == 1 else torch.empty(0), own, options).wait()
    assert rank != 1 or whole.tolist() == everybody
    part = torch.empty(2)
    group.reduce_scatter_single(part, torch.ones(2 * size), dist.ReduceScatterOptions()).wait()
    assert part.eq(size).all()
    group.reduce_scatter_single_coalesced([part.zero_()], [torch.ones(2 * size)]).wait()
    assert part.eq(size).all()
    row = torch.empty(size)
    group.all_to_all_single(row, torch.full((size,), float(rank)), [], []).wait()
    assert row.tolist() == [float(one) for one in range(size)]
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.full((2 * size,), float(rank)), dist.ReduceOp.AVG)
    assert part.eq(sum(range(size)) / size).all()
    return True


def shard_fully():
    """FSDP2 and DTensor, on a mesh of nodes by places within them, without gloo."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    # FSDP2 asks streams of the CPU for what PyTorch gives them since 2.7; there is nothing to wait for.
    if not hasattr(torch.cpu.Stream, "record_event"):
        torch.cpu.Stream.record_event = lambda stream, event=None: event or torch.cpu.Event()
        torch.cpu.Stream.wait_event = lambda stream, event: None
    dist.group.WORLD.communicator.gloo = Nobody()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for name in mesh.mesh_dim_names:
        group = mesh.get_group(name)
        assert group.uses_sidecar, name
        group.communicator.gloo = Nobody()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    whole = [parameter.full_tensor().tolist() for parameter in model.parameters()]
    line = mesh["shard"]
    content = torch.arange(12.0).reshape(4, 3)
    own = content.chunk(2)[line.get_local_rank()]
    sharded = DTensor.from_local(own, line, [Shard(0)])
    assert sharded.redistribute(placements=[Replicate()]).to_local().equal(content)
    partial = sharded.redistribute(placements=[Replicate()]).to_local()
    summed = DTensor.from_local(partial, line, [Partial()])
    assert summed.redistribute(placements=[Replicate()]).to_local().equal(2 * content)
    part = summed.redistribute(placements=[Shard(0)]).to_local()
    assert part.equal((2 * content).chunk(2)[line.get_local_rank()])
    return whole


def differ():
    """Ranks that mean different groups by one name."""
    from fireflyer import connection

    rank = dist.get_rank()
    client = dist.group.WORLD.communicator.client
    number = connection.number_of("of this test")
    ranks = [0, 1] if rank == 1 else [0, 1, 2, 3]
    try:
        client.open(number, ranks, False, 30.0)
    except HFReduceError as error:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return str(error), tensor.item()
    return None


@needed
class GroupsTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_groups_are_used_at_the_same_time_and_made_again(self):
        self.assertEqual(gang.successes(self.gang().run(use_groups, 5)), [True] * 4)

    def test_ddp_learns_alike_in_each_group_and_not_between_them(self):
        zero, one, two, three = gang.successes(self.gang().run(train_across))
        self.assertEqual((zero, one), (two, three))
        self.assertNotEqual(zero, one)

    def test_a_reduction_is_shared_out_without_gloo(self):
        self.assertEqual(gang.successes(self.gang().run(share_out)), [True] * 4)

    def test_fsdp_and_dtensor_need_nothing_of_gloo(self):
        first, *others = gang.successes(self.gang().run(shard_fully))
        self.assertEqual(others, [first] * 3)

    def test_ranks_that_mean_different_groups_get_an_error_and_the_world_goes_on(self):
        for text, total in gang.successes(self.gang().run(differ)):
            self.assertIn("ranks disagree about a group", text)
            self.assertIn("rank 1 opened it with 2 ranks", text)
            self.assertEqual(total, 4.0)


if __name__ == "__main__":
    unittest.main()
