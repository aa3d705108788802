# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""CuPy: its pinned memory from a pool."""

import ctypes
import gc
import threading
import warnings

from peers import is_pinned, needs_gpu, peer, settled, without_gpu

cupy = peer("cupy")

import cupyx
import numpy

import binpool
import binpool.cupy
from binpool import cuda
from helpers import Case, MIB, thp
from told import Told


class Pinned(Case):
    """What CuPy does with it where there is no device, too."""

    def setUp(self):
        self.pool = thp()
        cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator(self.pool))
        self.addCleanup(cupy.cuda.set_pinned_memory_allocator,
                        cupy.get_default_pinned_memory_pool().malloc)

    def test_arrays(self):
        array = cupyx.empty_pinned((3, 1000), "f4")
        found = binpool.query(array.ctypes.data)
        self.assertEqual((found["bytes"], found["state"]), (12000, "active"))
        array[:] = numpy.arange(1000)
        zeros = cupyx.zeros_pinned(5000, "u1")
        self.assertEqual((int(zeros.max()), self.pool.active_blocks), (0, 2))
        part = array[1]
        del array, zeros
        self.assertEqual(settled(self.pool).active_blocks, 1)
        self.assertTrue((part == numpy.arange(1000)).all())
        del part
        self.assertEqual(settled(self.pool).active_blocks, 0)
        again = cupyx.empty_pinned((3, 1000), "f4")
        self.assertEqual(again.ctypes.data, found["buffer"])
        self.identities(self.pool)

    def test_pointers(self):
        pointer = cupy.cuda.alloc_pinned_memory(1000)
        self.assertIsInstance(pointer, cupy.cuda.PinnedMemoryPointer)
        self.assertEqual((pointer.size(), int(pointer.mem), pointer.mem.size),
                         (1000, pointer.ptr, 1000))
        inside = pointer + 100
        self.assertEqual((inside.ptr, inside.size()), (pointer.ptr + 100, 900))
        del pointer
        self.assertEqual(settled(self.pool).active_blocks, 1)
        numpy.frombuffer(inside, "u1")[:] = 7
        del inside
        self.assertEqual(settled(self.pool).active_blocks, 0)
        self.assertEqual(cupyx.empty_pinned(0).shape, (0,))
        # A pool of CuPy's own, over ours.
        over = cupy.cuda.PinnedMemoryPool(binpool.cupy.PinnedAllocator(self.pool))
        pointer = over.malloc(1000)
        del pointer
        self.assertEqual((over.n_free_blocks(), settled(self.pool).active_blocks), (1, 1))
        over.free_all_blocks()
        self.assertEqual(settled(self.pool).active_blocks, 0)

    def test_who_keeps_it(self):
        gc.disable()
        self.addCleanup(gc.enable)
        array = cupyx.empty_pinned(10, "u1")
        self.raises(BufferError, "", self.pool.destroy)
        del array
        settled(self.pool).destroy()
        self.raises(ValueError, "destroyed", cupyx.empty_pinned, 10)
        allocator = binpool.cupy.PinnedAllocator(thp())
        pointer = allocator(100)
        del allocator
        numpy.frombuffer(pointer, "u1")[:] = 7
        del pointer

    def test_wrong_arguments(self):
        self.raises(TypeError, "no pool", binpool.cupy.PinnedAllocator, 17)
        handles = binpool.MemoryPool("x", lambda n: object(), kind="handle")
        self.raises(ValueError, "handles", binpool.cupy.PinnedAllocator, handles)

    def test_no_memory(self):
        error = cupy.cuda.runtime.CUDARuntimeError
        small = binpool.MemoryPool("small", "thp", 4 * MIB)
        allocator = binpool.cupy.PinnedAllocator(small)
        e = self.raises(error, "out of memory", allocator, 8 * MIB)
        self.assertIn("4 MiB", str(e.__cause__))
        self.assertEqual((e.status, small.active_blocks), (2, 0))

    def test_threads(self):
        wrong = []

        def work(number):
            try:
                for i in range(200):
                    array = cupyx.empty_pinned(100 + i, "u1")
                    array[:] = number
                    if not (array == number).all():
                        wrong.append((number, i))
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, settled(self.pool).active_blocks), ([], 0))

    def test_the_end(self):
        for collector, names in (("gc.disable()", "a_pool b_array c_pointer"),
                                 ("gc.set_threshold(1)", "c_pool b_array a_pointer"),
                                 ("gc.disable()", "b_pool a_array c_pointer")):
            pool, array, pointer = names.split()
            out = self.script(f"""
                import atexit, cupy, cupyx, binpool.cupy
                from peers import Late
                {collector}
                {pool} = binpool.MemoryPool("x", "thp")
                cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator({pool}))
                {array} = cupyx.empty_pinned(1000)
                {pointer} = cupy.cuda.alloc_pinned_memory(10)
                sys.kept = {array}[1:], cupyx.empty_pinned(10)
                cupy.kept = cupyx.empty_pinned(10), {pool}
                late = [Late(a, a.ctypes.data) for a in ({array}, {array}[1:])]
                other = binpool.cupy.PinnedAllocator(binpool.MemoryPool("y", "thp"))(10)
                sys.module, sys.late = binpool._in_flight, Late(other, other.ptr)
                atexit.register([cupyx.empty_pinned(10)].clear)
                """)
            self.assertEqual(out, ["late"] * 3)


