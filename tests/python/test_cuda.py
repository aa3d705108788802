# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""CUDA: what is said without it, all of it on a driver that does as it is told, and on a GPU."""

import ctypes
import errno
import gc
import importlib
import threading

import binpool
from binpool import cuda
from helpers import Case, MIB, thp
from told import Told


def driver():
    """The driver, for the tests' own calls; None: there is no GPU."""
    try:
        cu = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    return None if cu.cuInit(0) or cu.cuDeviceGet(ctypes.byref(device), 0) else cu


class Streams(Case):
    def test_of_any_package(self):
        class Of:
            def __init__(self, **names):
                self.__dict__.update(names)

        class Convertible:
            def __int__(self):
                return 7

        for stream in (7, Of(ptr=7), Of(cuda_stream=7), Of(handle=7), Of(__cuda_stream__=lambda: (0, 7)),
                       Of(handle=ctypes.c_void_p(7)), Convertible(), Of(handle=Convertible())):
            self.assertEqual(cuda._handle(stream), 7)
        for stream in (0, None, Of(handle=ctypes.c_void_p())):
            self.assertEqual(cuda._handle(stream), 0)


class Absence(Case):
    def test_it_is_told(self):
        if driver():
            self.skipTest("there is a GPU")
        pool = thp()
        buf = pool(100)
        e = self.raises(OSError, "CUDA", cuda.free_on_stream, buf, 7)
        self.assertEqual((e.errno, buf.released), (errno.ENODEV, False))
        pool.free(buf)
        self.raises(ValueError, "released", cuda.free_on_stream, buf)
        for call in (cuda.DevicePool, lambda: cuda.attach(pool)):
            e = self.raises(OSError, "CUDA", call)
            self.assertEqual(e.errno, errno.ENODEV)
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            self.assertIn("no CUDA driver here", str(e))

    def test_wrong_arguments(self):
        self.assertRaises(TypeError, cuda.DeviceBuffer, 17)
        for bad in (None, 17, "pool", object()):
            self.raises(TypeError, "no pool", cuda.attach, bad)
        self.assertRaises(TypeError, cuda.DevicePool, nonsense=1)
        for bad in ({"mantissa_bits": "x"}, {"max_alloc_bytes": 1.5}, {"classes": 1}):
            self.assertRaises(TypeError, cuda.DevicePool, **bad)


