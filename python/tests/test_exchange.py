"""What each rank gets for itself, over real sidecars: the same as over gloo, from the same inputs."""

import unittest

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError
from sidecars import Sidecars, needed
from test_hfreduce import Nobody

#: A rank that waits longer hangs, in seconds.
_DEADLINE_SECONDS = 60.0

#: What gloo moves, and what is compared with the same numbers of one of these.
DTYPES = (torch.float32, torch.float64, torch.int64)
OTHERS = (torch.bfloat16, torch.int16, torch.complex64)


def content(count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 100, (count,), generator=generator).to(dtype)


def collectives(group, dtype, length):
    """What these calls leave in the tensors of this rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    seen = []
    for root in range(size):
        mine = content(length, dtype, rank)
        parts = [torch.zeros(length, dtype=dtype) for _ in range(size)] if rank == root else None
        dist.gather(mine, parts, dst=root, group=group)
        seen += parts or []
        part = torch.zeros(length, dtype=dtype)
        whole = list(content(length * size, dtype, root).split(length)) if length else None
        if length:
            dist.scatter(part, whole if rank == root else None, src=root, group=group)
        seen.append(part)
    output = torch.zeros(length * size, dtype=dtype)
    dist.all_to_all_single(output, content(length * size, dtype, rank), group=group)
    seen.append(output)
    rows = torch.zeros(size, length, dtype=dtype)
    dist.all_to_all_single(rows, content(length * size, dtype, rank).view(size, -1), group=group)
    seen.append(rows)

    def parts(one, other):
        return (one * 7 + other * 3) * length % 11

    send = [parts(rank, other) for other in range(size)]
    receive = [parts(other, rank) for other in range(size)]
    output = torch.zeros(sum(receive), 2, dtype=dtype)
    brought = content(2 * sum(send), dtype, rank).view(-1, 2)
    dist.all_to_all_single(output, brought, receive, send, group=group)
    seen.append(output)
    return seen


def lists(group, dtype, length):
    """All-to-all of lists, which gloo does not do: what must come is known."""
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs = [content(length + other, dtype, rank * size + other) for other in range(size)]
    outputs = [torch.zeros(length + rank, dtype=dtype) for _ in range(size)]
    dist.all_to_all(outputs, inputs, group=group)
    for other, output in enumerate(outputs):
        assert output.equal(content(length + rank, dtype, other * size + rank)), (other, output)
    strided = torch.zeros(length + rank, 2, dtype=dtype)[:, 0]
    dist.all_to_all([strided, *outputs[1:]], inputs, group=group)
    assert strided.equal(outputs[0])


def compare():
    """Over the sidecars and over gloo."""
    reference = dist.new_group(backend="gloo")
    dist.group.WORLD.communicator.gloo = Nobody()
    for dtype in DTYPES + OTHERS:
        for length in (0, 1, 3, 1000):
            ours = collectives(dist.group.WORLD, dtype, length)
            known = dtype if dtype in DTYPES else torch.float64
            theirs = [one.to(dtype) for one in collectives(reference, known, length)]
            for place, (one, other) in enumerate(zip(ours, theirs)):
                assert one.equal(other), (dtype, length, place, one, other)
            lists(dist.group.WORLD, dtype, length)
    return True


def messages(group, use):
    """Everybody with everybody, in a batch; then a ring, whose ends are waited for the other way round."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [torch.zeros(100 + other) for other in range(size)]
    operations = []
    for other in range(size):
        if other != rank:
            sent = content(100 + rank, torch.float32, rank * size + other)
            operations.append(dist.P2POp(dist.isend, sent, other, group, tag=use))
            operations.append(dist.P2POp(dist.irecv, received[other], other, group, tag=use))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    before, after = (rank - 1) % size, (rank + 1) % size
    tensor = torch.zeros(3)
    coming = dist.irecv(tensor, before, group=group)
    going = dist.isend(torch.full((3,), float(rank)), after, group=group)
    going.wait()
    assert coming.wait() and coming.is_completed()
    assert tensor.eq(float(before)).all()
    return [*received, tensor]


def compare_messages():
    reference = dist.new_group(backend="gloo")
    dist.group.WORLD.communicator.gloo = Nobody()
    for use in (0, 1, 2):
        ours = messages(dist.group.WORLD, use)
        theirs = messages(reference, use)
        assert all(one.equal(other) for one, other in zip(ours, theirs)), use
    return True


def out_of_order():
    """A message is waited for before one that was called for earlier, across a collective."""
    rank = dist.get_rank()
    dist.group.WORLD.communicator.gloo = Nobody()
    late, early, total = torch.zeros(5), torch.zeros(5), torch.ones(1)
    if rank == 0:
        coming = dist.irecv(late, 1, tag=7)
        dist.irecv(early, 1, tag=8).wait()
        dist.all_reduce(total)
        coming.get_future().wait()
        return late.tolist(), early.tolist(), total.item()
    if rank == 1:
        dist.send(torch.full((5,), 8.0), 0, tag=8)
    dist.all_reduce(total)
    if rank == 1:
        dist.send(torch.full((5,), 7.0), 0, tag=7)
    return None


