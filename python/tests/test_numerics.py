"""How sums are rounded: by the job's word, by a group's, and the error of ranks that differ."""

import unittest

import gang
import torch
import torch.distributed as dist
from fireflyer import HFReduceError, Options
from sidecars import Sidecars, needed


def total(group=None):
    """256 on another rank for each element and 1 on the others, unless a rounding on the way loses some of it."""
    tensor = torch.ones(dist.get_world_size(), dtype=torch.bfloat16)
    tensor[dist.get_rank()] = 256
    dist.all_reduce(tensor, group=group)
    return tensor.tolist()


def in_groups():
    everybody = list(range(dist.get_world_size()))
    totals = {"job": (dist.group.WORLD.numerics, total())}
    for numerics in ("fast", "precise", "bitwise"):
        options = Options(numerics=numerics)
        group = dist.new_group(everybody, backend="hfreduce", pg_options=options)
        totals[numerics] = (group.numerics, total(group))
    return totals


def that_differ():
    rank = dist.get_rank()
    options = Options(numerics="bitwise" if rank == 1 else "precise")
    everybody = list(range(dist.get_world_size()))
    group = dist.new_group(everybody, backend="hfreduce", pg_options=options)
    try:
        total(group)
    except HFReduceError as raised:
        moved = torch.full((3,), float(rank))
        dist.broadcast(moved, 2, group=group)
        return str(raised), moved.tolist()
    return None


def in_a_word_that_is_none():
    try:
        dist.new_group([0, 1], backend="hfreduce", pg_options=Options(numerics="exact"))
    except HFReduceError as raised:
        return str(raised)
    return None


@needed
class NumericsTest(unittest.TestCase):
    def gang(self, nodes):
        return self.enterContext(Sidecars(nodes, 1))

    def test_a_group_rounds_as_it_says_and_else_as_the_job_does(self):
        sidecars = self.gang(9)
        variables = [{**own, "FIREFLYER_NUMERICS": "Bitwise"} for own in sidecars.variables()]
        ranks = gang.successes(sidecars.run(in_groups, variables=variables))
        self.assertEqual([one for one in ranks if one != ranks[0]], [])
        totals = ranks[0]
        correct = [264.0] * 9
        self.assertEqual(totals["job"], ("bitwise", correct))
        self.assertEqual(totals["precise"], ("precise", correct))
        self.assertEqual(totals["bitwise"], ("bitwise", correct))
        self.assertEqual(totals["fast"][0], "fast")

    def test_ranks_that_round_differently_get_an_error_with_both_words(self):
        for text, moved in gang.successes(self.gang(3).run(that_differ)):
            self.assertIn("ranks disagree", text)
            self.assertIn("bf16, precise", text)
            self.assertIn("bf16, bitwise", text)
            self.assertEqual(moved, [2.0] * 3, "what is only moved has no mode")

    def test_a_word_that_is_none_is_refused_with_the_choice(self):
        for text in gang.successes(self.gang(2).run(in_a_word_that_is_none)):
            self.assertIn("must be fast or precise or bitwise, not 'exact'", text)


if __name__ == "__main__":
    unittest.main()
