"""Gradients in memory that is shared with the sidecar: 2 nodes of 2 ranks on the loopback."""

import gc
import unittest

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError
from fireflyer.arena import COPIED_STEPS
from sidecars import Sidecars, needed

STEPS = 30


def model():
    """Some layers, one parameter in another memory order, one of another type, and one that is never used."""
    torch.manual_seed(dist.get_rank())
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 4),
    )
    layers.unused = torch.nn.Parameter(torch.ones(7))
    layers.scale = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    return layers


def loss_of(layers, generator):
    batch = torch.randn(8, 3, 8, 8, generator=generator)
    target = batch[:, 0, :4, 0].argmax(1)
    logits = layers(batch) * layers.scale.float()
    return torch.nn.functional.cross_entropy(logits, target)


def train(how, micro_batches=1, clip=None):
    """Trains over an arena, or by averaging each gradient; returns losses, weights and bytes that were copied."""
    layers = model()
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05, momentum=0.9)
    arena = fireflyer.Arena(layers, bucket_bytes=20_000)
    if how == "by hand":
        arena.close()
    losses = []
    for _ in range(STEPS):
        if how == "arena":
            arena.zero_grad()
        else:
            optimizer.zero_grad()
        for _ in range(micro_batches - 1):
            if how == "by hand":
                loss_of(layers, generator).backward()
            else:
                with arena.no_sync():
                    loss_of(layers, generator).backward()
        loss = loss_of(layers, generator)
        loss.backward()
        if how == "by hand":
            for parameter in layers.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        else:
            assert all(one.grad is None for one in layers[5].parameters()), "it is under way"
            arena.wait()
        if clip == "arena":
            arena.clip_grad_norm_(0.1)
        elif clip is not None:
            torch.nn.utils.clip_grad_norm_(layers.parameters(), 0.1)
        optimizer.step()
        losses.append(loss.item())
    return losses, [one.tolist() for one in layers.parameters()], arena.copied_bytes


def written_to():
    """A rank writes to its gradients: no other rank sees it, nor does the next step."""
    layers = torch.nn.Linear(1000, 100, bias=False)
    arena = fireflyer.Arena(layers)
    seen = []
    for step in range(4):
        arena.zero_grad()
        layers(torch.full((1, 1000), float(step + dist.get_rank()))).sum().backward()
        arena.wait()
        seen.append((layers.weight.grad.unique().tolist(), arena.copied_bytes))
        if dist.get_rank() == 1:
            layers.weight.grad[50:].fill_(-1.0)
            assert layers.weight.grad.unique().tolist() == [-1.0, step + 1.5]
        dist.barrier()
        assert dist.get_rank() == 1 or layers.weight.grad.unique().tolist() == [step + 1.5]
    return seen


def written_to_at(steps, writes):
    """A rank writes to its gradients in some steps; in which steps results were copied."""
    layers = torch.nn.Linear(1000, 10, bias=False)
    arena = fireflyer.Arena(layers)
    copied, before = [], 0
    for step in range(steps):
        arena.zero_grad()
        layers(torch.full((1, 1000), float(step))).sum().backward()
        arena.wait()
        assert layers.weight.grad.eq(step).all(), step
        if step in writes:
            layers.weight.grad.mul_(2.0)
        now = arena.copied_bytes[1]
        if now > before:
            copied.append(step)
        before = now
    return copied


def clip(norms, norm_type):
    """Clips to some norms, by the arena and by PyTorch; what either did, and what was written."""
    layers = model()
    arena = fireflyer.Arena(layers, bucket_bytes=20_000)
    generator = torch.Generator().manual_seed(dist.get_rank())
    seen = []
    for norm in norms:
        arena.zero_grad()
        loss_of(layers, generator).backward()
        arena.wait()
        theirs = [one.grad.clone() for one in layers.parameters()]
        copies = [torch.nn.Parameter(torch.empty_like(one)) for one in theirs]
        for copy, gradient in zip(copies, theirs):
            copy.grad = gradient
        wanted = torch.nn.utils.clip_grad_norm_(copies, norm, norm_type)
        before = [one.grad.data_ptr() for one in layers.parameters()]
        found = arena.clip_grad_norm_(norm, norm_type)
        torch.testing.assert_close(found, wanted.float())
        for one, copy in zip(layers.parameters(), copies):
            torch.testing.assert_close(one.grad, copy.grad)
        seen.append(before != [one.grad.data_ptr() for one in layers.parameters()])
    return seen, arena.copied_bytes, dist.group.WORLD.communicator.client.results_written


