"""The backend over gloo, where there is no sidecar: nothing a script does may fail."""

import os
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import group
from fireflyer.sidecars import free_port
from torch._C._distributed_c10d import AllgatherOptions


def every_collective():
    """Calls what torch.distributed has; returns what came out, comparable between backends."""
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = {}

    def note(name, *tensors):
        seen[name] = [tensor.tolist() for tensor in tensors]

    for dtype in (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.int8,
    ):
        for op in ("SUM", "MAX", "MIN", "PRODUCT"):
            tensor = (torch.arange(5) + rank + 1).to(dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            note(f"all_reduce {dtype} {op}", tensor)
        for root in range(size):
            tensor = (torch.arange(3) + 10 * rank).to(dtype)
            dist.broadcast(tensor, src=root)
            note(f"broadcast {dtype} {root}", tensor)
        root = size - 1
        tensor = (torch.arange(3) + rank).to(dtype)
        dist.reduce(tensor, dst=root)
        if rank == root:
            note(f"reduce {dtype}", tensor)
        outputs = [torch.zeros(2, 2).to(dtype) for _ in range(size)]
        dist.all_gather(outputs, torch.full((2, 2), rank).to(dtype))
        note(f"all_gather {dtype}", *outputs)
        output = torch.zeros(size * 3).to(dtype)
        dist.all_gather_into_tensor(output, torch.full((3,), rank + 1).to(dtype))
        note(f"all_gather_into_tensor {dtype}", output)

    for count in (0, 1, 3, 1025):
        tensor = torch.full((count,), float(rank))
        dist.all_reduce(tensor)
        note(f"all_reduce of {count}", tensor)
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    note("scalar", scalar)
    leaf = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    note("leaf", leaf)
    gathered = [torch.zeros(4, 3).t() for _ in range(size)]
    dist.all_gather(gathered, torch.full((3, 4), float(rank)))
    note("gather into strided", *gathered)

    works = [
        dist.all_reduce(torch.full((10,), float(rank + step)), async_op=True) for step in range(40)
    ]
    for work in works:
        work.wait()
        # Handles of c10d's own, of backends of strings, do not ask ours.
        assert type(work) is dist.Work or work.is_completed()
    tensors = [torch.full((3,), float(rank)), torch.full((2, 2), 2.0 * rank)]
    dist.all_reduce_coalesced(tensors)
    note("all_reduce_coalesced", *tensors)
    dist.barrier()
    dist.barrier(async_op=True).wait()

    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank})
    seen["all_gather_object"] = everybody
    objects = [rank, "text"]
    dist.broadcast_object_list(objects, src=1)
    seen["broadcast_object_list"] = objects

    parts = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.full((2,), float(rank)), parts)
    note("gather", *(parts or []))
    part = torch.zeros(2)
    dist.scatter(part, [torch.full((2,), float(one)) for one in range(size)] if rank == 0 else None)
    note("scatter", part)
    outputs = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all_single(torch.zeros(size), torch.full((size,), float(rank)))
    if rank == 0:
        dist.send(torch.ones(2), dst=1, tag=3)
    elif rank == 1:
        dist.recv(part, src=0, tag=3)
        note("recv", part)
    pair = dist.new_group([0, 1])
    if rank < 2:
        tensor = torch.full((2,), float(rank + 1))
        dist.all_reduce(tensor, group=pair)
        note("subgroup", tensor)
    again = dist.new_group()
    tensor = torch.full((2,), float(rank + 1))
    dist.all_reduce(tensor, group=again)
    note("group of all", tensor)
    import torch.distributed._functional_collectives as functional

    note(
        "functional", functional.all_reduce(torch.full((2,), float(rank)), "sum", dist.group.WORLD)
    )
    note(
        "functional gather",
        functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD),
    )
    ones = [1] * size
    mine = torch.full((size,), float(rank))
    note("functional exchange", functional.all_to_all_single(mine, ones, ones, dist.group.WORLD))
    return seen


def by_keyword():
    """c10d names its parameters; so does who calls it."""
    group = dist.group.WORLD
    rank, size = group.rank(), group.size()
    tensor = torch.full((2,), float(rank + 1))
    group.allreduce(tensors=[tensor], opts=dist.AllreduceOptions()).wait()
    group.allreduce([tensor], op=dist.ReduceOp.MAX).wait()
    group.allreduce(tensor).wait()
    group.broadcast(tensors=[tensor], opts=dist.BroadcastOptions()).wait()
    group.broadcast(tensor, root=0).wait()
    group.reduce(tensors=[tensor], opts=dist.ReduceOptions()).wait()
    group.reduce(tensor, root=0).wait()
    outputs = [torch.zeros(2) for _ in range(size)]
    group.allgather(
        output_tensors=[outputs], input_tensors=[tensor], opts=AllgatherOptions()
    ).wait()
    group.allgather([outputs], [tensor]).wait()
    group._allgather_base(
        output=torch.zeros(2 * size), input=tensor, opts=AllgatherOptions()
    ).wait()
    group.allreduce_coalesced(tensors=[tensor], opts=dist.AllreduceCoalescedOptions()).wait()
    group.barrier(opts=dist.BarrierOptions()).wait()
    group.barrier().wait()
    return dist.get_backend(), group.name()


