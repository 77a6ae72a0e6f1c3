"""The command that runs the checks of `python/gpu` says what came of each, whatever it does, and leaves nothing behind."""

import contextlib
import io
import json
import os
import signal
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from gpu_checks import __main__ as command
from gpu_checks import kit, machine, runner
from gpu_checks.findings import Findings

DRIVER = os.environ.get("FIREFLYER_FAKE_CUDA", "")

CASES = {
    "passes": """
    found.holds("one and one are two", 1 + 1 == 2)
    found.not_judged("the weather", "no window")
    found.not_judged("the hour", "no window")
    found.figure("legs", 4)
""",
    "fails": """
    found.holds("one holds", True)
    found.holds("two are three", False, "they are two")
""",
    "absent": """
    found.not_judged("compute-sanitizer", "it is not installed")
""",
    "raises": """
    raise ValueError("a mistake of the check's")
""",
    "dies": """
    import os
    os._exit(3)
""",
    "hangs": """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    time.sleep(600)
""",
}
#: Enough for Python to start on a busy machine.
LIMIT_SECONDS = 8.0


class CasesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, body in CASES.items():
            path = self.folder / f"case_{name}.py"
            path.write_text(f"def check(found):{body}")
        self.enterContext(mock.patch.dict(os.environ))
        paths = [self.folder, sys.path[0], os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))

    def check(self, name, limit_seconds=120.0):
        return runner.Check(name, limit_seconds, needs_pytorch=False, module=f"case_{name}")

    def report(self, name, *limit):
        return runner.run(self.check(name, *limit), self.folder, {})


class RunnerTest(CasesTest):
    def test_a_check_passes_when_all_that_was_judged_holds(self):
        report = self.report("passes")
        self.assertEqual(report["outcome"], "PASS")
        self.assertEqual(
            report["reason"], "1 claim holds; not judged: the weather and 1 more: no window"
        )
        self.assertEqual(report["figures"], {"legs": 4})
        self.assertNotIn("log", report)

    def test_one_claim_that_does_not_hold_fails_a_check_and_is_its_reason(self):
        report = self.report("fails")
        self.assertEqual(report["outcome"], "FAIL")
        self.assertEqual(report["reason"], "two are three: they are two")
        self.assertEqual([one["holds"] for one in report["claims"]], [True, False])

    def test_what_nobody_could_judge_has_not_run(self):
        report = self.report("absent")
        self.assertEqual(report["outcome"], "NOT RUN")
        self.assertEqual(report["reason"], "compute-sanitizer: it is not installed")

    def test_a_check_that_raises_or_dies_fails_and_says_how(self):
        raised, died = self.report("raises"), self.report("dies")
        self.assertEqual((raised["outcome"], died["outcome"]), ("FAIL", "FAIL"))
        self.assertEqual(raised["reason"], "ValueError: a mistake of the check's")
        self.assertIn('raise ValueError("a mistake', "\n".join(raised["log"]))
        self.assertEqual(died["reason"], "its process ended with 3 and no result")

    def test_a_check_that_hangs_fails_says_where_and_is_ended_with_its_processes(self):
        report = self.report("hangs", LIMIT_SECONDS)
        self.assertEqual(report["outcome"], "FAIL")
        self.assertIn("hangs: not over after 8 s", report["reason"])
        log = "\n".join(report["log"])
        self.assertIn('case_hangs.py", line 5 in check', log)
        child = int(log.split("child ")[1].split()[0])
        # A zombie is gone as well: in a container nobody may wait for it.
        with contextlib.suppress(FileNotFoundError):
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
            self.assertEqual(state, "Z")

    def test_a_rehearsal_does_not_count_as_a_check_that_ran(self):
        report = runner.rehearsed(self.report("passes"))
        self.assertEqual(report["outcome"], "NOT RUN")
        self.assertIn("rehearsed on the CPU: 1 claim holds", report["reason"])
        self.assertEqual(runner.rehearsed(self.report("fails"))["outcome"], "FAIL")