@without_gpu
class OnAFake(Told):
    """When what is in flight has the memory: a driver that is told what is over."""

    def test_in_flight(self):
        self.told("""
        import cupy, cupyx, binpool.cupy
        class Current:
            def __init__(self, stream):
                self.ptr = ctypes.addressof(stream) if stream else 0
        current = [Current(stream), Current(None)]
        cupy.cuda.get_current_stream = lambda device: current[device]
        cupy.cuda.runtime.getDeviceCount = lambda: len(current)
        host = binpool.MemoryPool("host", "thp")
        cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator(host))
        # How many devices there are is asked until somebody knows.
        def unknown():
            raise cupy.cuda.runtime.CUDARuntimeError(35)
        known, cupy.cuda.runtime.getDeviceCount = cupy.cuda.runtime.getDeviceCount, unknown
        cupyx.empty_pinned(1000, "u1")
        assert host.active_blocks == 0
        cupy.cuda.runtime.getDeviceCount = known
        array = cupyx.empty_pinned(1000, "u1")
        ptr = array.ctypes.data
        del array
        assert host.poll() == 1
        other = cupyx.empty_pinned(1000, "u1")
        assert other.ctypes.data != ptr
        stream.finished = 1
        assert host.poll() == 0
        assert cupyx.empty_pinned(1000, "u1").ctypes.data == ptr
        host.poll()
        # While a graph is captured it is kept, and freed with what comes after.
        stream.capturing = True
        del other
        assert (host.active_blocks, host.poll()) == (1, 0)
        stream.capturing = False
        kept = cupyx.empty_pinned(10)
        assert (host.poll(), host.active_blocks) == (0, 1)
        # For the streams that were current where it was dropped.
        array = cupyx.empty_pinned(1000, "u1")
        stream.finished, stream.capturing = 0, True
        del array
        idle = Stream(stream.context, False, 0, 0)
        stream.capturing, current[0] = False, Current(idle)
        del kept
        assert (host.poll(), host.active_blocks) == (1, 1)
        stream.finished = 1
        assert (host.poll(), host.active_blocks) == (0, 0)
        # Of all devices, in a thread that has no context.
        there = Stream(None, False, 1, 0)
        kept = primary(1, there)
        array = cupyx.empty_pinned(1000, "u1")
        del array
        assert (host.poll(), host.active_blocks) == (1, 1)
        there.finished = 1
        assert (host.poll(), host.active_blocks) == (0, 0)
        """)


@needs_gpu
class Gpu(Case):
    def setUp(self):
        cupy.zeros(1)
        self.pool = thp()
        cuda.attach(self.pool)
        cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator(self.pool))
        self.addCleanup(cupy.cuda.set_pinned_memory_allocator,
                        cupy.get_default_pinned_memory_pool().malloc)

    def test_pinned(self):
        host = cupyx.empty_pinned(8 * MIB, "u1")
        self.assertTrue(is_pinned(host.ctypes.data))
        host[:] = numpy.arange(8 * MIB) % 251
        there = cupy.empty(8 * MIB, "u1")
        there.set(host)
        back = cupyx.zeros_pinned(8 * MIB, "u1")
        there.get(out=back)
        cupy.cuda.get_current_stream().synchronize()
        self.assertTrue((back == host).all())

    def test_what_cupy_stages_by_itself(self):
        allocs = self.pool.statistics
        before = allocs.allocs + allocs.reuses
        array = cupy.asarray(numpy.arange(MIB, dtype="f4"))
        after = self.pool.statistics
        self.assertGreater(after.allocs + after.reuses, before)
        self.assertEqual(float(array[-1]), MIB - 1)

    def test_in_flight(self):
        """Dropped under a copy that is held up: nobody has the memory before it is over."""
        gates, stream, wrong = [], cupy.cuda.Stream(non_blocking=True), 0
        there = cupy.empty(4 * MIB, "u1")

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def wait(unused):
            gates[-1].wait(60)

        # So that nothing is to be got while the gate is shut.
        self.pool.reserve(32 * MIB)
        driver = ctypes.CDLL("libcuda.so.1")
        with stream:
            for i in range(20):
                host = cupyx.empty_pinned(4 * MIB, "u1")
                host[:] = i
                gates.append(threading.Event())
                self.assertEqual(driver.cuLaunchHostFunc(ctypes.c_void_p(stream.ptr), wait, None), 0)
                there.set(host, stream)
                ptr = host.ctypes.data
                del host
                after = cupyx.empty_pinned(4 * MIB, "u1")
                after[:] = 255
                wrong += after.ctypes.data == ptr
                gates[-1].set()
                stream.synchronize()
                wrong += not bool((there == i).all())
                del after
        self.assertEqual(wrong, 0)
        stream.synchronize()
        self.assertEqual(self.pool.poll(), 0)

    def test_no_memory(self):
        """CuPy copies without."""
        small = binpool.MemoryPool("small", "thp", 4 * MIB)
        cuda.attach(small)
        cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator(small))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = cupy.asarray(numpy.full(16 * MIB, 3, "u1"))
        self.assertTrue(bool((array == 3).all()))

    def test_the_end(self):
        for collector, names in (("gc.disable()", "a_pool b_array c_there"),
                                 ("gc.set_threshold(1)", "c_pool b_array a_there"),
                                 ("gc.disable()", "b_pool a_array c_there")):
            pool, array, there = names.split()
            self.script(f"""
                import cupy, cupyx, binpool.cuda, binpool.cupy
                {collector}
                {there} = cupy.zeros(1 << 20, "u1")
                {pool} = binpool.MemoryPool("x", "thp")
                binpool.cuda.attach({pool})
                cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator({pool}))
                {array} = cupyx.empty_pinned(1 << 20, "u1")
                sys.kept = {array}[1:]
                {there}.set({array})
                """)
