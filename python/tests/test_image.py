"""The root that these tests run in is the trainer image's: what it promises to every program."""

import importlib.util
import struct
import unittest
from pathlib import Path

import numpy
import sklearn
import torch

# Where `cargo xtask python --newest` puts a PyTorch that is not the image's.
NEWEST = Path("/opt/torch")


class CompiledModules(unittest.TestCase):
    def test_libraries_are_not_compiled_again_at_each_start(self):
        # A .pyc is used while the source has the time and size that it names (PEP 552, flags 0).
        for module in (torch, numpy, sklearn):
            source = Path(module.__file__)
            compiled = Path(importlib.util.cache_from_source(str(source)))
            with self.subTest(module=module.__name__):
                if NEWEST in source.parents:
                    self.skipTest(f"{module.__name__} is not the image's here")
                header = compiled.read_bytes()[:16]
                _magic, flags, time, size = struct.unpack("<4sIII", header)
                self.assertEqual(flags, 0)
                status = source.stat()
                self.assertEqual((time, size), (int(status.st_mtime), status.st_size))


if __name__ == "__main__":
    unittest.main()
