"""The backend over real sidecars: 2 nodes of 2 ranks on the loopback."""

import atexit
import gc
import multiprocessing.util
import os
import signal
import tempfile
import threading
import time
import unittest

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError
from sidecars import Sidecars, needed
from test_backend import by_keyword, every_collective, train_with_ddp
from test_gang import save_and_resume

#: Steps over which two backends are compared, and the largest relative difference of their losses.
STEPS = 200
TOLERANCE = 1e-4


class Nobody:
    """In place of the inner gloo group: whoever uses it is seen."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} went over gloo")


def without_gloo():
    """What the sidecar does itself must not need the inner group."""
    group = dist.group.WORLD
    rank, size = group.rank(), group.size()
    group.communicator.gloo = Nobody()
    seen = []
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.uint8,
        torch.int32,
        torch.int64,
    ):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            tensor = torch.tensor([rank, 5, 2 * rank]).to(dtype)
            dist.all_reduce(tensor, op)
            seen.append(tensor.tolist())
        if dtype.is_floating_point:
            tensor = torch.tensor([rank, 5.0, 2.0 * rank]).to(dtype)
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            seen.append(tensor.tolist())
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.tensor([rank, 4.0, -rank]).to(dtype)
        dist.all_reduce(tensor)
        assert tensor.float().tolist() == [6.0, 16.0, -6.0], tensor
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.tensor([2.0 * rank, 1.0]).to(dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        assert tensor.tolist() == [6.0, 2.0], tensor
    for dtype in (torch.float64, torch.bool, torch.complex64, torch.int8):
        tensor = torch.tensor([rank, 1, 0]).to(dtype)
        dist.broadcast(tensor, src=3)
        outputs = [torch.zeros(1).to(dtype) for _ in range(size)]
        dist.all_gather(outputs, torch.tensor([rank]).to(dtype))
        seen += [tensor.tolist(), [output.item() for output in outputs]]
    # Neither contiguous nor at the start of its memory; gloo would add up the wrong places.
    matrix = torch.arange(24, dtype=torch.float32).reshape(4, 6) + rank
    wanted = matrix.clone()
    wanted.t()[1:, ::2] = 4 * (wanted.t()[1:, ::2] - rank) + 6
    dist.all_reduce(matrix.t()[1:, ::2])
    assert torch.equal(matrix, wanted), matrix
    tensor = torch.full((3,), float(rank))
    dist.reduce(tensor, dst=2)
    seen.append(tensor.tolist() if rank == 2 else None)
    dist.barrier()
    return group.uses_sidecar, seen


def many_in_flight():
    """More operations than the ring holds, of all sizes, waited for in another order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((1 + 997 * step % 5000,), float(rank + step)) for step in range(600)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for step, tensor in enumerate(tensors):
        assert tensor.eq(size * step + size * (size - 1) / 2).all(), (step, tensor)
    assert all(work.is_success() and work.exception() is None for work in works)
    assert works[7].result()[0] is tensors[7]
    return works[0].get_future().value()[0] is tensors[0]


def who_took_part():
    """Handles and the module say how many ranks an average is of, and which nodes they are on."""
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    several = dist.group.WORLD.allreduce_coalesced([torch.ones(2), torch.ones(4)])
    several.wait()
    over_gloo = dist.all_reduce(torch.ones(1), dist.ReduceOp.PRODUCT, async_op=True)
    over_gloo.wait()
    return (
        tuple(fireflyer.members()),
        work.participants(),
        several.participants(),
        over_gloo.participants(),
    )