class CommandTest(CasesTest):
    def setUp(self):
        super().setUp()
        archive = self.folder / "archive"
        archive.mkdir()
        about = {"architecture": os.uname().machine, "commit": "0a1b", "version": "0.1.0"}
        (archive / "archive.json").write_text(json.dumps(about))
        with zipfile.ZipFile(archive / "fireflyer-0.1.0-cp311-abi3-linux.whl", "w") as wheel:
            wheel.writestr("of_the_wheel.py", "")
        self.enterContext(mock.patch.object(command, "_HOME", archive))
        self.enterContext(mock.patch.object(tempfile, "tempdir", str(self.folder)))
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))

    def run_checks(self, *checks):
        """Runs these on a stand-in; the exit status, the report and what was printed."""
        out, printed = self.folder / "report.json", io.StringIO()
        with (
            mock.patch.object(runner, "CHECKS", list(checks)),
            contextlib.redirect_stdout(printed),
        ):
            status = command.main(["--driver", "/nonexistent/libcuda.so", "--json", str(out)])
        return status, json.loads(out.read_text()), printed.getvalue()

    def test_a_failed_check_is_the_exit_status_and_the_report_has_all(self):
        # With PyTorch: what a stand-in for the driver cannot show.
        cuda = runner.Check("uaf")
        before = set(self.folder.iterdir())
        checks = (self.check("passes"), self.check("fails"), cuda)
        status, report, printed = self.run_checks(*checks)
        self.assertEqual(status, 1)
        self.assertEqual([one["outcome"] for one in report["checks"]], ["PASS", "FAIL", "NOT RUN"])
        self.assertIn("needs PyTorch with CUDA", report["checks"][2]["reason"])
        self.assertEqual(report["archive"]["commit"], "0a1b")
        self.assertTrue(report["stand_in"])
        self.assertLessEqual(
            {"python", "glibc", "kernel", "cpu", "pytorch", "cuda", "gpu", "driver"},
            set(report["machine"]),
        )
        for check in report["checks"]:
            self.assertLessEqual(
                {"name", "outcome", "reason", "seconds", "claims", "figures"}, set(check)
            )
        self.assertIn("1 passed, 1 failed, 1 not run", printed)
        self.assertEqual(set(self.folder.iterdir()) - before, {self.folder / "report.json"})

    def test_checks_that_did_not_run_are_no_failure(self):
        status, report, _ = self.run_checks(self.check("passes"), self.check("absent"))
        self.assertEqual((status, len(report["checks"])), (0, 2))

    def test_an_archive_for_another_machine_is_refused_before_anything_runs(self):
        (self.folder / "archive/archive.json").write_text('{"architecture": "m68k"}')
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = command.main(["--driver", "/nonexistent/libcuda.so"])
        self.assertEqual(status, 2)
        self.assertIn("the archive is for m68k", errors.getvalue())


class MachineTest(unittest.TestCase):
    FITS = {
        "architecture": "x86_64", "glibc": "2.28", "numpy": "1.26.0", "pytorch": "2.6.0+cu124",
        "cuda": "12.4", "cuda_is_available": True,
    }  # fmt: skip

    def refused(self, needs_gpu=True, needs_pytorch=True, **other):
        about = {**self.FITS, **other}
        return machine.refusals(about, "x86_64", needs_gpu=needs_gpu, needs_pytorch=needs_pytorch)

    def test_a_machine_that_has_all_is_not_refused(self):
        self.assertEqual(self.refused(), [])

    def test_each_thing_that_is_missing_or_too_old_is_named(self):
        for other, said in (
            ({"architecture": "aarch64"}, "this machine is aarch64"),
            ({"glibc": "2.17"}, "glibc 2.28 or later is needed, this is 2.17"),
            ({"glibc": None}, "another C library"),
            ({"numpy": None}, "NumPy is missing"),
            ({"pytorch": None, "pytorch_error": "No module named 'torch'"}, "PyTorch is missing"),
            ({"pytorch": "2.5.1"}, "PyTorch 2.6 or later is needed, this is 2.5.1"),
            ({"cuda": None}, "built without CUDA"),
            ({"cuda_is_available": False}, "PyTorch sees no GPU"),
        ):
            with self.subTest(said):
                refused = self.refused(**other)
                self.assertEqual(len(refused), 1, refused)
                self.assertIn(said, refused[0])

    def test_on_a_stand_in_neither_a_gpu_nor_pytorch_is_needed(self):
        self.assertEqual(self.refused(needs_gpu=False, cuda=None), [])
        self.assertEqual(self.refused(needs_gpu=False, needs_pytorch=False, pytorch=None), [])

    def test_this_machine_is_described(self):
        about = machine.facts()
        self.assertRegex(about["glibc"], r"^2\.\d+")
        self.assertIsNotNone(about["numpy"])
        self.assertIsNotNone(about["pytorch"])


@unittest.skipUnless(DRIVER, "FIREFLYER_FAKE_CUDA names no stand-in for the GPU's driver")
class StandInTest(unittest.TestCase):
    def test_segments_are_registered_by_two_processes_and_copied(self):
        from gpu_checks import reg

        run = kit.Kit(sidecar="", kernels="", driver=DRIVER)
        paths = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        variables = {**run.variable(), "PYTHONPATH": paths}
        found = Findings()
        with mock.patch.dict(os.environ, variables):
            reg.check(found)
        outcome, reason = found.outcome()
        self.assertEqual(outcome, "PASS", reason)
        self.assertIn("(c) 64 KiB in process 0 and 3 more", reason)


if __name__ == "__main__":
    unittest.main()
