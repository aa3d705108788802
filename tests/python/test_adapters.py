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
        import warnings
        warnings.simplefilter("ignore")
        binpool._in_flight._PAUSE = 0
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
            for call in lambda: rest(host(1000), fails), again:
                try:
                    call()
                    assert problem.args
                except KeyboardInterrupt:
                    pass
                assert host.active_blocks == 1
            again()
            assert (host.poll(), host.active_blocks) == (0, 0)
        """)

    # At each place of _in_flight.py where Python may look for signals, or change threads.
    PLACES = """
        from binpool import _in_flight
        from binpool._in_flight import again, rest
        def place(number, do, function, *arguments):
            left = number
            def profile(frame, event, _):
                nonlocal left
                if frame.f_code.co_filename == _in_flight.__file__ and event in ("call", "c_return"):
                    left -= 1
                    if not left:
                        sys.setprofile(None)
                        do()
            sys.setprofile(profile)
            try:
                function(*arguments)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            return left <= 0
        def in_a_thread(function):
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()
        """

    def test_an_interrupt_anywhere(self):
        """What is in flight is not lost by it, but given back by a later call."""
        self.told(self.PLACES + """
        host = binpool.MemoryPool("host", "thp")
        def streams():
            return [(ctypes.addressof(stream), 0)]
        def interrupt():
            raise KeyboardInterrupt
        def kept_again():
            stream.capturing = True
            rest(host(1000), streams)
            stream.capturing = False
            return again,
        def at_once():
            return rest, host(1000), streams
        # An interrupt that comes before the first place is none of rest()'s.
        for prepare, number in (kept_again, 1), (at_once, 2):
            first, interrupted = number, True
            while interrupted:
                call = prepare()
                interrupted = place(number, interrupt, *call)
                del call
                assert host.active_blocks == 1, number
                again()
                assert host.poll() == 1, number
                stream.finished = 1
                assert (host.poll(), host.active_blocks) == (0, 0), number
                stream.finished, number = 0, number + 1
            assert number > first + 3
        """)

    def test_a_threads_own_default_stream(self):
        """Its handle means another thread's there: the legacy one waits for all threads'."""
        self.told(self.PLACES + """
        driver.fake_cuda_of_thread.restype = ctypes.c_void_p
        def own(of_thread):
            where = ctypes.c_void_p.from_address(driver.fake_cuda_of_thread())
            where.value = ctypes.addressof(of_thread)
        legacy = Stream(None, False, 1, 0)
        kept = primary(0, legacy)
        mine, others = (Stream(legacy.context, False, 1, n) for n in (0, 1))
        own(mine)
        def elsewhere():
            own(others)
            again()
        host = binpool.MemoryPool("host", "thp")
        def streams():
            return [(2, 0)]
        mine.capturing = True
        rest(host(1000), streams)
        mine.capturing = False
        in_a_thread(elsewhere)
        assert (host.poll(), host.active_blocks) == (1, 1)
        mine.finished = 1
        assert host.poll() == 1
        legacy.finished = 1
        assert (host.poll(), host.active_blocks) == (0, 0)
        # What was not kept waits for this thread's, whichever threads come between.
        legacy.finished, number, left = 1, 1, True
        while left:
            mine.finished = 0
            left = place(number, lambda: in_a_thread(elsewhere), rest, host(1000), streams)
            assert (host.poll(), host.active_blocks) == (1, 1), number
            mine.finished, number = 1, number + 1
            assert (host.poll(), host.active_blocks) == (0, 0)
        assert number > 5
        """)

    def test_what_is_refused_for_good(self):
        """It stays in use, is asked for once a second, and somebody is told."""
        self.told(self.PLACES + """
        import warnings
        warnings.simplefilter("default")
        host, calls = binpool.MemoryPool("host", "thp"), 0
        def streams():
            return [(ctypes.addressof(stream), 0)]
        def counted(*wanted):
            global calls
            calls += 1
            return free(*wanted)
        free, cuda.free_on_streams = cuda.free_on_streams, counted
        fake.record_error = 719
        with warnings.catch_warnings(record=True) as told:
            for _ in range(100):
                rest(host(1000), streams)
        found = [(w.category, str(w.message)) for w in told]
        assert len(found) == 1 and found[0][0] is RuntimeWarning, found
        assert "cuEventRecord: error 719" in found[0][1], found
        assert host.active_blocks == 100
        # Of all of them one is, and then none for a while.
        _in_flight._PAUSE, _in_flight._when, calls = 3600, 0, 0
        for _ in range(1000):
            again()
        assert calls == 1, calls
        # An error that somebody made of the warning is not raised where something ends.
        warnings.simplefilter("error")
        rest(host(1000), streams)
        assert calls == 2, calls
        # It was not for good.
        fake.record_error, _in_flight._when = 0, 0
        again()
        assert host.poll() == 101
        stream.finished = 1
        while host.poll():
            pass
        assert host.active_blocks == 0
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