def train_with_ddp(steps=20):
    """A small model; returns the losses of each step and the weights at the end."""
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        batch = torch.randn(32, 16, generator=data)
        loss = torch.nn.functional.cross_entropy(model(batch), batch[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        losses.append(loss.item())
    return losses, [parameter.tolist() for parameter in model.parameters()]


def several_backends():
    """What is said of strings that name another backend beside ours."""
    said = []
    for backend in ("cpu:hfreduce,cuda:gloo", "cpu:gloo,cuda:hfreduce", "cuda:gloo,cpu:hfreduce"):
        try:
            dist.init_process_group(backend)
        except fireflyer.HFReduceError as error:
            said.append(str(error))
            dist.distributed_c10d._world.pg_map.clear()
    dist.init_process_group("cpu:hfreduce,cuda:hfreduce")
    return said


def refused_options():
    """What is said of options that are not ours."""
    try:
        dist.new_group([0, 1], backend="hfreduce", pg_options=types.SimpleNamespace(priority=1))
    except fireflyer.HFReduceError as error:
        return str(error)
    return None


def uses_sidecar():
    return dist.group.WORLD.uses_sidecar


#: A script of one rank. The argument is what it does before it makes its group.
ALONE = """
import sys
import torch
import torch.distributed as dist

assert "fireflyer.backend" not in sys.modules
exec(sys.argv[1])
dist.init_process_group("hfreduce")
dist.all_reduce(torch.ones(1))
print(dist.get_backend())
"""


def run_alone(before, **variables):
    """Runs it where PyTorch loads no backends by itself."""
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **variables,
    }
    command = [sys.executable, "-c", ALONE, before]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


class BackendTest(unittest.TestCase):
    def test_options_refuse_what_they_do_not_know(self):
        with self.assertRaisesRegex(TypeError, "urgency"):
            fireflyer.Options(urgency=1)
        for wrong in ("high", 128, -129):
            with self.assertRaisesRegex(fireflyer.HFReduceError, "from -128 to 127, not"):
                fireflyer.Options(priority=wrong)
        with self.assertRaisesRegex(fireflyer.HFReduceError, "fast or precise or bitwise, not"):
            fireflyer.Options(numerics="exact")
        for text in gang.successes(gang.run(refused_options, 2, backend="hfreduce")):
            self.assertIn("must be a fireflyer.Options, not a SimpleNamespace", text)

    def test_a_pod_without_the_sidecar_that_its_job_asks_for_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            pod = {"FIREFLYER_RUN_DIR": folder}
            here, there = gang.run(uses_sidecar, 2, backend="hfreduce", variables=[pod, {}])
            self.assertIn("this pod has no sidecar", here.text)
            self.assertIn("set FIREFLYER_FALLBACK=gloo", here.text)
            self.assertIn("because of rank 0: failed to make a group: there is no", there.text)
            variables = [{**pod, "FIREFLYER_FALLBACK": "gloo"}] * 2
            gangs = gang.run(uses_sidecar, 2, backend="hfreduce", variables=variables)
            self.assertEqual(gangs, [False, False])

    def test_a_backend_that_pytorch_does_not_load_can_be_registered(self):
        done = run_alone("import fireflyer; fireflyer.backend.register()")
        self.assertEqual((done.returncode, done.stdout), (0, "hfreduce\n"), done.stderr)

    @unittest.skipUnless(
        hasattr(dist.Backend, "_ensure_backend_registered"),
        "this version of PyTorch does not look for backends by name",
    )
    def test_pytorch_finds_the_backend_by_its_name(self):
        done = run_alone("")
        self.assertEqual((done.returncode, done.stdout), (0, "hfreduce\n"), done.stderr)
        self.assertNotIn("after the rendezvous", done.stderr)
        # The store that can move is no longer possible then.
        with tempfile.TemporaryDirectory() as folder:
            shrinks = {"FIREFLYER_ON_PEER_LOSS": "Shrink", "FIREFLYER_RUN_DIR": folder}
            done = run_alone("", FIREFLYER_FALLBACK="gloo", **shrinks)
        self.assertIn("the store of torch.distributed stays with rank 0", done.stderr)

    def test_pytorch_is_asked_once_what_it_can(self):
        group.has_backends()
        with unittest.mock.patch.object(group, "Backend", side_effect=AssertionError("again")):
            group.has_backends()

    @unittest.skipIf(group.has_backends(), "this version of PyTorch serves them")
    def test_a_backend_beside_ours_is_refused_and_not_dropped(self):
        said = gang.successes(gang.run(several_backends, 1, backend=None))[0]
        self.assertEqual(len(said), 3)
        for text in said:
            self.assertIn("PyTorch would drop gloo", text)

    def test_without_a_sidecar_everything_goes_over_gloo(self):
        ours = gang.successes(gang.run(every_collective, 3, backend="hfreduce"))
        theirs = gang.successes(gang.run(every_collective, 3, backend="gloo"))
        for rank in range(3):
            self.assertEqual(ours[rank], theirs[rank])

    def test_methods_take_c10ds_parameters_by_name(self):
        self.assertEqual(
            gang.successes(gang.run(by_keyword, 2, backend="hfreduce")), [("hfreduce",) * 2] * 2
        )

    def test_a_ddp_script_changes_the_backends_name_only(self):
        ours = gang.successes(gang.run(train_with_ddp, 2, backend="hfreduce"))
        theirs = gang.successes(gang.run(train_with_ddp, 2, backend="gloo"))
        self.assertEqual(ours, theirs)
