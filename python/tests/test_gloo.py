"""What goes over gloo and what does not, and what c10d knows of a group of ours: real sidecars, 2 nodes of 2 or 4 ranks."""

import os
import subprocess
import sys
import unittest
from datetime import timedelta

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer.connection import SOCKET
from sidecars import Sidecars, needed

#: Groups that are opened one after another.
MANY = 500


def sockets():
    """How many sockets this process has."""
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return sum(os.path.islink(link) and os.readlink(link).startswith("socket:") for link in links)


def open_many():
    """Opens groups and uses each; how many sockets that takes, and how many calls of gloo."""
    before = sockets()
    calls = 0
    for at in range(MANY):
        ranks = [at % 4, 4 + at % 3, 7]
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            dist.all_reduce(torch.ones(1), group=group)
            calls += group.gloo_calls
            dist.destroy_process_group(group)
    opened = sockets() - before
    # The store ends with rank 0, and others may still make a group.
    dist.barrier()
    return opened, calls + dist.group.WORLD.gloo_calls


#: A rank without PyTorch: what the sum of all ranks' numbers is, and how many sockets but Unix domain ones it has.
WITHOUT_PYTORCH = """
import array
import os
import sys

from fireflyer import _native
from fireflyer.call import Call

client = _native.Client.attach(sys.argv[1], int(sys.argv[2]), 60.0)
numbers = array.array("f", [client.rank])
ticket = client.call(Call("allreduce", "f32", 1, "sum"), memoryview(numbers).cast("B"), timeout=60.0)
client.wait(ticket, memoryview(numbers).cast("B"), timeout=60.0)
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
sockets = {os.readlink(link) for link in links if os.path.islink(link)}
with open("/proc/self/net/unix") as table:
    ours = {f"socket:[{line.split()[6]}]" for line in table.readlines()[1:]}
others = [one for one in sockets - ours if one.startswith("socket:")]
client.close()
print(int(numbers[0]), len(others), "torch" in sys.modules)
"""


def multiply():
    """A reduction that the sidecar does not do, twice; what came of it, and how gloo was used for it."""
    group, before = dist.group.WORLD, sockets()
    seen = [group.gloo_calls]
    for _ in range(2):
        tensor = torch.tensor([2.0, dist.get_rank() + 1.0])
        dist.all_reduce(tensor, dist.ReduceOp.PRODUCT)
        seen.append((tensor.tolist(), group.gloo_calls))
    return seen, sockets() > before


def come_late(late):
    """All but one rank call a barrier that names who does not."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    text = ""
    if rank != late:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
        except dist.DistBackendError as error:
            text = str(error)
    # The store ends with rank 0.
    store.set(f"seen by {rank}", "")
    if rank == 0:
        store.wait([f"seen by {each}" for each in range(dist.get_world_size())])
    return text


def shorten():
    """The time after which a collective that one rank does not call is an error."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
    if dist.get_rank() == 0:
        return ""
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        return str(error)
    return "no error"


def bind(device):
    """A group that is bound to a device, as PyTorch's recommends for its own."""
    dist.init_process_group("hfreduce", device_id=torch.device(device))
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return tensor.item(), [str(one) for one in dist.group.WORLD._device_types]


class DeviceTest(unittest.TestCase):
    @unittest.skipIf(
        tuple(map(int, torch.__version__.split(".")[:2])) > (2, 6)
        and not torch.cuda.is_available(),
        "this version of PyTorch checks that the GPU is there",
    )
    def test_a_group_may_be_bound_to_a_device(self):
        for total, devices in gang.successes(gang.run(bind, 2, "cuda:0", backend=None)):
            self.assertEqual((total, devices[0]), (2, "cpu"))

    def test_errors_are_pytorchs(self):
        self.assertTrue(issubclass(fireflyer.HFReduceError, dist.DistBackendError))


@needed
class GlooTest(unittest.TestCase):
    def gang(self, procs=2):
        return self.enterContext(Sidecars(2, procs))

    def test_groups_need_no_socket_of_gloo(self):
        for opened, calls in gang.successes(self.gang(4).run(open_many)):
            self.assertLessEqual(opened, 0)
            self.assertEqual(calls, 0)

    def test_a_gang_of_64_ranks_needs_neither_pytorch_nor_a_socket_of_gloo(self):
        sidecars = self.enterContext(Sidecars(8, 8))
        rank = [sys.executable, "-c", WITHOUT_PYTORCH]
        ranks = [
            subprocess.Popen(
                [*rank, sidecars.run_dir(node) / SOCKET, str(local)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for node in range(8)
            for local in range(8)
        ]
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
        self.assertEqual(said, [f"{sum(range(64))} 0 False\n"] * 64)

    def test_gloo_is_connected_when_it_is_first_needed_and_counted(self):
        for seen, connected in gang.successes(self.gang().run(multiply)):
            self.assertEqual(seen, [0, ([16.0, 24.0], 1), ([16.0, 24.0], 2)])
            self.assertTrue(connected)

    def test_a_monitored_barrier_names_who_is_late(self):
        texts = gang.successes(self.gang().run(come_late, 2))
        for text in (texts[0], texts[1], texts[3]):
            self.assertIn("timed out after 1 s without rank 2", text)

    def test_the_time_limit_of_a_group_can_be_changed(self):
        for text in gang.successes(self.gang().run(shorten))[1:]:
            self.assertRegex(
                text,
                r"timed out after .*: (on node 0 rank 0 has not called it|node 0 \(node-0\) has not sent)",
            )
