"""What the pages ask people to write works as it is, and so does the example.

Finds by itself every block of Python and every call in the text. A block runs in a script that has made the names that it does not
make itself; one that needs a GPU is compiled where there is none.
"""

import ast
import builtins
import contextlib
import functools
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
from sidecars import PROGRAM, Sidecars

ROOT = Path(__file__).parents[2]
README = ROOT / "python/README.md"
EXAMPLE = ROOT / "examples/digits.py"
PAGES = [ROOT / "README.md", README, *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
#: The names that a script has made before; see `made_before`.
KNOWN = {
    *("checkpoint", "ddp", "dist", "fireflyer", "group", "loss_of", "model", "optimizer"),
    *("ranks", "remaining_ranks", "torch", "total_steps", "train", "work"),
}


def blocks():
    """Where each block of Python is, and the block."""
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            if found[1] in ("python", "py", "python3"):
                line = text.count("\n", 0, found.start()) + 1
                yield f"{page.relative_to(ROOT)}:{line}", found[2]


def calls():
    """Where each call of ours or of torch.distributed in a page's text is, as an expression."""
    for page in PAGES:
        # Blocks away, with their lines kept.
        text = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
        for found in SPAN.finditer(text):
            code = " ".join(found[1].split())
            if re.search(r"\b(fireflyer|dist)\.[\w.]+\(", code) and "..." not in code:
                line = text.count("\n", 0, found.start()) + 1
                is_argument = re.match(r"\w+=", code)
                yield f"{page.relative_to(ROOT)}:{line}", f"dict({code})" if is_argument else code


def free_names(code):
    """Names that code uses and does not make."""
    tree = ast.parse(code)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    made |= {(one.asname or one.name).split(".")[0] for node in imports for one in node.names}
    return {node.id for node in names} - made - set(vars(builtins))


def made_before(names):
    """What a script has made before it comes to the code that uses these names."""
    model = torch.nn.Linear(2, 1)
    states = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    made = {
        **states,
        "dist": dist,
        "fireflyer": fireflyer,
        "loss_of": lambda model, step: model(torch.ones(1, 2)).sum(),
        "ranks": [0, 1],
        "remaining_ranks": [0, 1],
        "torch": torch,
        "total_steps": 3,
        "train": lambda step: 1.0 / (step + 1),
    }
    if "checkpoint" in names:
        made["checkpoint"] = fireflyer.Checkpoint(states)
    if "ddp" in names:
        made["ddp"] = torch.nn.parallel.DistributedDataParallel(model)
    if "group" in names:
        made["group"] = dist.group.WORLD
    if "work" in names:
        made["work"] = dist.all_reduce(torch.ones(1), async_op=True)
        made["work"].wait()
    return made


def follow(block, names):
    """Runs a block in a rank; returns what it was over, and the last checkpoint that it saved."""
    if "init_process_group" not in block:
        dist.init_process_group("hfreduce")
    around = made_before(names)
    exec(block, around)
    if "ddp" in names:
        around["ddp"](torch.ones(1, 2)).sum().backward()
    last = around["checkpoint"].last if "checkpoint" in around else None
    # The store ends with rank 0.
    dist.barrier()
    return dist.get_backend(), last and last.name


def evaluate(expressions):
    """Evaluates expressions in a rank, one after another; returns the types of what they are."""
    seen = [type(eval(code, made_before(free_names(code)))).__name__ for code in expressions]
    dist.barrier()
    return seen


class ReadmeTest(unittest.TestCase):
    def ends(self, block, attempts=1, ranks=({}, {})):
        """What ranks of some attempts in a row come to, over one directory. `ranks`: variables of each."""
        names = free_names(block)
        self.assertLessEqual(names, KNOWN, "a script has to make them first: see `made_before`")
        with tempfile.TemporaryDirectory() as root:
            job = {
                "FIREFLYER_CHECKPOINT_DIR": root,
                "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS": "0",
            }
            ends = []
            for attempt in range(1, attempts + 1):
                variables = [{**rank, **job, "FIREFLYER_ATTEMPT": str(attempt)} for rank in ranks]
                results = gang.run(follow, 2, block, names, backend=None, variables=variables)
                first, second = gang.successes(results)
                self.assertEqual(first, second)
                ends.append(first)
        return ends

    def test_every_block_of_python_on_a_page_runs(self):
        # Over sidecars, where their program is. A rank attaches once, so each block has its own.
        gangs = functools.partial(Sidecars, 2, 1) if PROGRAM else contextlib.nullcontext
        places = []
        for place, block in blocks():
            places.append(place)
            with self.subTest(place):
                compile(block, place, "exec")
                if "cuda" in block and not torch.cuda.is_available():
                    self.skipTest(f"{place} needs a GPU: it was compiled only")
                saves = "checkpoint" in block
                last = "attempt-1/step-2" if saves else None
                with gangs() as sidecars:
                    ranks = ({}, {}) if sidecars is None else sidecars.variables()
                    self.assertEqual(self.ends(block, ranks=ranks), [("hfreduce", last)])
        self.assertGreaterEqual(len(places), 4, places)

    def test_the_script_of_the_readme_trains_saves_and_resumes(self):
        # The second attempt finds nothing left to do.
        script = next(block for place, block in blocks() if place.startswith("python/README.md"))
        self.assertEqual(self.ends(script, 2), [("hfreduce", "attempt-1/step-2")] * 2)

    def test_every_call_in_the_text_of_a_page_can_be_made(self):
        found = list(calls())
        self.assertGreater(len(found), 5)
        for place, code in found:
            self.assertLessEqual(free_names(code), KNOWN, f"{place}: see `made_before`")
        first, second = gang.successes(
            gang.run(evaluate, 2, [code for _, code in found], backend="hfreduce")
        )
        self.assertEqual(first, second)

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
