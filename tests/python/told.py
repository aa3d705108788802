# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Programs on a CUDA driver that does as it is told."""

import os
import shutil
import subprocess
import tempfile
import unittest

from helpers import Case

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Told(Case):
    """A case whose programs run with the driver of the unit tests; its memory is the host's."""

    @classmethod
    def setUpClass(cls):
        compiler = os.environ.get("CC", "cc")
        if not shutil.which(compiler):
            raise unittest.SkipTest(f"no C compiler ({compiler})")
        cls.folder = tempfile.TemporaryDirectory()
        names = os.path.join(cls.folder.name, "names.c")
        unit = os.path.join(TREE, "tests", "unit")
        with open(names, "w", encoding="utf-8") as f:
            f.write('#include "fake_cuda.h"\n' + "".join(
                f"void *at_{name}(void) {{ return &fake_cuda()->{name}; }}\n"
                for name in ("current", "mode", "alloc_error", "allocated", "wrong", "register_error",
                             "register_calls", "register_fail_at", "primary", "retained",
                             "record_error", "signal")))
        subprocess.run([compiler, "-shared", "-fPIC", "-I", unit, "-o",
                        os.path.join(cls.folder.name, "libcuda.so.1"), names,
                        os.path.join(unit, "fake_cuda.c")], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    BEGIN = """
        import ctypes, errno, gc, threading
        from binpool import cuda
        driver = ctypes.CDLL("libcuda.so.1")
        class Driver:
            def at(self, name):
                function = getattr(driver, "at_" + name)
                function.restype = ctypes.c_void_p
                kind = dict(current=ctypes.c_void_p, mode=ctypes.c_int,
                            alloc_error=ctypes.c_int, register_error=ctypes.c_int,
                            record_error=ctypes.c_int, signal=ctypes.c_int, retained=ctypes.c_long,
                            allocated=ctypes.c_long).get(name, ctypes.c_ulong)
                return kind.from_address(function())
            def __getattr__(self, name):
                return self.at(name).value
            def __setattr__(self, name, value):
                self.at(name).value = value
        fake = Driver()
        class Context(ctypes.Structure):
            _fields_ = [("id", ctypes.c_uint64), ("device", ctypes.c_int),
                        ("default_stream", ctypes.c_void_p)]
        class Stream(ctypes.Structure):
            _fields_ = [("context", ctypes.c_void_p), ("capturing", ctypes.c_bool),
                        ("submitted", ctypes.c_uint64), ("finished", ctypes.c_uint64)]
        context = Context(7)
        stream = Stream(ctypes.addressof(context), False, 1, 0)
        # A device's primary context, which has such a default stream.
        def primary(device, default_stream):
            made = Context(100 + device, device, ctypes.addressof(default_stream))
            default_stream.context = ctypes.addressof(made)
            array = (ctypes.c_void_p * 2).from_address(driver.at_primary())
            array[device] = ctypes.addressof(made)
            return made
        def raises(kind, words, function, *arguments, **named):
            try:
                function(*arguments, **named)
            except kind as e:
                assert words in str(e), e
                return e
            raise AssertionError(f"{kind} was not raised")
        e = raises(OSError, "no context is current", cuda.DevicePool)
        assert e.errno == errno.ENODEV
        fake.current = ctypes.addressof(context)
        driver.at_primary.restype = ctypes.c_void_p
        pool = cuda.DevicePool("gpu", 1 << 20)
        fake.current = None
        """
    END = """
        del pool
        gc.collect()
        found = fake.allocated, fake.wrong, fake.mode, fake.retained
        assert found == (0, 0, 0, 0), found
        print("over")
        """

    def told(self, text):
        self.assertEqual(self.script(self.BEGIN + text + self.END,
                                     LD_LIBRARY_PATH=self.folder.name), ["over"])
