"""What the README asks people to write works as it is, and so does the example."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import fireflyer
import gang
import torch
import torch.distributed as dist
from fireflyer.sidecars import free_port

README = Path(__file__).parents[1] / "README.md"
EXAMPLE = Path(__file__).parents[2] / "examples/digits.py"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
#: What the first snippet does before it trains; the others are of the same script.
HEAD = SNIPPETS[0].partition("for step in")[0]


def follow(script):
    """Runs the script in a rank; returns what it was over, and the last checkpoint it saved."""
    model = torch.nn.Linear(2, 1)
    around = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "total_steps": 3,
        "train": lambda step: 1.0 / (step + 1),
        "loss_of": lambda model, step: model(torch.ones(1, 2)).sum(),
    }
    if "ddp" in script:
        dist.init_process_group("gloo")
        around["ddp"] = torch.nn.parallel.DistributedDataParallel(model)
        around["fireflyer"] = fireflyer
    exec(script, around)
    if "ddp" in script:
        around["ddp"](torch.ones(1, 2)).sum().backward()
    last = around["checkpoint"].last if "checkpoint" in around else None
    return dist.get_backend(), last and last.name


class ReadmeTest(unittest.TestCase):
    def ends(self, script, attempts):
        """What ranks of some attempts in a row come to, over one directory."""
        with tempfile.TemporaryDirectory() as root:
            job = {
                "FIREFLYER_CHECKPOINT_DIR": root,
                "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS": "0",
            }
            ends = []
            for attempt in range(1, attempts + 1):
                variables = [{**job, "FIREFLYER_ATTEMPT": str(attempt)}] * 2
                results = gang.run(follow, 2, script, backend=None, variables=variables)
                first, second = gang.successes(results)
                self.assertEqual(first, second)
                ends.append(first)
        return ends

    def test_the_script_of_the_readme_trains_saves_and_resumes(self):
        # The second attempt finds nothing left to do.
        ends = self.ends(SNIPPETS[0], attempts=2)
        self.assertEqual(ends, [("hfreduce", "attempt-1/step-2")] * 2)

    def test_every_other_snippet_runs_in_that_script(self):
        self.assertEqual(len(SNIPPETS), 4, "there is a new one")
        loop, arena, hook = SNIPPETS[1:]
        self.assertEqual(self.ends(HEAD + loop, 1), [("hfreduce", "attempt-1/step-2")])
        self.assertEqual(self.ends(HEAD + arena, 1), [("hfreduce", None)])
        self.assertEqual(self.ends(hook, 1), [("gloo", None)])

    def test_every_name_that_the_readme_says_is_there(self):
        names = set(re.findall(r"\bfireflyer((?:\.\w+)+)", README.read_text()))
        self.assertGreater(len(names), 5)
        for name in sorted(names):
            found = fireflyer
            for part in name.split(".")[1:]:
                if found is fireflyer and importlib.util.find_spec(f"fireflyer.{part}"):
                    importlib.import_module(f"fireflyer.{part}")
                found = getattr(found, part)

    @unittest.skipUnless(importlib.util.find_spec("sklearn"), "scikit-learn is not installed")
    def test_the_example_trains_resumes_and_ends(self):
        with tempfile.TemporaryDirectory() as root:
            said = []
            for attempt, steps in ((1, 2), (2, 4)):
                variables = {
                    **os.environ,
                    "FIREFLYER_CHECKPOINT_DIR": root,
                    "FIREFLYER_ATTEMPT": str(attempt),
                    "MASTER_PORT": str(free_port()),
                }
                command = [sys.executable, EXAMPLE, "--backend=gloo", f"--steps={steps}"]
                done = subprocess.run(
                    command, env=variables, capture_output=True, text=True, timeout=120, check=False
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                said.append([line.split("=")[0] + "=" + line.split("=")[1].split()[0]
                             for line in done.stdout.splitlines() if line.startswith(("r", "c"))])  # fmt: skip
                self.assertRegex(done.stdout, r"accuracy=0\.\d+\n$")
        self.assertEqual(said[0], ["checkpoint=attempt-1/step-1"])
        self.assertEqual(said[1], ["resumed=attempt-1/step-1", "checkpoint=attempt-2/step-3"])