class OnAFake(Told):
    """All of it, on a driver that does as it is told."""

    def test_memory(self):
        self.told("""
        assert (pool.name, pool.max_alloc_bytes, pool.provider) == ("gpu", 1 << 20, "allocator")
        buf = pool(5000)
        assert fake.allocated == 1
        assert (buf.size, buf.nbytes, buf.capacity, int(buf)) == (5000, 5000, 5120, buf.ptr)
        assert buf.__cuda_array_interface__ == {
            "shape": (5000,), "typestr": "|u1", "data": (buf.ptr, False), "strides": None,
            "stream": None, "version": 3}
        ctypes.memset(buf.ptr, 1, 5000)
        assert f"{buf.ptr:#x}" in repr(buf)
        ptr = buf.ptr
        raises(ValueError, "4999", pool.free, buf, 4999)
        raises(TypeError, "no buffer", pool.free, buf.pooled)
        raises(TypeError, "no buffer", pool.free_after, buf.pooled, lambda: True)
        pool.free(buf, 5000)
        assert buf.released and "released" in repr(buf) and pool.held_blocks == 1
        for call in (lambda: buf.ptr, lambda: buf.__cuda_array_interface__,
                     lambda: pool.free(buf), lambda: cuda.free_on_stream(buf),
                     buf.__enter__):
            raises(ValueError, "released", call)
        buf.release()
        with pool.allocate(nbytes=5000, tag="mine") as buf:
            assert buf.ptr == ptr and "mine" in pool.leaks()
        # With its last reference it goes.
        kept = pool(5000)
        del kept
        assert (pool.active_blocks, pool.held_blocks) == (0, 1)
        empty = pool(0)
        assert (empty.ptr, empty.size) == (0, 0)
        assert empty.__cuda_array_interface__["data"] == (0, False)
        pool.free(empty, 0)
        raises(ValueError, "aligned", pool.allocate, 100, 64)
        raises(ValueError, "aligned", pool.allocate_aligned, 100, 64)
        raises(ValueError, "", pool, -1)
        raises(TypeError, "", pool, "x")
        thread = threading.Thread(target=lambda: pool(9000))
        thread.start()
        thread.join()
        pool.free_held()
        assert fake.allocated == pool.reserved_bytes == 0
        """)

    def test_shortages(self):
        self.told("""
        kept = pool(5000)
        pool(9000)
        raises(MemoryError, "max_bytes is 1 MiB", pool, 2 << 20)
        fake.alloc_error = 2
        # What is held goes first.
        e = raises(MemoryError, "cuMemAlloc", pool, 20000)
        assert (e.errno, pool.held_blocks) == (errno.ENOMEM, 0)
        fake.alloc_error = 719
        e = raises(OSError, "CUDA_ERROR_OF_THE_TEST", pool, 20000)
        assert e.errno == errno.EIO
        fake.alloc_error = 0
        del kept
        pool.destroy()
        raises(ValueError, "destroyed", pool, 1)
        """)

    def test_in_flight(self):
        self.told("""
        buf, host = pool(5000), binpool.MemoryPool("host", "thp")
        cuda.free_on_stream(buf, ctypes.addressof(stream))
        cuda.free_on_stream(host(100), ctypes.addressof(stream))
        assert buf.released and (pool.poll(), host.poll(), pool.held_blocks) == (1, 1, 0)
        over = []
        pool.free_after(pool(5000), lambda: bool(over))
        assert pool.poll() == 2
        stream.finished = 1
        over.append(1)
        assert (pool.poll(), host.poll(), pool.held_blocks) == (0, 0, 2)
        buf = pool(5000)
        stream.capturing = True
        raises(BufferError, "captur", cuda.free_on_stream, buf, ctypes.addressof(stream))
        assert not buf.released
        stream.capturing, stream.finished = False, 0
        # Of several it waits for the last; the device says whose default stream is meant.
        there = Stream(None, False, 1, 0)
        kept = primary(1, there)
        handles = [ctypes.addressof(stream), 0]
        raises(ValueError, "1 devices of 2", cuda.free_on_streams, buf, handles, [0])
        for far in 1 << 32, 1 << 31, -2:
            raises(ValueError, "numbers of devices", cuda.free_on_streams, buf, handles, [0, far])
        raises(TypeError, "", cuda.free_on_streams, buf, handles, [0, None])
        raises(TypeError, "no buffer", cuda.free_on_streams, 7, handles)
        whole = host(100)
        part = whole.sub(0, 10)
        raises(ValueError, "a part", cuda.free_on_streams, part, handles, [0, 1])
        raises(BufferError, "1 views", cuda.free_on_streams, whole, handles, [0, 1])
        del part, whole
        raises(TypeError, "no stream", cuda.free_on_streams, buf, [0, "x"])
        e = raises(OSError, "", cuda.free_on_streams, buf, handles)
        assert (e.errno, buf.released) == (errno.ENODEV, False)
        cuda.free_on_streams(buf, handles, [0, 1])
        raises(ValueError, "released", cuda.free_on_streams, buf, handles, [0, 1])
        cuda.free_on_streams(host(100), [], [])
        assert (buf.released, pool.poll(), host.active_blocks) == (True, 1, 0)
        stream.finished = 1
        assert pool.poll() == 1
        there.finished = 1
        assert pool.poll() == 0
        # Who is interrupted meanwhile has given it back if the library took it, and only then.
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        buf, fake.signal, fake.record_error = host(5000), signal.SIGINT, 2
        raises(KeyboardInterrupt, "", cuda.free_on_streams, buf, handles, [0, 1])
        assert (buf.released, host.active_blocks) == (False, 1)
        fake.record_error = 0
        raises(KeyboardInterrupt, "", cuda.free_on_streams, buf, handles, [0, 1])
        fake.signal = 0
        assert (buf.released, host.poll(), host.active_blocks) == (True, 0, 0)
        # Meanwhile other threads run: a second long, by a handler that sleeps as many as its signal.
        import time
        libc, ticks = ctypes.CDLL(None), []
        libc.signal(1, ctypes.cast(libc.sleep, ctypes.c_void_p))
        buf, fake.signal = host(5000), 1
        inside = threading.Thread(target=lambda: cuda.free_on_streams(buf, handles[:1]))
        inside.start()
        while inside.is_alive():
            ticks.append(time.sleep(0.01))
        assert len(ticks) > 5, ticks
        fake.signal = 0
        assert (buf.released, host.poll(), host.active_blocks) == (True, 0, 0)
        host.destroy()
        del buf, e
        """)

    def test_pinned(self):
        self.told("""
        host = binpool.MemoryPool("host", "thp", 64 << 20)
        before = host(100)
        e = raises(OSError, "no context is current", cuda.attach, host)
        assert e.errno == errno.ENODEV
        fake.current = ctypes.addressof(context)
        registrar = cuda.attach(host)
        assert driver.fake_cuda_registrations() == host.counters()["registrations"] == 1
        more = host(16 << 20)
        assert driver.fake_cuda_registrations() == 2
        assert binpool.query(more)["registrars"] == ["cuda"]
        raises(BufferError, "", cuda.attach, host)
        registrar.remove()
        assert driver.fake_cuda_registrations() == 0
        fake.register_error, fake.register_fail_at = 1, fake.register_calls + 1
        raises(Exception, "", cuda.attach, host)
        assert host.counters()["registrations"] == 0
        # With the pool it goes, too.
        cuda.attach(host)
        del before, more
        host.destroy()
        assert driver.fake_cuda_registrations() == 0
        other = binpool.MemoryPool("other", "thp", 64 << 20)
        fake.register_error, fake.register_fail_at = 1, fake.register_calls + 1
        with cuda.attach(other, optional=True):
            assert other(100).size == 100
            assert other.counters()["registrations_refused"] == 1
        # By a thread of the pool's, when it is told to.
        del other
        later = binpool.MemoryPool("later", "thp", 64 << 20)
        cuda.attach(later)
        later.register_in_background(0)
        buf = later(16 << 20)
        assert later.counters()["registrations"] == 0
        raises(BlockingIOError, "", later.wait_registered, buf, 0)
        raises(TimeoutError, "", later.wait_registered, buf, 0.01)
        later.register_in_background()
        later.wait_registered(buf, 60)
        later.wait_registered()
        c = later.counters()
        assert c["registrations"] == c["extents"] == driver.fake_cuda_registrations() > 0
        raises(ValueError, "written in Python", later.add_registrar, print)
        del buf
        later.destroy()
        fake.current = None
        """)

    def test_context_goes(self):
        self.told("""
        buf, ptr = pool(5000), []
        context.id = 0
        e = raises(OSError, "destroyed", pool, 9000)
        assert e.errno == errno.ENODEV
        ptr.append(buf.ptr)
        del buf
        pool.destroy()
        # The memory went with it.
        assert fake.allocated == 1
        fake.allocated = 0
        """)