def in_the_order_of_the_model():
    """Ranks whose gradients come in another order call the same buckets."""
    layers = torch.nn.ModuleList(torch.nn.Linear(10, 10) for _ in range(4))
    arena = fireflyer.Arena(layers, bucket_bytes=64)
    order = range(4) if dist.get_rank() % 2 else reversed(range(4))
    for step in range(3):
        arena.zero_grad()
        for at in order if step == 1 else range(4):
            layers[at](torch.ones(1, 10) * (at + 1)).sum().backward()
        arena.wait()
        for at in range(4):
            assert layers[at].weight.grad.eq(at + 1).all(), (step, at)
    return True


def another_model():
    """Rank 3 has a larger layer; returns the error of each."""
    layers = torch.nn.Linear(4, 4, bias=False)
    arena = fireflyer.Arena(layers)
    if dist.get_rank() == 3:
        arena.close()
        torch.distributed.broadcast = lambda *_, **__: None
        layers = torch.nn.Linear(2, 8, bias=False)
        arena = fireflyer.Arena(layers)
    layers(torch.ones(1, layers.in_features)).sum().backward()
    try:
        arena.wait()
    except HFReduceError as raised:
        return str(raised), layers.weight.grad is None


def misused():
    """What must not be done, and what is said then."""
    layers = torch.nn.Linear(4, 4)
    arena = fireflyer.Arena(layers)
    errors = []

    def record(do):
        try:
            do()
        except (HFReduceError, RuntimeError) as raised:
            errors.append(str(raised))

    arena.zero_grad()
    layers(torch.ones(1, 4)).sum().backward()
    record(lambda: layers(torch.ones(1, 4)).sum().backward())
    record(arena.zero_grad)
    arena.wait()
    return errors, layers.weight.grad.unique().tolist()


def let_go(rounds):
    """Arenas come and go: nothing is held by those that are gone."""
    for _ in range(rounds):
        layers = torch.nn.Linear(1 << 10, 1 << 10)
        arena = fireflyer.Arena(layers)
        arena.zero_grad()
        layers(torch.ones(1, 1 << 10)).sum().backward()
        arena.wait()
        value = layers.weight.grad[0, 0].item()
        del layers, arena
        gc.collect()
    return value


class ArenaWithoutSidecarTest(unittest.TestCase):
    def test_the_same_script_runs_over_gloo(self):
        ours = gang.successes(gang.run(train, 2, "arena"))
        by_hand = gang.successes(gang.run(train, 2, "by hand"))
        self.assertEqual(ours[0][:2], by_hand[0][:2])


