"""Runs the test modules, classes or methods that standard input names, one a line, as `cargo xtask python` does."""

import faulthandler
import os
import sys
import unittest

#: A test that takes longer hangs: where each of its threads is is printed, and the process ends.
LIMIT_SECONDS = 600
#: Says that all of a module is printed.
END = "== end of module"


class Result(unittest.TextTestResult):
    """Knows how long a test may take."""

    def startTest(self, test):
        faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
        super().startTest(test)


def main():
    """Runs them in this order."""
    with os.fdopen(os.dup(0)) as names:
        # Programs that tests start must not read names.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name in names:
            suite = unittest.defaultTestLoader.loadTestsFromName(name.strip())
            unittest.TextTestRunner(verbosity=2, durations=0, resultclass=Result).run(suite)
            faulthandler.cancel_dump_traceback_later()
            # In one piece, whatever was printed before it.
            sys.stdout.write(f"\n{END}\n")


if __name__ == "__main__":
    main()