def large(megabytes):
    """One tensor of many chunks, with content that differs in each place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = megabytes * (1 << 18) + 3
    base = torch.arange(count, dtype=torch.float32).remainder(1000)
    tensor = base * (rank + 1)
    dist.all_reduce(tensor)
    return bool(tensor.eq(base * (size * (size + 1) // 2)).all())


def handles_without_owner():
    """DDP holds the C++ half of a handle only; the Python half must outlive that."""
    group = dist.group.WORLD
    futures = []
    for _ in range(50):
        futures.append(group.allreduce([torch.full((1000,), 1.0)]).get_future())
        gc.collect()
    return [future.wait()[0][0].item() for future in futures] == [float(group.size())] * 50


def mismatch():
    """Rank 1 calls another size; then all agree again."""
    rank = dist.get_rank()
    start = time.monotonic()
    try:
        dist.all_reduce(torch.ones(8 if rank == 1 else 4))
        error = None
    except HFReduceError as raised:
        error = str(raised)
    took = time.monotonic() - start
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return error, took, tensor.tolist()


def die(who):
    """Rank `who` is killed between two of many operations; returns the errors of the others, and when."""
    rank = dist.get_rank()
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    start = time.monotonic()
    try:
        for step in range(100_000):
            if rank == who and step == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(tensor)
    except HFReduceError as raised:
        return time.monotonic() - start, str(raised)


def lose_sidecar(processes, how):
    """Rank 0 ends or freezes the sidecar of node 1; returns the error of each rank, and when."""
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    if dist.get_rank() == 0:
        threading.Timer(0.2, os.kill, (processes[1], how)).start()
    start = time.monotonic()
    try:
        while True:
            dist.all_reduce(tensor)
    except HFReduceError as raised:
        # The ranks of a frozen sidecar cannot know before it moves again.
        if how == signal.SIGSTOP and dist.get_rank() == 0:
            os.kill(processes[1], signal.SIGCONT)
        return time.monotonic() - start, str(raised)


def fail_in_ddp():
    """The error of a gang whose rank 3 died, as DDP's backward pass raises it."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    try:
        for step in range(1000):
            if dist.get_rank() == 3 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(2, 4)).sum().backward()
    except RuntimeError as raised:
        return str(raised)


def fork():
    """A forked child tries a collective; returns its error. The parent's group works on."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
            os.write(write, b"it worked")
        except HFReduceError as raised:
            os.write(write, str(raised).encode())
        os._exit(0)
    os.close(write)
    message = os.read(read, 4096).decode()
    os.waitpid(child, 0)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return message, tensor.item()


def end_first(how):
    """Rank 1 ends after one operation; returns the error of the others in the next one."""
    tensor = torch.ones(1 << 20)
    dist.all_reduce(tensor)
    if dist.get_rank() == 1:
        if how == "as an interpreter":
            atexit._run_exitfuncs()
        else:
            # As before Python 3.13: of all that is registered, multiprocessing does only this.
            atexit._clear()
            atexit.register(multiprocessing.util._exit_function)
        return None
    try:
        dist.all_reduce(tensor)
    except HFReduceError as raised:
        return str(raised)


def leave_and_come_back(rounds):
    """Groups are made and destroyed; each talks to the sidecar."""
    used = []
    for round in range(rounds):
        if round:
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
            dist.init_process_group("hfreduce")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        used.append((dist.group.WORLD.uses_sidecar, tensor.item()))
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
    return used


def come_back_while_one_rank_remembers():
    """Rank 0 still holds the old group when the new one is made."""
    kept = dist.group.WORLD if dist.get_rank() == 0 else None
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("hfreduce")
    return (*uses_sidecar(), kept is not None)


def train_with_a_dropped_contribution(steps):
    """As `train_with_ddp`, but the last rank's gradients do not count."""
    group = dist.group.WORLD
    real = group.allreduce

    def allreduce(tensors, opts=None, **others):
        if group.rank() == group.size() - 1 and tensors[0].numel() > 1:
            tensors[0].zero_()
        return real(tensors, opts, **others)

    group.allreduce = allreduce
    return train_with_ddp(steps)


def accelerator_tensor():
    """No accelerator here: a tensor that says it is on one."""

    class Elsewhere:
        device = torch.device("cuda:0")
        is_cpu = False

    return dist.group.WORLD.communicator.takes([Elsewhere()])


