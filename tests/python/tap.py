# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Runs the tests of this folder, or those named (test_pool, test_pool.Errors, ...), as TAP."""

import faulthandler
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 120


class Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number = 0

    def tell(self, test, good, comment="", text=""):
        self.number += 1
        for line in text.splitlines():
            print("#", line)
        name = test.id().replace("test_", "", 1).replace(".test_", ".")
        print(f"{'' if good else 'not '}ok {self.number} - {os.environ['BINPOOL_PYTHON_BACKEND']}"
              f"{os.environ.get('BINPOOL_TEST_ON', '')} {name}{comment}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.tell(test, True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell(test, True, f" # SKIP {reason}")

    def addError(self, test, err):
        super().addError(test, err)
        self.tell(test, False, text=self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.tell(test, False, text=self.failures[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.tell(subtest, False, text=self._exc_info_to_string(err, subtest))


def main():
    sys.path.insert(0, HERE)
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(sys.argv[1:]) if sys.argv[1:] else loader.discover(HERE)
    result = Tap()
    suite.run(result)
    print(f"1..{result.number}")
    return 0 if result.wasSuccessful() and result.number else 1


if __name__ == "__main__":
    sys.exit(main())
