# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""RMM: a memory resource over a pool, of the device or the host."""

import ctypes
import gc
import threading

from peers import needs_gpu, peer, settled, without_gpu

rmm = peer("rmm")

import binpool
import binpool.rmm
from binpool import cuda
from helpers import Case, MIB, thp
from told import Told


class Resource(Case):
    """Over memory of the host, for which RMM needs no device."""

    def test_buffers(self):
        pool = thp()
        resource = binpool.rmm.MemoryResource(pool)
        self.assertIs(resource.pool, pool)
        buffer = rmm.DeviceBuffer(size=5000, mr=resource)
        found = binpool.query(buffer.ptr)
        self.assertEqual((found["bytes"], buffer.ptr % 256), (5000, 0))
        other = rmm.DeviceBuffer(size=100, mr=resource)
        self.assertEqual((pool.active_blocks, other.ptr % 256), (2, 0))
        ptr = buffer.ptr
        del buffer
        settled(pool)
        again = rmm.DeviceBuffer(size=5000, mr=resource)
        self.assertEqual(again.ptr, ptr)
        empty = rmm.DeviceBuffer(size=0, mr=resource)
        self.assertEqual(empty.size, 0)
        del again, other, empty
        self.assertEqual(settled(pool).active_blocks, 0)
        ptrs = [resource.allocate(n) for n in (0, 0, 1, 300)]
        self.assertEqual((len(set(ptrs)), [p % 256 for p in ptrs]), (4, [0] * 4))
        for ptr, n in zip(ptrs, (0, 0, 1, 300)):
            resource.deallocate(ptr, n)
        self.assertEqual(self.identities(settled(pool))["active_blocks"], 0)

    def test_under_a_resource_of_rmm(self):
        pool = thp()
        limited = rmm.mr.LimitingResourceAdaptor(binpool.rmm.MemoryResource(pool), 4096)
        buffer = rmm.DeviceBuffer(size=4096, mr=limited)
        self.assertRaises(MemoryError, rmm.DeviceBuffer, size=4096, mr=limited)
        self.assertEqual(pool.active_blocks, 1)
        del buffer
        self.assertEqual((limited.get_allocated_bytes(), settled(pool).active_blocks), (0, 0))

    def test_who_keeps_it(self):
        gc.disable()
        self.addCleanup(gc.enable)
        pool = thp()
        resource = binpool.rmm.MemoryResource(pool)
        buffer = rmm.DeviceBuffer(size=100, mr=resource)
        del resource
        self.raises(BufferError, "", pool.destroy)
        del buffer
        settled(pool).destroy()
        buffer = rmm.DeviceBuffer(size=100, mr=binpool.rmm.MemoryResource(thp()))
        ctypes.memset(buffer.ptr, 1, 100)
        del buffer

    def test_errors(self):
        self.raises(TypeError, "no pool", binpool.rmm.MemoryResource, 17)
        handles = binpool.MemoryPool("x", lambda n: object(), kind="handle")
        self.raises(ValueError, "handles", binpool.rmm.MemoryResource, handles)
        small = binpool.MemoryPool("small", "thp", 4 * MIB)
        resource = binpool.rmm.MemoryResource(small)
        self.assertRaises(MemoryError, rmm.DeviceBuffer, size=8 * MIB, mr=resource)
        self.assertEqual(small.active_blocks, 0)
        small.destroy()
        self.assertRaises(Exception, rmm.DeviceBuffer, size=8, mr=resource)
        resource.deallocate(4096, 8)  # which it never gave

    def test_threads(self):
        pool, wrong = thp(), []
        resource = binpool.rmm.MemoryResource(pool)

        def work(number):
            try:
                for i in range(200):
                    buffer = rmm.DeviceBuffer(size=100 + i, mr=resource)
                    ctypes.memset(buffer.ptr, number, 100 + i)
                    if ctypes.string_at(buffer.ptr, 100 + i) != bytes([number]) * (100 + i):
                        wrong.append((number, i))
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, settled(pool).active_blocks), ([], 0))

    def test_the_end(self):
        for collector, names in (("gc.disable()", "a_pool b_resource c_buffer"),
                                 ("gc.set_threshold(1)", "c_pool b_resource a_buffer"),
                                 ("gc.disable()", "b_pool a_resource c_buffer")):
            pool, resource, buffer = names.split()
            out = self.script(f"""
                import atexit, rmm, binpool.rmm
                from peers import Late
                {collector}
                {pool} = binpool.MemoryPool("x", "thp")
                {resource} = binpool.rmm.MemoryResource({pool})
                {buffer} = rmm.DeviceBuffer(size=1000, mr={resource})
                rmm.kept = rmm.DeviceBuffer(size=10, mr={resource}), {pool}
                sys.kept = rmm.DeviceBuffer(size=10, mr={resource})
                late = Late({buffer}, {buffer}.ptr)
                sys.module, sys.late = binpool._in_flight, Late(sys.kept, sys.kept.ptr)
                atexit.register([rmm.DeviceBuffer(size=10, mr={resource})].clear)
                """)
            self.assertEqual(out, ["late"] * 2)


