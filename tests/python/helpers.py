# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the tests share."""

import os
import subprocess
import sys
import textwrap
import unittest

import binpool

MIB = 1 << 20
BACKEND = os.environ["BINPOOL_PYTHON_BACKEND"]
# Of what is released, or is no memory, by backend.
NO_VIEW = {"native": (ValueError, BufferError), "ctypes": TypeError}[BACKEND]


def thp(name="test", **options):
    return binpool.MemoryPool(name, "thp", **options)


class Counter:
    """An allocator that counts, keeps a bound, and fails when told to. Things are handles."""

    def __init__(self, make=None, bound=1 << 62):
        self.make = make or (lambda nbytes: Thing(self, nbytes))
        self.bound, self.nbytes, self.allocs, self.frees = bound, 0, 0, 0
        self.fails = []

    def __call__(self, nbytes):
        if self.fails:
            raise self.fails.pop()
        if self.nbytes + nbytes > self.bound:
            raise MemoryError("the counter's bound")
        self.allocs += 1
        self.nbytes += nbytes
        return self.make(nbytes)


class Thing:
    def __init__(self, counter, nbytes):
        self.counter, self.nbytes = counter, nbytes

    def __del__(self):
        self.counter.frees += 1
        self.counter.nbytes -= self.nbytes


class Case(unittest.TestCase):
    def identities(self, pool):
        """What always holds of a pool's counters."""
        c = pool.counters()
        self.assertEqual(c["active_blocks"],
                         c["allocs"] + c["reuses"] - c["returns"] - c["frees_active"])
        self.assertEqual(c["held_blocks"], c["returns"] - c["reuses"] - c["frees_held"])
        self.assertLessEqual(c["managed_bytes"], c["reserved_bytes"])
        return c

    def raises(self, exception, words, function, /, *arguments, **named):
        """The call raises this, and its sentence has these words; the exception."""
        with self.assertRaises(exception) as caught:
            function(*arguments, **named)
        self.assertIn(words, str(caught.exception))
        return caught.exception

    def script(self, text, *, status=0, errors=(), **environment):
        """Runs a program of its own; what it printed. errors: what is on stderr, if anything."""
        done = subprocess.run([sys.executable, "-X", "faulthandler", "-W",
                               "ignore::DeprecationWarning", "-c",
                               "import binpool, gc, os, sys\n" + textwrap.dedent(text)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=60, env={**os.environ, **environment})
        self.assertEqual((done.returncode, "" if errors else done.stderr), (status, ""),
                         done.stderr)
        for words in errors:
            self.assertIn(words, done.stderr)
        return done.stdout.split("\n")[:-1]
