"""What the README tells people to write works as it stands."""

import re
import tempfile
import unittest
from pathlib import Path

import gang
import torch
import torch.distributed as dist

README = Path(__file__).parents[1] / "README.md"


def follow(script):
    """Runs the script in a rank; returns what it was over, and the last checkpoint it saved."""
    model = torch.nn.Linear(2, 1)
    around = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "total_steps": 3,
        "train": lambda step: 1.0 / (step + 1),
    }
    exec(script, around)
    return dist.get_backend(), around["checkpoint"].last.name


class ReadmeTest(unittest.TestCase):
    def test_the_script_of_the_readme_trains_saves_and_resumes(self):
        script = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
        with tempfile.TemporaryDirectory() as root:
            job = {
                "FIREFLYER_CHECKPOINT_DIR": root,
                "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS": "0",
            }
            for attempt in ("1", "2"):
                variables = [{**job, "FIREFLYER_ATTEMPT": attempt}] * 2
                ends = gang.successes(
                    gang.run(follow, 2, script, backend=None, variables=variables)
                )
                # The second finds nothing left to do.
                self.assertEqual(ends, [("hfreduce", "attempt-1/step-2")] * 2)