@without_gpu
class OnAFake(Told):
    def test_memory_of_the_device(self):
        self.told("""
        import rmm, binpool.rmm
        resource = binpool.rmm.MemoryResource(pool)
        class There:
            def __cuda_stream__(self):
                return 0, ctypes.addressof(stream)
        there = rmm.pylibrmm.stream.Stream(There())
        ptr = resource.allocate(5000, there)
        assert fake.allocated == 1
        ctypes.memset(ptr, 1, 5000)
        # It rests until the stream is past it.
        resource.deallocate(ptr, 5000, there)
        assert pool.poll() == 1
        other = resource.allocate(5000, there)
        assert other != ptr
        stream.finished = 1
        assert pool.poll() == 0 and resource.allocate(5000, there) == ptr
        resource.deallocate(ptr, 5000, there)
        # While a graph is captured it is kept, and freed with what comes after.
        stream.capturing = True
        resource.deallocate(other, 5000, there)
        assert (pool.poll(), pool.active_blocks) == (0, 1)
        stream.capturing = False
        ptr = resource.allocate(100, there)
        assert (pool.poll(), pool.active_blocks) == (0, 1)
        resource.deallocate(ptr, 100, there)
        empty = [resource.allocate(0, there) for _ in range(2)]
        assert empty[0] and empty[1] and empty[0] != empty[1]
        for ptr in empty:
            resource.deallocate(ptr, 0, there)
        assert (pool.poll(), pool.active_blocks) == (0, 0)
        raises(MemoryError, "", resource.allocate, 2 << 20, there)
        del resource
        """)

    def test_by_a_thread_without_a_context(self):
        """The default stream is that of the device which was current there."""
        self.told("""
        import rmm, binpool.rmm
        class Runtime:
            def cudaGetDevice():
                return error, device
        binpool.rmm.runtime = Runtime
        there = Stream(None, False, 1, 0)
        kept = primary(1, there)
        resource, error, device = binpool.rmm.MemoryResource(pool), 0, 1
        ptr = resource.allocate(5000)
        resource.deallocate(ptr, 5000)
        assert pool.poll() == 1
        there.finished = 1
        assert (pool.poll(), pool.active_blocks) == (0, 0)
        there.finished, there.capturing = 0, True
        resource.deallocate(resource.allocate(5000), 5000)
        assert (pool.poll(), pool.active_blocks) == (0, 1)
        there.capturing, device = False, 0
        resource.deallocate(resource.allocate(100), 100)
        assert (pool.poll(), pool.active_blocks) == (1, 1)
        there.finished = 1
        assert (pool.poll(), pool.active_blocks) == (0, 0)
        # No device, no driver.
        error = 35
        resource.deallocate(resource.allocate(5000), 5000)
        assert pool.active_blocks == 0
        def none():
            raise RuntimeError("no driver")
        Runtime.cudaGetDevice = none
        resource.deallocate(resource.allocate(5000), 5000)
        assert pool.active_blocks == 0
        del resource
        """)


