"""The variables of the platform."""

import unittest
from pathlib import Path

from fireflyer.environment import Environment


class EnvironmentTest(unittest.TestCase):
    def test_outside_a_job_everything_has_a_default(self):
        settings = Environment.read({"FIREFLYER_RUN_DIR": "/nonexistent"})
        self.assertEqual(
            (settings.attempt, settings.rank, settings.world_size, settings.keep_last), (1, 0, 1, 3)
        )
        self.assertEqual((settings.backend, settings.numerics), ("HFReduce", "Fast"))
        self.assertFalse(settings.falls_back)
        self.assertEqual((settings.node_rank, settings.on_peer_loss), (0, "Restart"))
        self.assertEqual((settings.nvlink, settings.nvlink_least_bytes), ("Never", 4 << 20))
        self.assertIsNone(settings.run_dir)
        self.assertIsNone(settings.checkpoint_dir)
        self.assertEqual((settings.resume, settings.last_checkpoint), (None, None))

    def test_what_operator_and_launcher_set_is_read(self):
        settings = Environment.read(
            {
                "FIREFLYER_ATTEMPT": "3",
                "FIREFLYER_BACKEND": "None",
                "FIREFLYER_NUMERICS": "Bitwise",
                "FIREFLYER_NVLINK": "Auto",
                "FIREFLYER_NVLINK_LEAST_BYTES": "0",
                "FIREFLYER_CHECKPOINT_DIR": "/checkpoint/digits",
                "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS": "2.5",
                "FIREFLYER_CHECKPOINT_KEEP_LAST": "4",
                "FIREFLYER_RESUME": "attempt-2/step-120",
                "FIREFLYER_LAST_CHECKPOINT": "attempt-2/step-120",
                "FIREFLYER_ON_PEER_LOSS": "Shrink",
                "NODE_RANK": "2",
                "RANK": "5",
                "WORLD_SIZE": "8",
            }
        )
        self.assertEqual(settings.checkpoint_dir, Path("/checkpoint/digits"))
        self.assertEqual((settings.attempt, settings.rank, settings.world_size), (3, 5, 8))
        self.assertEqual((settings.backend, settings.numerics), ("None", "Bitwise"))
        self.assertEqual((settings.node_rank, settings.on_peer_loss), (2, "Shrink"))
        self.assertEqual((settings.nvlink, settings.nvlink_least_bytes), ("Auto", 0))
        self.assertEqual((settings.interval_seconds, settings.keep_last), (2.5, 4))
        self.assertEqual((settings.resume, settings.last_checkpoint), ((2, 120), (2, 120)))

    def test_a_wrong_value_is_named_with_its_variable(self):
        for name, value in {
            "FIREFLYER_ATTEMPT": "0",
            "RANK": "first",
            "FIREFLYER_BACKEND": "gloo",
            "FIREFLYER_NUMERICS": "fast",
            "FIREFLYER_FALLBACK": "nccl",
            "FIREFLYER_ON_PEER_LOSS": "Go on",
            "FIREFLYER_NVLINK": "Off",
            "FIREFLYER_NVLINK_LEAST_BYTES": "4M",
            "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS": "-1",
            "FIREFLYER_CHECKPOINT_KEEP_LAST": "0",
            "FIREFLYER_RESUME": "../../etc",
            "FIREFLYER_LAST_CHECKPOINT": "step-3",
        }.items():
            with (
                self.subTest(name),
                self.assertRaisesRegex(ValueError, f"{name} must .*not '{value}'"),
            ):
                Environment.read({name: value})
