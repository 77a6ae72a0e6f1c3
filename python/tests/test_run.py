"""``fireflyer run`` trains a script over real sidecars, and says what is wrong when it cannot."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import sidecars
from fireflyer import run
from fireflyer import sidecars as ours

SUM = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("hfreduce")
x = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(x)
with open(sys.argv[1] + str(dist.get_rank()), "w") as out:
    print(float(x[0]), dist.group.WORLD.uses_sidecar, file=out)
dist.destroy_process_group()
"""


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def script(self, text):
        """A script of these lines."""
        path = self.folder / "train.py"
        path.write_text(text)
        return str(path)

    def refused(self, *arguments):
        """What a command that cannot work prints."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(run.main(["run", *arguments]), 2)
        return errors.getvalue()

    @sidecars.needed
    def test_the_ranks_of_two_nodes_sum_over_their_sidecars(self):
        out = self.folder / "rank-"
        status = run.main(["run", "-n", "4", self.script(SUM), str(out)])
        self.assertEqual(status, 0)
        for rank in range(4):
            self.assertEqual(Path(f"{out}{rank}").read_text(), "10.0 True\n")

    @sidecars.needed
    def test_the_first_failure_is_the_status_and_nobody_is_left_behind(self):
        script = self.script(
            "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)"
        )
        # The grace is for programs that report what they lost.
        program = "import fireflyer.run as run, sys; run.GRACE_SECONDS = 0.2; sys.exit(run.main())"
        command = [sys.executable, "-c", program, "run", "-n", "2", script]
        ended = subprocess.run(command, timeout=60, check=False)
        self.assertEqual(ended.returncode, 3)

    def test_sidecars_that_do_not_join_in_time_are_an_error(self):
        program = self.folder / "sidecar"
        program.write_text('#!/bin/sh\n[ "$1" = ready ] && exit 1\necho alone; exec sleep 1000\n')
        program.chmod(0o755)
        with mock.patch.object(ours, "READY_SECONDS", 0):
            refused = self.refused("--sidecar", str(program), self.script(""))
        self.assertIn("the sidecar of node 0 did not join", refused)

    def test_what_cannot_run_is_refused_with_what_to_do(self):
        script = self.script("")
        self.assertIn(
            "use a multiple of the nodes", self.refused("-n", "5", "--nodes", "2", script)
        )
        self.assertIn("at most 64", self.refused("-n", "65", "--nodes", "1", script))
        self.assertIn(
            "failed to find the script", self.refused(os.path.join(self.folder, "none.py"))
        )
        refused = self.refused("--sidecar", "/nonexistent/sidecar", script)
        self.assertIn("cargo build --release -p hfreduce-sidecar", refused)
