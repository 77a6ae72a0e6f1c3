"""The store that moves: PyTorch's own on the lowest node that is left, behind one Python object."""

import json
import os
import queue
import signal
import socket
import tempfile
import threading
import time
import unittest
from datetime import timedelta
from pathlib import Path
from unittest import mock

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import rendezvous, store
from fireflyer.store import Store
from sidecars import needed
from test_restart import OPERATOR, Restarted

#: Longer than anything takes that is not stuck.
PATIENCE = timedelta(seconds=30)


class Shrinking(Restarted):
    """Sidecars whose gang goes on soon without a node."""

    peer_loss_seconds = 2


def use(folder):
    """What a rank does with the store that `init_process_group` has found."""
    store = _underlying()
    assert isinstance(store, Store), store
    rank, size = dist.get_rank(), dist.get_world_size()
    store.set(f"of {rank}", str(rank))
    values = store.multi_get([f"of {other}" for other in range(size)])
    # The store ends with rank 0, whose process serves it: it leaves last.
    store.add("read", 1)
    while rank == 0 and store.add("read", 0) < size:
        time.sleep(0.01)
    return values


def lose_the_first(folder, sidecar):
    """Rank 0 and its sidecar are killed; the others go on, with the store and with new groups."""
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    checkpoint = fireflyer.Checkpoint({"model": torch.nn.Linear(2, 2)}, directory=folder / "saved")
    checkpoint.save(1)
    store.set(f"of {rank}", "before")
    store.wait([f"of {other}" for other in range(3)], PATIENCE)
    store.add("ready", 1)
    if rank == 0:
        while store.add("ready", 0) < 3:
            time.sleep(0.01)
        os.kill(sidecar, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.tensor([float(rank)]), async_op=True)
    work.wait()
    held = store.check(["of 0"])
    store.set(f"after {rank}", "after")
    after = store.multi_get(["after 1", "after 2"])
    totals = []
    for backend in ("hfreduce", "gloo"):
        group = dist.new_group([1, 2], backend=backend)
        dist.all_reduce(total := torch.tensor([float(rank)]), group=group)
        totals.append(total.item())
    saved = folder / "saved" / checkpoint.save(2).name
    names = sorted(one.name for one in saved.iterdir())
    return work.participants(), held, after, totals, names


def _underlying():
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


@needed
@unittest.skipUnless(OPERATOR.exists(), "there is no operator beside the sidecar")
class GangTest(unittest.TestCase):
    def test_processes_of_a_job_that_shrinks_rendezvous_over_it(self):
        with Restarted(2, 2) as sidecars:
            results = gang.successes(sidecars.run(use, sidecars.folder))
        self.assertEqual(results, [[b"0", b"1", b"2", b"3"]] * 4)

    def test_after_the_loss_of_rank_0s_node_the_others_have_an_empty_one_and_make_groups(self):
        with Shrinking(3, 1) as sidecars:
            killed = sidecars.processes[0].pid
            first, *others = sidecars.run(lose_the_first, sidecars.folder, killed)
            self.assertIsInstance(first, gang.Died)
            for participants, held, after, totals, saved in gang.successes(others):
                self.assertEqual((participants, held), (2, False))
                self.assertEqual(after, [b"after", b"after"])
                self.assertEqual(totals, [3.0, 3.0])
                # By those who are left, and whole: the manifest is written last.
                self.assertEqual(saved, ["manifest.json", "shard-00001.2", "shard-00002.2"])