@needed
class ArenaTest(unittest.TestCase):
    def gang(self, nodes=2, procs=2):
        return self.enterContext(Sidecars(nodes, procs))

    def test_it_learns_what_gradients_averaged_one_by_one_do_and_copies_nothing(self):
        ours = gang.successes(self.gang().run(train, "arena"))
        by_hand = gang.successes(self.gang().run(train, "by hand"))
        for losses, weights, copied in ours:
            self.assertEqual(weights, ours[0][1], "COLL-1: the same bits on all ranks")
            self.assertEqual(copied, (0, 0))
            self.assertLess(losses[-1], losses[0])
        for mine, wanted in zip(ours[0][0], by_hand[0][0]):
            self.assertAlmostEqual(mine, wanted, delta=1e-4)

    def test_micro_batches_are_added_up_in_place(self):
        ours = gang.successes(self.gang().run(train, "arena", 3))
        by_hand = gang.successes(self.gang().run(train, "by hand", 3))
        self.assertEqual(ours[0][2], (0, 0))
        for mine, wanted in zip(ours[0][0], by_hand[0][0]):
            self.assertAlmostEqual(mine, wanted, delta=1e-4)

    def test_gradients_that_lie_elsewhere_are_copied_and_counted(self):
        ours = gang.successes(self.gang().run(train, "optimizer's zero_grad"))
        arena = gang.successes(self.gang().run(train, "arena"))
        self.assertEqual(ours[0][:2], arena[0][:2])
        used = sum(one.numel() * one.element_size() for one in _parameters() if one.numel() != 7)
        self.assertEqual(ours[0][2], (STEPS * used, 0))

    def test_clipping_is_right_and_the_arenas_own_copies_nothing(self):
        by_hand = gang.successes(self.gang().run(train, "by hand", 1, "pytorch"))
        for clip in ("pytorch", "arena"):
            ours = gang.successes(self.gang().run(train, "arena", 1, clip))
            for _, weights, copied in ours:
                self.assertEqual(weights, ours[0][1])
                self.assertEqual((copied[0], copied[1] > 0), (0, clip == "pytorch"))
            for mine, wanted in zip(ours[0][0], by_hand[0][0]):
                self.assertAlmostEqual(mine, wanted, delta=1e-4)

    def test_the_arenas_own_clipping_is_pytorchs_and_writes_to_no_result(self):
        for norm_type in (2.0, float("inf")):
            for seen in gang.successes(self.gang(1).run(clip, (1e6, 0.1, 1e6, 0.01), norm_type)):
                self.assertEqual(seen, ([False, True, False, True], (0, 0), 0))

    def test_results_are_copied_for_some_steps_after_gradients_were_written_to(self):
        first, second = COPIED_STEPS, 2 * COPIED_STEPS
        writes, steps = {0, first + 1}, first + second + 10
        for copied in gang.successes(self.gang(1).run(written_to_at, steps, writes)):
            # Step `first` + 1 shows that they still are, the first one after `second` more that they are not.
            expected = [*range(1, first + 1), *range(first + 2, first + 2 + second)]
            self.assertEqual(copied, expected)

    def test_what_a_rank_writes_to_its_gradients_is_its_own(self):
        for rank, seen in enumerate(gang.successes(self.gang().run(written_to))):
            self.assertEqual([values for values, _ in seen], [[step + 1.5] for step in range(4)])
            copies = [copied[1] > 0 for _, copied in seen]
            self.assertEqual(copies, [False, rank == 1, rank == 1, rank == 1])

    def test_buckets_are_called_in_one_order_whatever_order_gradients_come_in(self):
        self.assertEqual(gang.successes(self.gang().run(in_the_order_of_the_model)), [True] * 4)

    def test_models_that_differ_are_an_error_on_all_ranks(self):
        for errors, none in gang.successes(self.gang().run(another_model)):
            self.assertRegex(errors, "ranks disagree.*bucket 0 of layout")
            self.assertTrue(none)

    def test_misuse_is_an_error_that_says_what_to_do(self):
        for errors, values in gang.successes(self.gang().run(misused)):
            self.assertIn("no_sync()", errors[0])
            self.assertIn("call wait() first", errors[1])
            self.assertEqual(values, [1.0])

    def test_arenas_that_are_gone_hold_nothing(self):
        # 30 times 4 MiB of inputs and of results, and the sidecar has 16 MiB of either.
        sidecars = self.enterContext(Sidecars(1, 2, "--limit-mib=16"))
        self.assertEqual(gang.successes(sidecars.run(let_go, 30)), [1.0] * 2)


def _parameters():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.Linear(8 * 36, 64),
        torch.nn.Linear(64, 4),
    )
    return [*layers.parameters(), torch.ones(4, dtype=torch.float64)]
