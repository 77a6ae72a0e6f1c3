"""Which checkpoints stay: what goes once newer ones are known to load, and what saves leave."""

import errno

import torch
from checkpoints import Box, Case, Failing
from fireflyer import CheckpointError
from fireflyer.checkpoint import manifest
from fireflyer.checkpoint.disk import Disk
from fireflyer.checkpoint.retention import Retention


class RetentionTest(Case):
    def test_what_was_passed_over_is_not_removed_by_the_run_that_could_not_load_it(self):
        writer = self.checkpoint(box=Box(torch.zeros(1)))
        writer.save(1)
        writer.save(2)
        self.damage("attempt-1/step-2")
        reader = self.checkpoint(attempt=2, box=Box(), keep_last=1)
        reader.resume()
        for step in range(3, 8):
            reader.save(step)
        self.assertEqual(self.saved(), ["attempt-1/step-2", "attempt-2/step-7"])

    def test_nothing_goes_before_a_newer_one_was_read_back(self):
        self.checkpoint(box=Box(torch.zeros(1)), keep_last=5).save(1)
        disk = Failing("", OSError(errno.EIO, "Input/output error"))
        disk.fails = False
        writer = self.checkpoint(attempt=2, box=Box(torch.zeros(1)), keep_last=1, disk=disk)
        writer._look()
        disk.fails = True
        for step in range(2, 5):
            writer.save(step)
        self.assertEqual(len(self.saved()), 4)
        disk.fails = False
        writer.save(5)
        self.assertEqual(self.saved(), ["attempt-2/step-5"])

    def test_a_save_that_reads_back_as_something_else_is_an_error_and_replaces_nothing(self):
        class Lying(Disk):
            def write(self, path, chunks):
                chunks = [bytes(chunk) for chunk in chunks]
                if path.name.startswith("shard"):
                    chunks[0] = bytes(len(chunks[0]) - 1) + b"!"
                super().write(path, chunks)

        self.checkpoint(box=Box(torch.zeros(1))).save(1)
        writer = self.checkpoint(attempt=2, box=Box(torch.zeros(1)), keep_last=1, disk=Lying())
        with self.assertRaisesRegex(CheckpointError, "reading it back failed: .*another SHA-256"):
            writer.save(2)
        self.assertIn("attempt-1/step-1", self.saved())

    def test_with_sharded_states_fewer_ranks_replace_nothing_that_all_can_load(self):
        def known(step, ranks):
            tensors = {f"rank-{rank}.random.torch": {} for rank in range(ranks)}
            found = manifest.Manifest(1, step, step, ranks, "", "", {}, tensors, {}, [{}] * ranks)
            return found, f"digest-{step}"

        # Newest first: three of two ranks after the loss of one of three.
        found = [known(5, 2), known(4, 2), known(3, 2), known(2, 3), known(1, 3)]
        kept = Retention(keep_last=2, world_size=3, verified={"digest-5", "digest-2"})
        self.assertEqual([one.step for one in kept.removable(found)], [3, 1])
        kept.verified = {"digest-5"}
        self.assertEqual([one.step for one in kept.removable(found)], [3], "of its own kind only")
        kept.world_size = None
        self.assertEqual([one.step for one in kept.removable(found)], [3, 2, 1])

    def test_old_checkpoints_go_only_after_newer_ones_are_durable(self):
        writer = self.checkpoint(box=Box(torch.zeros(4)), keep_last=2)
        for step in range(5):
            writer.save(step)
            kept = [f"attempt-1/step-{one}" for one in range(max(0, step - 1), step + 1)]
            self.assertEqual(self.saved(), kept)
        self.assertEqual(len(list((self.root / "attempt-1").iterdir())), 2, "shards went too")

    def test_what_an_interrupted_save_left_is_removed(self):
        left = self.root / "attempt-1/step-3"
        left.mkdir(parents=True)
        (left / "shard-00000.1.new").write_bytes(b"half")
        self.checkpoint(attempt=2, box=Box(1)).save(4)
        self.assertFalse(left.exists())

    def test_what_a_later_attempt_is_saving_is_no_leftover(self):
        saving = self.root / "attempt-2/step-9"
        saving.mkdir(parents=True)
        self.checkpoint(attempt=1, box=Box(1)).save(4)
        self.assertTrue(saving.exists(), "attempt 1 is void and does not know")
        self.checkpoint(attempt=2, box=Box(1)).save(10)
        self.assertFalse(saving.exists())

    def test_what_a_later_attempt_has_saved_is_not_removed_by_a_void_one(self):
        void = self.checkpoint(attempt=1, box=Box(1), keep_last=2)
        void.save(10)
        self.checkpoint(attempt=2, box=Box(1), keep_last=2).save(12)
        for step in range(13, 17):
            void.save(step)
        self.assertEqual(
            self.saved(), ["attempt-1/step-15", "attempt-1/step-16", "attempt-2/step-12"]
        )
        self.checkpoint(attempt=2, box=Box(1), keep_last=2).save(17)
        self.assertEqual(self.saved(), ["attempt-1/step-16", "attempt-2/step-17"])

    def test_what_a_job_of_before_left_under_a_later_attempt_is_removed(self):
        for resumes in (False, True):
            before = self.checkpoint(attempt=5, box=Box(1))
            before.save(50)
            before.save(51)
            made_anew = self.checkpoint(attempt=1, box=Box(1), keep_last=1)
            if resumes:
                made_anew.resume()
            made_anew.save(60)
            self.assertEqual(self.saved(), ["attempt-1/step-60"])

    def test_a_later_attempt_may_save_again_what_was_there_at_the_start(self):
        self.checkpoint(attempt=2, box=Box(1)).save(5)
        void = self.checkpoint(attempt=1, box=Box(1), keep_last=1)
        void.resume()
        self.checkpoint(attempt=2, box=Box(1)).save(5)
        void.save(6)
        void.save(7)
        self.assertEqual(self.saved(), ["attempt-1/step-7", "attempt-2/step-5"])

    def test_saving_a_step_again_replaces_it_as_a_whole(self):
        box = Box(torch.zeros(1))
        self.checkpoint(box=box).save(1)
        box.value = torch.ones(1)
        self.checkpoint(box=box).save(1)
        self.assertEqual(
            len(list((self.root / "attempt-1/step-1").iterdir())), 2, "one shard, one manifest"
        )
        box.value = None
        self.assertEqual(self.checkpoint(attempt=2, box=box).resume(), 2)
        self.assertEqual(box.value.item(), 1)
