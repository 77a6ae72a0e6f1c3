"""The store of the sidecars under real torch: it does what PyTorch's own does, and outlives the node of rank 0."""

import os
import random
import signal
import threading
import time
import unittest
from datetime import timedelta

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer.store import Store
from sidecars import needed
from test_restart import OPERATOR, Restarted


class Shrinking(Restarted):
    """Sidecars whose gang goes on soon without a node."""

    peer_loss_seconds = 2


def compare(folder):
    """Calls the same of PyTorch's store and of ours; both must say the same."""
    rank = dist.get_rank()
    ours = dist.PrefixStore("compared", _underlying())
    theirs = dist.TCPStore("127.0.0.1", gang.free_port(), is_master=True, use_libuv=False)
    theirs.set_timeout(timedelta(seconds=1))
    ours = dist.PrefixStore(str(rank), ours)
    draw = random.Random(rank)
    keys = ["a", "b", "c"]
    calls = {
        "set": lambda store, key, text: store.set(key, text),
        "get": lambda store, key, _: store.get(key) if store.check([key]) else None,
        "check": lambda store, key, _: store.check([key, "a"]),
        "compare_set": lambda store, key, text: store.compare_set(key, "", text),
        "swap": lambda store, key, text: store.compare_set(
            key, store.get(key) if store.check([key]) else b"x", text
        ),
        "append": lambda store, key, text: store.append(key, text),
        "delete_key": lambda store, key, _: store.delete_key(key),
        "add": lambda store, _, text: store.add("number", len(text) - 2),
        "multi_set": lambda store, key, text: store.multi_set([key, "a"], [text, "z"]),
        "multi_get": lambda store, key, _: (
            store.multi_get([key, key]) if store.check([key]) else None
        ),
    }
    told = []
    for _ in range(300):
        name = draw.choice(list(calls))
        key, text = draw.choice(keys), draw.choice(["", "one", "two"])
        pair = [calls[name](store, key, text) for store in (ours, theirs)]
        if pair[0] != pair[1]:
            told.append((name, key, text, pair))
    return told


def use(folder):
    """What a rank does with the store that `init_process_group` has found."""
    store = _underlying()
    assert isinstance(store, Store), store
    rank, size = dist.get_rank(), dist.get_world_size()
    store.set(f"of {rank}", str(rank))
    everybody = store.multi_get([f"of {other}" for other in range(size)])
    # A thread that waits keeps no other waiting.
    got = []
    waits = threading.Thread(target=lambda: got.append(store.get("later")))
    waits.start()
    if rank == 1:
        store.set("later", b"\xff\x00")
    waits.join(30)
    store.queue_push("queue", str(rank))
    taken = int(store.queue_pop("queue"))
    since = time.monotonic()
    try:
        store.wait(["never"], timedelta(seconds=0.2))
        late = None
    except dist.DistStoreError as error:
        late = str(error)
    return everybody, got, taken, late, time.monotonic() - since


def lose_the_first(folder, sidecar):
    """Rank 0 and its sidecar are killed; the others go on with the store, and with collectives."""
    store = dist.distributed_c10d._get_default_store()
    rank = dist.get_rank()
    checkpoint = fireflyer.Checkpoint({"model": torch.nn.Linear(2, 2)}, directory=folder / "saved")
    checkpoint.save(1)
    store.set(f"of {rank}", "before")
    store.wait([f"of {other}" for other in range(3)], timedelta(seconds=30))
    store.add("ready", 1)
    if rank == 0:
        while store.add("ready", 0) < 3:
            time.sleep(0.01)
        os.kill(sidecar, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(total := torch.tensor([float(rank)]), async_op=True)
    work.wait()
    store.set(f"after {rank}", "after")
    after = store.multi_get(["of 0", "after 1", "after 2"])
    work = dist.all_reduce(total := torch.tensor([float(rank)]), async_op=True)
    work.wait()
    saved = folder / "saved" / checkpoint.save(2).name
    return after, total.item(), work.participants(), sorted(one.name for one in saved.iterdir())


def _underlying():
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


@needed
@unittest.skipUnless(OPERATOR.exists(), "there is no operator beside the sidecar")
class StoreTest(unittest.TestCase):
    def test_it_does_what_pytorchs_own_store_does(self):
        with Restarted(2, 1) as sidecars:
            for told in gang.successes(sidecars.run(compare, sidecars.folder)):
                self.assertEqual(told, [])

    def test_processes_of_a_job_that_shrinks_meet_over_it(self):
        with Restarted(2, 2) as sidecars:
            results = gang.successes(sidecars.run(use, sidecars.folder))
        for everybody, got, _, late, seconds in results:
            self.assertEqual(everybody, [b"0", b"1", b"2", b"3"])
            self.assertEqual(got, [b"\xff\x00"])
            self.assertIn("failed to wait ['never']", late)
            self.assertLess(seconds, 10)
        self.assertEqual(sorted(taken for _, _, taken, _, _ in results), [0, 1, 2, 3])

    def test_it_outlives_the_node_of_rank_0(self):
        with Shrinking(3, 1) as sidecars:
            killed = sidecars.processes[0].pid
            first, *others = sidecars.run(lose_the_first, sidecars.folder, killed)
            self.assertIsInstance(first, gang.Died)
            for after, total, participants, saved in gang.successes(others):
                self.assertEqual(after, [b"before", b"after", b"after"])
                self.assertEqual((total, participants), (3.0, 2))
                # By those who are left, and whole: the manifest is written last.
                self.assertEqual(saved, ["manifest.json", "shard-00001.2", "shard-00002.2"])
