# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What the tests of the adapters share, beside those of tests/python."""

import ctypes
import importlib
import os
import time
import unittest


def peer(name):
    """The package that a module tests with; without it that is skipped, by name."""
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise unittest.SkipTest(f"no {name} here: {e}") from None


def gpu():
    """Whether there is one."""
    try:
        cu = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return not cu.cuInit(0) and not cu.cuDeviceGetCount(ctypes.byref(count)) and count.value > 0


# What the device itself shows needs no driver that is told what to say, nor do all packages load one.
without_gpu = unittest.skipIf(gpu(), "there is a GPU")
needs_gpu = unittest.skipUnless(gpu(), "no GPU")


def settled(pool):
    """The pool, when nothing rests in it: on a GPU what was given up does, until the stream is past it.

    Without one it is back at once; then nothing is asked, so that the tests see whether it is.
    """
    end = time.monotonic() + 10
    while gpu() and pool.poll() and time.monotonic() < end:
        time.sleep(0.001)
    return pool


class Late:
    """Has something when a program ends, and writes to its memory when that goes at last."""

    def __init__(self, what, ptr):
        self.what, self.ptr = what, ptr

    def __del__(self, fill=ctypes.memset, write=os.write):
        fill(self.ptr, 1, 10)
        write(1, b"late\n")


def is_pinned(ptr):
    """What the driver says of an address, in the context that is current."""
    kind = ctypes.c_uint()
    error = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(ctypes.byref(kind), 2,
                                                              ctypes.c_uint64(ptr))
    return error == 0 and kind.value == 1  # CU_MEMORYTYPE_HOST
