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
        from binpool._in_flight import again, rest
        host = binpool.MemoryPool("host", "thp")
        def streams():
            return [(ctypes.addressof(stream), 0)]
        rest(host(1000), streams)
        assert (host.poll(), host.active_blocks) == (1, 1)
        stream.capturing = True
        rest(host(2000), streams)
        rest(pool(3000), streams)
        assert (host.poll(), host.active_blocks, pool.poll(), pool.active_blocks) == (1, 2, 0, 1)
        again()
        assert (host.poll(), pool.poll()) == (1, 0)
        stream.capturing = False
        again()
        assert (host.poll(), pool.poll()) == (2, 1)
        stream.finished = 1
        assert (host.poll(), host.active_blocks, pool.poll(), pool.active_blocks) == (0, 0, 0, 0)
        # Of several the one that is gone is not waited for, and the others are.
        there = streams()[0]
        for gone in (there[0], 5), (0, -1):
            for found in [gone, there], [there, gone, there], [gone, gone]:
                for of in host, pool:
                    stream.finished = 0
                    rest(of(1000), lambda: found)
                    waits = there in found
                    assert (of.poll() > 0, of.active_blocks > 0) == (waits, waits)
                    stream.capturing = True
                    rest(of(1000), lambda: found)
                    stream.capturing = False
                    assert of.active_blocks >= 2 * waits
                    again()
                    assert (of.poll() > 1, of.active_blocks > 1) == (waits, waits)
                    stream.finished = 1
                    assert (of.poll(), of.active_blocks) == (0, 0)
        del of
        # Who has released it himself, whose streams are there, waits for nothing.
        buffer = host(1000)
        buffer.release()
        rest(buffer, lambda: [there, there])
        again()
        assert (host.poll(), host.active_blocks) == (0, 0)
        # In no stream nothing is at work.
        rest(host(1000), tuple)
        assert (host.active_blocks, host.poll()) == (0, 0)
        # It rests for those that were current then, whichever are when it is tried again.
        other = Stream(stream.context, False, 1, 1)
        current = stream
        def streams():
            return [(ctypes.addressof(current), 0)]
        stream.submitted, stream.capturing = 2, True
        rest(host(1000), streams)
        stream.capturing, current = False, other
        again()
        assert host.poll() == 1
        stream.finished = 2
        assert host.poll() == 0
        # Who is interrupted has freed nothing.
        def interrupted(*wanted):
            if interrupts:
                raise interrupts.pop()
            return free(*wanted)
        free, cuda.free_on_streams = cuda.free_on_streams, interrupted
        interrupts = [KeyboardInterrupt()]
        raises(KeyboardInterrupt, "", rest, host(1000), streams)
        assert (interrupts, host.active_blocks) == ([], 1)
        again()
        assert (host.poll(), host.active_blocks) == (0, 0)
        # Nothing is raised where something ends, and nothing is lost.
        for interrupts in ([RuntimeError("x")], [OSError(errno.EIO, "x")], [BufferError("x")]):
            rest(host(1000), streams)
            assert host.active_blocks == 1
            again()
            assert (host.poll(), host.active_blocks) == (0, 0)
        for interrupts in ([OSError(errno.ENODEV, "x")], [ValueError("released")]):
            rest(host(1000), streams)
            assert host.active_blocks == 0
        # Nor if it is not to be told where it is in use.
        for problem in KeyboardInterrupt(), RuntimeError("x"):
            problems = [problem] * 2
            def fails():
                if problems:
                    raise problems.pop()
                return streams()
            try:
                rest(host(1000), fails)
                assert problem.args
            except KeyboardInterrupt:
                problems.clear()
            assert host.active_blocks == 1
            again()
            assert (host.poll(), host.active_blocks) == (0, 0)
        """)

    def test_rmm_is_interrupted(self):
        """What RMM's memory keeps is let go when it is given back, even so."""
        self.told("""
        import types, weakref
        rmm, mr, bindings = (types.ModuleType(name) for name in ("rmm", "rmm.mr", "cuda.bindings"))
        class CallbackMemoryResource:
            def __init__(self, *calls):
                self.allocate, self.deallocate = calls
        rmm.mr, mr.CallbackMemoryResource = mr, CallbackMemoryResource
        bindings.runtime = types.SimpleNamespace(cudaGetDevice=lambda: (0, 0))
        sys.modules.update({"rmm": rmm, "rmm.mr": mr, "cuda": types.ModuleType("cuda"),
                            "cuda.bindings": bindings})
        import binpool.rmm
        from binpool._in_flight import again
        host = binpool.MemoryPool("host", "thp")
        resource = binpool.rmm.MemoryResource(host)
        ptr = resource.allocate(1000, stream)
        def interrupted(*wanted):
            cuda.free_on_streams = free
            raise KeyboardInterrupt
        free, cuda.free_on_streams = cuda.free_on_streams, interrupted
        raises(KeyboardInterrupt, "", resource.deallocate, ptr, 1000, ctypes.addressof(stream))
        assert host.active_blocks == 1
        again()
        stream.finished = 1
        assert (host.poll(), host.active_blocks) == (0, 0)
        ended = weakref.ref(host)
        del host, resource
        gc.collect()
        assert ended() is None
        """)