class MovingTest(unittest.TestCase):
    """Two servers in this process, and who the lowest node is."""

    def setUp(self):
        # Debian builds PyTorch without libuv.
        variables = mock.patch.dict(os.environ, {"USE_LIBUV": "0"})
        variables.start()
        self.addCleanup(variables.stop)
        self.servers = [store.serve("127.0.0.1") for _ in range(2)]
        self.lowest = 0
        connects = {
            node: lambda timeout, port=server.port: store.connect("127.0.0.1", port, timeout)
            for node, server in enumerate(self.servers)
        }
        self.store = Store(lambda: self.lowest, connects, self.connection(0))

    def connection(self, node):
        return store.connect("127.0.0.1", self.servers[node].port, PATIENCE)

    def test_each_call_does_what_pytorchs_own_does(self):
        ours, theirs = self.store, self.connection(1)
        calls = [
            lambda one: one.set("a", "one"),
            lambda one: one.get("a"),
            lambda one: one.check(["a", "b"]),
            lambda one: one.compare_set("a", "one", "two"),
            lambda one: one.compare_set("b", "", b"\xff\x00"),
            lambda one: one.append("a", "more"),
            lambda one: one.multi_set(["c", "d"], ["3", "4"]),
            lambda one: one.multi_get(["a", "b", "c", "d"]),
            lambda one: one.add("number", 5),
            lambda one: one.add("number", -7),
            lambda one: one.wait(["a"]),
            lambda one: one.wait(["a"], timedelta(seconds=1)),
            lambda one: one.delete_key("a"),
            lambda one: one.delete_key("a"),
            lambda one: one.num_keys(),
        ]
        for at, call in enumerate(calls):
            self.assertEqual(call(ours), call(theirs), at)
        # As C++ calls it.
        prefixed = dist.PrefixStore("of", ours)
        prefixed.set("key", "content")
        self.assertEqual((prefixed.get("key"), ours.get("of/key")), (b"content", b"content"))

    def test_who_waits_keeps_no_other_waiting_and_gives_up_in_time(self):
        got = queue.SimpleQueue()
        waits = threading.Thread(target=lambda: got.put(self.store.get("later")))
        waits.start()
        with self.assertRaisesRegex(dist.DistStoreError, "never"):
            self.store.wait(["never"], timedelta(milliseconds=200))
        self.store.set("later", "here")
        self.assertEqual(got.get(timeout=30), b"here")
        waits.join()

    def test_it_moves_with_the_lowest_node_and_leaves_the_keys(self):
        self.store.set("key", "content")
        self.lowest = 1
        self.assertFalse(self.store.check(["key"]))
        self.store.set("key", "again")
        self.assertEqual(self.connection(1).get("key"), b"again")

    def test_a_call_that_waits_when_its_node_is_lost_fails_and_says_so(self):
        ended = queue.SimpleQueue()

        def wait():
            try:
                self.store.get("never")
            except dist.DistStoreError as error:
                ended.put(str(error))

        waits = threading.Thread(target=wait)
        waits.start()
        # Its connection is taken, so another one is made.
        while self.store._idle:
            time.sleep(0.001)
        self.lowest = 1
        self.assertIn("was on node 0, which was lost", ended.get(timeout=30))
        waits.join()

    def test_a_server_that_says_nothing_costs_no_more_than_the_timeout(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            connects = {1: lambda timeout: store.connect("127.0.0.1", port, timeout)}
            lone = Store(lambda: self.lowest, connects, self.connection(0))
            self.lowest = 1
            lone.set_timeout(timedelta(seconds=1))
            since = time.monotonic()
            with (
                mock.patch.object(store, "STORE_SECONDS", 0.0),
                self.assertRaisesRegex(
                    dist.DistStoreError, "failed to get key: the store on node 1"
                ),
            ):
                lone.get("key")
            self.assertLess(time.monotonic() - since, 20)

    def test_a_server_has_less_time_to_accept_a_connection_than_to_answer(self):
        limits = []

        def connect(timeout):
            limits.append(timeout.total_seconds())
            raise dist.DistNetworkError("not accepted")

        lone = Store(lambda: self.lowest, {1: connect}, self.connection(0))
        self.lowest = 1
        for seconds in (10, 11):
            lone.set_timeout(timedelta(seconds=seconds))
            with self.assertRaisesRegex(dist.DistStoreError, "failed to reach the store on node 1"):
                lone.get("key")
        self.assertEqual(limits, [10, 10])

    def test_a_server_that_ended_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        connects = {1: lambda timeout: store.connect("127.0.0.1", port, timedelta(seconds=1))}
        lone = Store(lambda: self.lowest, connects, self.connection(0))
        self.lowest = 1
        with self.assertRaisesRegex(dist.DistStoreError, "failed to reach the store on node 1"):
            lone.get("key")


class MembersTest(unittest.TestCase):
    def test_the_lowest_node_is_read_again_when_the_sidecar_has_replaced_the_members(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "roster.json"

            def write(*ranks):
                nodes = [{"rank": rank, "address": f"10.0.0.{rank}"} for rank in ranks]
                new = path.with_suffix(".new")
                new.write_text(json.dumps({"nodes": nodes}))
                new.replace(path)

            write(0, 1, 2)
            members = rendezvous._Members(path)
            self.assertEqual(members.lowest(), 0)
            self.assertEqual(members.addresses(), {0: "10.0.0.0", 1: "10.0.0.1", 2: "10.0.0.2"})
            write(1, 2)
            self.assertEqual(members.lowest(), 1)
            # A sidecar that starts again removes the file until its gang goes on.
            path.unlink()
            self.assertEqual(members.lowest(), 1)

    def test_members_that_nobody_writes_are_an_error(self):
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(rendezvous, "ROSTER_SECONDS", 0),
            self.assertRaisesRegex(ValueError, "failed to find .*/roster.json: the sidecar writes"),
        ):
            rendezvous._Members(Path(folder) / "roster.json")