def apart(ours, theirs):
    """The largest relative difference of two runs' losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


@needed
class HFReduceTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_every_collective_gives_what_gloo_gives(self):
        ours = gang.successes(self.gang().run(every_collective))
        theirs = gang.successes(gang.run(every_collective, 4, backend="gloo"))
        for rank in range(4):
            for name in theirs[rank]:
                self.assertEqual(ours[rank][name], theirs[rank][name], f"rank {rank}: {name}")

    def test_what_the_sidecar_does_does_not_touch_gloo(self):
        results = gang.successes(self.gang().run(without_gloo))
        for used, seen in results:
            self.assertTrue(used)
            # Sum, maximum, minimum and, of floats only, average: exact in each of three types.
            integers = [[6, 20, 12], [3, 5, 6], [0, 5, 0]]
            floats = [*integers, [1.5, 5, 3]]
            self.assertEqual(seen[:21], 3 * floats + 3 * integers)
        for rank in (0, 1, 3):
            self.assertEqual(results[rank][1][:-1], results[2][1][:-1])
        self.assertEqual(results[2][1][-1], [6, 6, 6])

    def test_one_node_and_one_rank_are_gangs_too(self):
        self.assertEqual(gang.successes(self.gang(1, 1).run(large, 1)), [True])
        self.assertEqual(gang.successes(self.gang(1, 3).run(large, 1)), [True] * 3)
        self.assertEqual(gang.successes(self.gang(3, 1).run(large, 1)), [True] * 3)

    def test_methods_take_c10ds_parameters_by_name(self):
        self.assertEqual(gang.successes(self.gang().run(by_keyword)), [("hfreduce",) * 2] * 4)

    def test_more_operations_than_the_ring_holds_are_in_flight(self):
        self.assertEqual(gang.successes(self.gang().run(many_in_flight)), [True] * 4)

    def test_a_handle_says_how_many_took_part_and_the_module_who_does(self):
        wanted = ((1, 4, (0, 1)), 4, 4, None)
        self.assertEqual(gang.successes(self.gang().run(who_took_part)), [wanted] * 4)

    def test_a_large_tensor_is_summed_in_every_place(self):
        self.assertEqual(gang.successes(self.gang().run(large, 48)), [True] * 4)

    def test_handles_live_as_long_as_c10d_needs_them(self):
        self.assertEqual(gang.successes(self.gang().run(handles_without_owner)), [True] * 4)

    def test_ddp_learns_the_same_and_all_ranks_hold_the_same_bits(self):
        # COLL-1: the same bits on all members.
        ours = gang.successes(self.gang().run(train_with_ddp, STEPS))
        theirs = gang.successes(gang.run(train_with_ddp, 4, STEPS, backend="gloo"))
        for _, weights in ours[1:]:
            self.assertEqual(weights, ours[0][1])
        self.assertLess(ours[0][0][-1], ours[0][0][0] / 2, "it learns")
        self.assertLessEqual(apart(ours[0][0], theirs[0][0]), TOLERANCE)

    def test_a_dropped_contribution_is_seen_by_that_comparison(self):
        ours = gang.successes(self.gang().run(train_with_a_dropped_contribution, STEPS))
        theirs = gang.successes(gang.run(train_with_ddp, 4, STEPS, backend="gloo"))
        self.assertGreater(apart(ours[0][0], theirs[0][0]), TOLERANCE)

    def test_a_mismatch_is_an_error_on_all_ranks_that_names_both_sides(self):
        results = gang.successes(self.gang().run(mismatch))
        for error, took, after in results:
            self.assertIsNotNone(error)
            self.assertIn("4 x f32", error)
            self.assertIn("8 x f32", error)
            self.assertLess(took, 2)
            self.assertEqual(after, [4.0] * 4, "the next operation runs")

    def test_a_rank_that_died_is_named_on_all_others(self):
        results = self.gang().run(die, 3)
        self.assertEqual(results[3].exit_code, -signal.SIGKILL)
        for took, error in gang.successes(results[:3]):
            # COLL-2: at once; the machine is busy with four Python processes.
            self.assertLess(took, 5)
            self.assertRegex(error, r"rank 3\b|node 1\b|node-1")

    def test_a_sidecar_that_died_is_an_error_on_all_ranks(self):
        sidecars = self.gang()
        processes = [process.pid for process in sidecars.processes]
        results = gang.successes(sidecars.run(lose_sidecar, processes, signal.SIGKILL))
        for rank, (took, error) in enumerate(results):
            self.assertLess(took, 5)
            self.assertRegex(
                error, r"node 1\b|node-1" if rank < 2 else "sidecar of this node is gone"
            )

    def test_a_frozen_sidecar_is_a_suspect_first_and_then_given_up(self):
        sidecars = self.gang()
        processes = [process.pid for process in sidecars.processes]
        for took, error in gang.successes(sidecars.run(lose_sidecar, processes, signal.SIGSTOP)):
            self.assertLess(took, 20)
            self.assertRegex(error, r"node 1\b|node-1")
        self.assertIn("suspect", sidecars.log(0).read_text())

    def test_ddp_raises_with_the_name_of_the_error_and_its_cause(self):
        for error in gang.successes(self.gang().run(fail_in_ddp)[:3]):
            self.assertIn("HFReduceError", error)
            self.assertRegex(error, r"rank 3\b|node 1\b|node-1")

    def test_a_forked_child_gets_an_error_and_the_parent_goes_on(self):
        for message, after in gang.successes(self.gang().run(fork)):
            self.assertIn("DataLoader workers", message)
            self.assertEqual(after, 4)

    def test_a_group_can_be_destroyed_and_made_again(self):
        self.assertEqual(
            gang.successes(self.gang().run(leave_and_come_back, 3)), [[(True, 4)] * 3] * 4
        )

    def test_a_process_that_just_ends_has_left_and_did_not_die(self):
        for how in ("as an interpreter", "as a process of multiprocessing"):
            with self.subTest(how):
                results = gang.successes(self.gang().run(end_first, how))
                for rank in (0, 2, 3):
                    self.assertRegex(results[rank], "rank 1 on node 0 left while operation")

    def test_a_job_that_brings_its_own_backend_does_not_use_the_sidecar(self):
        sidecars = self.gang()
        variables = [{**own, "FIREFLYER_BACKEND": "None"} for own in sidecars.variables()]
        self.assertEqual(
            gang.successes(sidecars.run(uses_sidecar, variables=variables)), [(False, 4)] * 4
        )

    def test_a_group_that_one_rank_still_holds_does_not_hang_the_next(self):
        results = gang.successes(
            self.gang().run(come_back_while_one_rank_remembers, deadline_seconds=60)
        )
        self.assertEqual(results, [(False, 4, rank == 0) for rank in range(4)])

    def test_ranks_that_do_not_fit_the_sidecars_are_refused_on_all_ranks(self):
        sidecars = self.gang()
        variables = sidecars.variables()
        variables[0], variables[1] = variables[1], variables[0]
        results = sidecars.run(large, 1, variables=variables)
        self.assertEqual([result.kind for result in results], ["HFReduceError"] * 4)
        self.assertIn("says this process is rank 1 of 4", results[0].text)
        self.assertIn(
            "because of ranks 0, 1: failed to make a group: the sidecar says", results[3].text
        )

    def test_when_some_ranks_have_no_sidecar_all_use_gloo(self):
        sidecars = self.gang()
        variables = sidecars.variables()
        variables[3] = {"FIREFLYER_RUN_DIR": "/nonexistent"}
        self.assertEqual(
            gang.successes(sidecars.run(uses_sidecar, variables=variables)), [(False, 4)] * 4
        )

    def test_a_tensor_on_an_accelerator_is_refused_with_what_to_do(self):
        for result in self.gang(1, 1).run(accelerator_tensor):
            self.assertEqual(result.kind, "HFReduceError")
            self.assertIn("a tensor on cuda:0", result.text)

    def test_checkpoints_are_saved_and_resumed_over_hfreduce(self):
        with tempfile.TemporaryDirectory() as root:
            results = gang.successes(self.gang().run(save_and_resume, root, True))
        self.assertEqual(results, [(2, 10 + rank, 5) for rank in range(4)])


def uses_sidecar():
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    return dist.group.WORLD.uses_sidecar, tensor.item()