def many():
    """More messages than the sidecar takes at a time, one after the other."""
    rank = dist.get_rank()
    dist.group.WORLD.communicator.gloo = Nobody()
    other = rank ^ 1
    tensors = [torch.zeros(10) for _ in range(100)]
    for step, tensor in enumerate(tensors):
        works = [dist.irecv(tensor, other), dist.isend(torch.full((10,), float(step)), other)]
        if step % 3 == 0:
            [work.wait() for work in works]
    dist.barrier()
    tensor = torch.zeros(1)
    works = [dist.isend(torch.full((1,), float(rank)), other), dist.irecv(tensor, other)]
    [work.wait() for work in works]
    return tensor.item(), [int(one[0]) for one in tensors[::3]]


def all_sent_first():
    """Each sends many, then receives the last one first; then all have called for many before one is sent."""
    rank = dist.get_rank()
    dist.group.WORLD.communicator.gloo = Nobody()
    other, total = rank ^ 1, torch.ones(1)
    tensors = [torch.zeros(3) for _ in range(200)]

    def send(tag):
        return dist.isend(torch.full((3,), float(1000 * rank + tag)), other, tag=tag)

    sent = [send(tag) for tag in range(len(tensors))]
    for tag, tensor in reversed(list(enumerate(tensors))):
        dist.recv(tensor, other, tag=tag)
    [work.wait() for work in sent]
    right = [tensor.eq(float(1000 * other + tag)).all() for tag, tensor in enumerate(tensors)]
    received = [dist.irecv(tensor.zero_(), other, tag=tag) for tag, tensor in enumerate(tensors)]
    dist.all_reduce(total)
    sent = [send(tag) for tag in reversed(range(len(tensors)))]
    [work.wait() for work in received + sent]
    right += [tensor.eq(float(1000 * other + tag)).all() for tag, tensor in enumerate(tensors)]
    return all(right), total.item()


def refused():
    rank = dist.get_rank()
    texts = []
    if rank == 0:
        for call in (
            lambda: dist.send(torch.ones(4), 1),
            lambda: dist.recv(torch.ones(4)),
        ):
            try:
                call()
            except HFReduceError as error:
                texts.append(str(error))
    elif rank == 1:
        try:
            dist.recv(torch.ones(5), 0)
        except HFReduceError as error:
            texts.append(str(error))
    total = torch.ones(1)
    dist.all_reduce(total)
    return texts, total.item()


def in_groups():
    """Pairs over nodes and within them."""
    rank = dist.get_rank()
    for ranks in ([0, 2], [1, 3], [0, 1], [2, 3], [0, 1, 3]):
        group = dist.new_group(ranks)
        if rank not in ranks:
            continue
        assert group.uses_sidecar
        group.communicator.gloo = Nobody()
        output = torch.zeros(len(ranks))
        dist.all_to_all_single(output, torch.full((len(ranks),), float(rank)), group=group)
        assert output.tolist() == [float(one) for one in ranks], output
        other = ranks[(ranks.index(rank) + 1) % len(ranks)]
        last = ranks[ranks.index(rank) - 1]
        tensor = torch.zeros(2)
        works = [
            dist.isend(torch.full((2,), float(rank)), other, group=group),
            dist.irecv(tensor, last, group=group),
        ]
        [work.wait() for work in works]
        assert tensor.eq(float(last)).all()
    return True


@needed
class ExchangeTest(unittest.TestCase):
    def run_gang(self, function, *arguments):
        sidecars = self.enterContext(Sidecars(2, 2))
        return gang.successes(
            sidecars.run(function, *arguments, deadline_seconds=_DEADLINE_SECONDS)
        )

    def test_collectives_leave_what_gloo_leaves_and_need_nothing_of_it(self):
        self.assertEqual(self.run_gang(compare), [True] * 4)

    def test_messages_bring_what_gloo_brings_and_need_nothing_of_it(self):
        self.assertEqual(self.run_gang(compare_messages), [True] * 4)

    def test_a_message_is_waited_for_in_any_order(self):
        first, *_ = self.run_gang(out_of_order)
        self.assertEqual(first, ([7.0] * 5, [8.0] * 5, 4.0))

    def test_messages_that_nobody_waits_for_keep_no_others(self):
        steps = [float(step) for step in range(0, 100, 3)]
        for rank, (last, seen) in enumerate(self.run_gang(many)):
            self.assertEqual((last, seen), (float(rank ^ 1), steps))

    def test_messages_meet_in_any_order_and_keep_no_collective(self):
        self.assertEqual(self.run_gang(all_sent_first), [(True, 4.0)] * 4)

    def test_what_two_ranks_do_not_agree_about_is_their_error_alone(self):
        first, second, *others = self.run_gang(refused)
        for texts, _ in (first, second):
            self.assertIn("rank 0 called send(4 x f32 to rank 1)", texts[0])
            self.assertIn("rank 1 called recv(5 x f32 from rank 0)", texts[0])
        self.assertIn("failed to receive from any rank", first[0][1])
        self.assertIn("Name it (`src=`)", first[0][1])
        self.assertIn('`new_group(backend="gloo")`', first[0][1])
        self.assertEqual([total for _, total in (first, second, *others)], [4.0] * 4)

    def test_groups_exchange_without_gloo(self):
        self.assertEqual(self.run_gang(in_groups), [True] * 4)


if __name__ == "__main__":
    unittest.main()
