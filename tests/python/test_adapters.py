# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The adapters without what they are for; tests/adapters has them with it."""

from helpers import Case
from told import Told


class Absence(Case):
    def test_it_is_told(self):
        for name, package, wanted in (("torch", "PyTorch", "torch"), ("cupy", "CuPy", "cupy-cuda13x"),
                                      ("rmm", "RMM", "rmm-cu13"),
                                      ("opencl", "PyOpenCL", "pyopencl")):
            with self.subTest(name):
                out = self.script(f"""
                    sys.modules["{wanted.partition("-")[0]}"] = None    # it cannot be imported
                    try:
                        import binpool.{name}
                    except ImportError as e:
                        print(e)
                    binpool.MemoryPool("x", "thp")(100)
                    """)
                self.assertEqual(len(out), 1)
                self.assertTrue(out[0].startswith(f"binpool.{name} needs {package} "), out)
                self.assertIn(f"pip install {wanted}", out[0])

    def test_nothing_is_imported_unasked(self):
        out = self.script("""
            import binpool.cuda
            print(*(name for name in ("torch", "cupy", "rmm", "pyopencl", "numpy")
                    if name in sys.modules))
            """)
        self.assertEqual(out, [""])


class InFlight(Told):
    def test_what_cannot_be_freed_yet(self):
        self.told("""
        from binpool._in_flight import again, registered, rest
        host = binpool.MemoryPool("host", "thp")
        def give(buffer):
            cuda.free_on_stream(buffer, ctypes.addressof(stream))
        rest(host(1000), give)
        assert (host.poll(), host.active_blocks) == (1, 1)
        stream.capturing = True
        rest(host(2000), give)
        rest(pool(3000), give)
        assert (host.poll(), host.active_blocks, pool.poll(), pool.active_blocks) == (1, 2, 0, 1)
        again()
        assert (host.poll(), pool.poll()) == (1, 0)
        stream.capturing = False
        again()
        assert (host.poll(), pool.poll()) == (2, 1)
        stream.finished = 1
        assert (host.poll(), host.active_blocks, pool.poll(), pool.active_blocks) == (0, 0, 0, 0)
        # Who is interrupted has freed nothing.
        def interrupted(buffer):
            if interrupts:
                raise interrupts.pop()
        interrupts = [KeyboardInterrupt()]
        try:
            rest(host(1000), interrupted)
        except KeyboardInterrupt:
            pass
        assert (interrupts, host.active_blocks) == ([], 1)
        again()
        assert host.active_blocks == 0
        # Nothing is raised where something ends, and nothing is lost.
        def fails(buffer):
            if failures:
                raise failures.pop()
        for failures in ([RuntimeError("x")], [OSError(errno.EIO, "x")], [BufferError("x")]):
            rest(host(1000), fails)
            assert host.active_blocks == 1
            again()
            assert host.active_blocks == 0
        for failures in ([OSError(errno.ENODEV, "x")], [ValueError("released")]):
            rest(host(1000), fails)
            assert host.active_blocks == 0
        buf = host(10)
        assert not registered(buf)
        with host.add_registrar(lambda *a: None):
            assert registered(buf)
        buf.release()
        """)
