"""What a rank says of where it is, when it is asked."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

BLOCKED = """
import signal, sys, time
{before}
from fireflyer import stacks
stacks.install()

def stands_still():
    print("ready", flush=True)
    time.sleep(60)

stands_still()
"""


class StacksTest(unittest.TestCase):
    def ask(self, before="", run_dir=None):
        """Standard error and the exit code of a process that stands still, after SIGUSR1 and, if it lives, SIGTERM."""
        process = subprocess.Popen(
            [sys.executable, "-c", BLOCKED.format(before=before)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FIREFLYER_RUN_DIR": run_dir or tempfile.gettempdir()},
        )
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGUSR1)
        errors = ""
        while line := process.stderr.readline():
            errors += line
            if "in <module>" in line or "mine" in line:  # The last one.
                process.terminate()
        process.communicate(timeout=60)
        return errors, process.returncode

    def test_a_process_that_stands_still_says_where_and_lives_on(self):
        errors, code = self.ask()
        self.assertIn("in stands_still", errors)
        self.assertEqual(code, -signal.SIGTERM)

    def test_a_handler_of_the_script_is_left_alone(self):
        own = "signal.signal(signal.SIGUSR1, lambda *_: print('mine', file=sys.stderr, flush=True))"
        errors, _ = self.ask(before=own)
        self.assertEqual(errors, "mine\n")

    def test_outside_a_job_nothing_is_installed(self):
        errors, code = self.ask(run_dir="/nonexistent/run")
        self.assertEqual((errors, code), ("", -signal.SIGUSR1))


if __name__ == "__main__":
    unittest.main()