@needs_gpu
class Gpu(Case):
    def setUp(self):
        rmm.DeviceBuffer(size=1)  # makes the context
        self.pool = cuda.DevicePool("gpu")

    def test_memory(self):
        resource = binpool.rmm.MemoryResource(self.pool)
        old = rmm.mr.get_current_device_resource()
        rmm.mr.set_current_device_resource(resource)
        self.addCleanup(rmm.mr.set_current_device_resource, old)
        data = bytes(range(256)) * 4096
        buffer = rmm.DeviceBuffer.to_device(data)
        self.assertEqual((self.pool.active_blocks, buffer.ptr % 256), (1, 0))
        self.assertEqual(buffer.tobytes(), data)
        del buffer
        settled(self.pool)
        again = rmm.DeviceBuffer.to_device(data)
        self.assertEqual(again.tobytes(), data)
        self.assertGreater(self.pool.statistics.reuses, 0)
        over = rmm.mr.PoolMemoryResource(resource, initial_pool_size=16 * MIB)
        buffer = rmm.DeviceBuffer.to_device(data)
        part = rmm.DeviceBuffer(size=MIB, mr=over)
        self.assertEqual((buffer.tobytes(), part.size), (data, MIB))
        del buffer, part, over, again
        self.assertEqual(settled(self.pool).active_blocks, 0)

    def test_in_flight(self):
        resource = binpool.rmm.MemoryResource(self.pool)
        stream, gate = rmm.pylibrmm.stream.Stream(), threading.Event()

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def wait(unused):
            gate.wait(60)

        ptr, other = resource.allocate(MIB, stream), resource.allocate(MIB, stream)
        resource.deallocate(other, MIB, stream)
        stream.synchronize()
        self.assertEqual(self.pool.poll(), 0)
        driver = ctypes.CDLL("libcuda.so.1")
        handle = ctypes.c_void_p(stream.__cuda_stream__()[1])
        self.assertEqual(driver.cuLaunchHostFunc(handle, wait, None), 0)
        resource.deallocate(ptr, MIB, stream)
        self.assertEqual(self.pool.poll(), 1)
        got = resource.allocate(MIB, stream)
        self.assertNotEqual(got, ptr)
        gate.set()
        stream.synchronize()
        self.assertEqual(self.pool.poll(), 0)
        resource.deallocate(got, MIB, stream)

    def test_by_a_thread_without_a_context(self):
        gate, pending = threading.Event(), []

        @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        def wait(unused):
            gate.wait(60)

        resource = binpool.rmm.MemoryResource(self.pool)
        ptr = resource.allocate(MIB)
        self.assertEqual(ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc(None, wait, None), 0)

        def drop():
            resource.deallocate(ptr, MIB)
            pending.append(self.pool.poll())

        thread = threading.Thread(target=drop)
        thread.start()
        thread.join(30)
        gate.set()
        thread.join()
        self.assertEqual(pending, [1])
        self.assertEqual(settled(self.pool).active_blocks, 0)

    def test_memory_of_the_host(self):
        pool = thp()
        with cuda.attach(pool):
            buffer = rmm.DeviceBuffer(size=5000, mr=binpool.rmm.MemoryResource(pool))
            buffer.copy_from_host(b"p" * 5000)
            self.assertEqual(buffer.tobytes(), b"p" * 5000)
            self.assertEqual(ctypes.string_at(buffer.ptr, 5000), b"p" * 5000)
            del buffer

    def test_the_end(self):
        for collector, names in (("gc.disable()", "a_pool b_resource c_buffer"),
                                 ("gc.set_threshold(1)", "c_pool b_resource a_buffer"),
                                 ("gc.disable()", "b_pool a_resource c_buffer")):
            pool, resource, buffer = names.split()
            self.script(f"""
                import rmm, binpool.rmm
                {collector}
                rmm.DeviceBuffer(size=1)
                {pool} = binpool.cuda.DevicePool("x")
                {resource} = binpool.rmm.MemoryResource({pool})
                {buffer} = rmm.DeviceBuffer(size=1000, mr={resource})
                rmm.kept = rmm.DeviceBuffer(size=10, mr={resource}), {pool}
                """)