class Gpu(Case):
    def setUp(self):
        self.cu = driver()
        if not self.cu:
            self.skipTest("no GPU")
        self.context = ctypes.c_void_p()
        self.call("cuCtxCreate_v2", ctypes.byref(self.context), 0, 0)

    def tearDown(self):
        if self.context:
            self.call("cuCtxDestroy_v2", self.context)

    def call(self, name, *arguments):
        self.assertEqual(getattr(self.cu, name)(*arguments), 0, name)

    def fill(self, buf, byte):
        self.call("cuMemsetD8_v2", ctypes.c_uint64(buf.ptr), ctypes.c_ubyte(byte),
                  ctypes.c_size_t(buf.size))

    def content(self, buf):
        host = ctypes.create_string_buffer(buf.size)
        self.call("cuMemcpyDtoH_v2", host, ctypes.c_uint64(buf.ptr), ctypes.c_size_t(buf.size))
        return host.raw

    def test_memory(self):
        pool = cuda.DevicePool()
        a, b = pool(5 * MIB), pool(5 * MIB)
        self.fill(a, 1)
        self.fill(b, 2)
        self.assertEqual((self.content(a), self.content(b)), (b"\1" * a.size, b"\2" * b.size))
        ptr = a.ptr
        pool.free(a, 5 * MIB)
        a = pool(5 * MIB - 1000)
        self.assertEqual((a.ptr, pool.statistics.reuses), (ptr, 1))
        self.assertEqual(a.__cuda_array_interface__["data"], (ptr, False))
        self.assertEqual(a.ptr % 256, 0)
        wrong = []

        def elsewhere():
            """Where no context is current."""
            try:
                pool(9 * MIB)
            except BaseException as e:
                wrong.append(e)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        self.assertEqual(wrong, [])
        self.identities(pool)
        del a, b
        pool.free_held()
        self.assertEqual(pool.reserved_bytes, 0)
        self.raises(MemoryError, "cuMemAlloc", pool, 1 << 42)
        pool.destroy()

    def test_in_flight(self):
        device, host, stream = cuda.DevicePool(), thp(), ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        gate = threading.Event()

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def wait(unused):
            gate.wait(60)

        # What is there already needs no call that might wait for the gate.
        a, b, other = device(MIB), host(MIB), device(MIB)
        device.free(other)
        pointers = a.ptr, b.ptr
        self.call("cuLaunchHostFunc", stream, wait, None)
        self.call("cuMemsetD8Async", ctypes.c_uint64(a.ptr), ctypes.c_ubyte(1),
                  ctypes.c_size_t(MIB), stream)
        cuda.free_on_stream(a, stream)
        cuda.free_on_stream(b, stream.value)
        self.assertEqual((device.poll(), host.poll(), a.released, b.released), (1, 1, True, True))
        # Nobody gets them meanwhile.
        for pool, ptr in zip((device, host), pointers):
            self.assertNotEqual(pool(MIB).ptr, ptr)
        gate.set()
        self.call("cuStreamSynchronize", stream)
        self.assertEqual((device.poll(), host.poll()), (0, 0))
        device.destroy()
        host.destroy()
        self.call("cuStreamDestroy_v2", stream)

    def test_pinned(self):
        pool, device = thp(), cuda.DevicePool()
        with cuda.attach(pool):
            host, there = pool(8 * MIB), device(8 * MIB)
            kind = ctypes.c_uint()
            self.call("cuPointerGetAttribute", ctypes.byref(kind), 2, ctypes.c_uint64(host.ptr))
            self.assertEqual(kind.value, 1)  # CU_MEMORYTYPE_HOST
            memoryview(host)[:] = b"p" * host.size
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(there.ptr), ctypes.c_void_p(host.ptr),
                      ctypes.c_size_t(host.size))
            self.assertEqual(self.content(there), bytes(host))
            self.assertEqual(pool.counters()["registrations"], pool.counters()["extents"])
            self.raises(BufferError, "", cuda.attach, pool)
        self.assertEqual(pool.counters()["registrations"], 0)
        cuda.attach(pool)
        pool.register_in_background()
        host = pool(32 * MIB)
        pool.wait_registered(host)
        self.call("cuPointerGetAttribute", ctypes.byref(kind), 2, ctypes.c_uint64(host.ptr))
        self.assertEqual(kind.value, 1)

    def test_context_goes(self):
        pool = cuda.DevicePool()
        buf = pool(MIB)
        self.call("cuCtxDestroy_v2", self.context)
        self.context = None
        e = self.raises(OSError, "destroyed", pool, 9 * MIB)
        self.assertEqual(e.errno, errno.ENODEV)
        del buf
        pool.destroy()

    def test_arrays(self):
        """Of those packages that are here; of none of them there is nothing to test."""
        makers = {"torch": lambda m, buf: m.as_tensor(buf, device="cuda"),
                  "cupy": lambda m, buf: m.asarray(buf),
                  "numba.cuda": lambda m, buf: m.as_cuda_array(buf)}
        found, primary = [], ctypes.c_void_p()
        # Theirs is the one that the device has by itself.
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), 0)
        self.call("cuCtxSetCurrent", primary)
        self.addCleanup(self.cu.cuDevicePrimaryCtxRelease_v2, 0)
        for name, make in makers.items():
            try:
                module = importlib.import_module(name)
            except ImportError:
                continue
            found.append(name)
            with self.subTest(name):
                pool = cuda.DevicePool()
                buf = pool(MIB)
                self.fill(buf, 5)
                array = make(module, buf)
                host = array.cpu().numpy() if name == "torch" else \
                    array.get() if name == "cupy" else array.copy_to_host()
                self.assertEqual((len(host), int(host.min()), int(host.max())), (MIB, 5, 5))
                if name == "torch":
                    pinned = thp()
                    cuda.attach(pinned)
                    tensor = module.frombuffer(memoryview(pinned(MIB)), dtype=module.uint8)
                    self.assertTrue(tensor.is_pinned())
                    self.assertTrue(bool((tensor.copy_(array) == 5).all()))
                    del tensor
                del buf
                self.assertEqual(pool.active_blocks, 1)
                del array
                gc.collect()
                self.assertEqual(pool.active_blocks, 0)
        if not found:
            self.skipTest("no PyTorch, CuPy or Numba")

    def test_the_end(self):
        """Dropped as Python likes, while the context is there and when it is not."""
        for collector in ("gc.disable()", "gc.set_threshold(1)"):
            self.script(f"""
                import ctypes
                from binpool import cuda
                {collector}
                cu, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
                assert not cu.cuInit(0) and not cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
                b_pool = cuda.DevicePool()
                a_buf = b_pool(1 << 20)
                c_other = cuda.DevicePool()
                sys.kept = c_other(100), b_pool(100)
                binpool.kept = a_buf, b_pool
                """)
