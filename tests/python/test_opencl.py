# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""PyOpenCL: pinned arrays, and arrays and kernels in pooled device memory; on PoCL."""

import errno
import gc
import mmap
import threading
from unittest import mock

import numpy
import pyopencl
import pyopencl.array
import pyopencl.tools

import binpool
import binpool.opencl
from binpool.opencl import on_device
from helpers import Case, MIB, thp

KERNEL = """
__kernel void twice(__global const float *from, __global float *to)
{
	to[get_global_id(0)] = 2 * from[get_global_id(0)];
}
"""


class OpenCL(Case):
    @classmethod
    def setUpClass(cls):
        cls.context = pyopencl.Context(pyopencl.get_platforms()[0].get_devices())
        cls.queue = pyopencl.CommandQueue(cls.context)

    def test_pinned_arrays(self):
        pool = thp()
        registrar = binpool.opencl.attach(pool, self.queue)
        self.assertIn("extents", " ".join(pool.counters()))
        device = binpool.opencl.DevicePool(self.queue)
        for n in (10, 5000, 3 * MIB):
            host, back = pool.empty(n, "f4"), pool.zeros(n, "f4")
            host[:] = numpy.arange(n)
            on_device = device(host.nbytes)
            pyopencl.enqueue_copy(self.queue, on_device, host, is_blocking=False)
            pyopencl.enqueue_copy(self.queue, back, on_device, is_blocking=True)
            self.assertTrue((host == back).all())
        c = pool.counters()
        self.assertEqual(c["registrations"], c["extents"])
        self.assertGreater(c["extents"], 1)
        second = binpool.opencl.attach(pool, self.queue)
        self.assertEqual(pool.counters()["registrations"], 2 * c["extents"])
        second.remove()
        registrar.remove()
        self.assertEqual(pool.counters()["registrations"], 0)
        # As a context, and with nothing removed at the end.
        with binpool.opencl.attach(pool, self.queue):
            pass
        binpool.opencl.attach(pool, self.queue)

    def test_on_the_device(self):
        pool, n = thp(), 1000
        twice = pyopencl.Kernel(pyopencl.Program(self.context, KERNEL).build(), "twice")
        registrar = binpool.opencl.attach(pool, self.queue, zerocopy=True)
        self.raises(BufferError, "ZEROCOPY", binpool.opencl.attach, pool, self.queue)
        out_of_order = pyopencl.CommandQueue(
            self.context,
            properties=pyopencl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE)

        class Interrupted(pyopencl.CommandQueue):
            def finish(self):
                super().finish()
                raise KeyboardInterrupt

        interrupted = Interrupted(self.context, properties=out_of_order.properties)
        complete = pyopencl.command_execution_status.COMPLETE
        release = binpool.opencl._lib.cl_release
        for queue in (self.queue, out_of_order):
            source, target = (pool.allocate(4 * n, mmap.PAGESIZE) for _ in range(2))
            with on_device(source, queue):
                self.raises(BufferError, "the device", on_device(source, queue).__enter__)
                self.raises(BufferError, "views", source.release)
            source.array("f4")[:] = numpy.arange(n)
            # Its end waits for what is enqueued, whatever order the queue has.
            gate = pyopencl.UserEvent(self.context)
            later, left = threading.Timer(0.2, gate.set_status, [complete]), []

            def release_late(*arguments):
                left.append(kernel.command_execution_status)
                return release(*arguments)

            with mock.patch.object(binpool.opencl._lib, "cl_release", release_late), \
                    on_device(source, queue) as a, on_device(target, queue) as b:
                self.assertEqual((a.size, b.size), (source.capacity, target.capacity))
                kernel = twice(queue, (n,), None, a, b, wait_for=[gate])
                later.start()
            self.assertTrue((target.array("f4") == 2 * numpy.arange(n)).all())
            # The data does not show it: a runtime may keep what is on one memory in order by itself.
            if queue is out_of_order:
                self.assertEqual(left, [complete] * 2)
            # It is the host's again also when what is in between fails.
            with self.assertRaises(KeyError), on_device(source, queue):
                raise KeyError
            # Also when he who waits for the queue is interrupted.
            with self.assertRaises(KeyboardInterrupt), on_device(source, interrupted):
                pass
            source.release()
            self.raises(ValueError, "released", on_device(source, queue).__enter__)
        self.raises(OSError, "page", on_device(pool.allocate(100), self.queue).__enter__)
        registrar.remove()
        self.raises(OSError, "not attached", on_device(target, self.queue).__enter__)
        for bad in (None, 17, pool, memoryview(target)):
            self.raises(TypeError, "no buffer", on_device(bad, self.queue).__enter__)
            self.raises(TypeError, "CommandQueue", on_device(target, bad).__enter__)

    def test_arrays_of_pooled_memory(self):
        device = binpool.opencl.DevicePool(self.queue)
        a = pyopencl.array.zeros(self.queue, (100, 100), numpy.float32, allocator=device)
        a += 3
        b = 2 * a + a.T
        self.assertIsInstance(b.base_data, binpool.opencl.DeviceBuffer)
        self.assertTrue((b.get() == 9).all())
        part = b[10:20]
        del a, b
        self.assertGreater(device.active_blocks, 0)
        self.assertTrue((part.get() == 9).all())
        del part
        gc.collect()
        self.assertEqual(device.active_blocks, 0)
        reserved = device.reserved_bytes
        for _ in range(20):
            a = pyopencl.array.zeros(self.queue, (100, 100), numpy.float32, allocator=device)
            del a
        self.assertEqual(device.reserved_bytes, reserved)
        self.assertGreaterEqual(device.statistics.reuses, 20)
        device.free_held()
        self.assertEqual(self.identities(device)["reserved_bytes"], 0)
        device.destroy()

    def test_kernels(self):
        device = binpool.opencl.DevicePool(self.queue)
        twice = pyopencl.Kernel(pyopencl.Program(self.context, KERNEL).build(), "twice")
        n = 1000
        for i in range(10):
            source, target = device(4 * n), device(4 * n)
            host = numpy.full(n, i, "f4")
            pyopencl.enqueue_copy(self.queue, source, host)
            twice(self.queue, (n,), None, source, target)
            # What is freed now and handed out again comes after, on a queue that is in order.
            del source
            pyopencl.enqueue_copy(self.queue, device(4 * n), numpy.full(n, -1, "f4"))
            pyopencl.enqueue_copy(self.queue, host, target)
            self.assertTrue((host == 2 * i).all())
            del target
        self.assertLessEqual(device.counters()["allocs"], 3)

    def test_regions_keep_their_buffer(self):
        device = binpool.opencl.DevicePool(self.queue)
        buf = device(8192)
        self.assertEqual((buf.size >= 8192, buf.capacity), (True, 8192))
        for region_of in (lambda b: b[4096:8192], lambda b: b.get_sub_region(4096, 4096)):
            buf = device(8192)
            region = region_of(buf)
            self.assertIs(region.parent, buf)
            del buf
            self.assertEqual(device.active_blocks, 1)
            pyopencl.enqueue_copy(self.queue, region, numpy.zeros(4096, "u1"))
            del region
            self.assertEqual(device.active_blocks, 0)

    def test_free(self):
        device = binpool.opencl.DevicePool(self.queue)
        buf = device.allocate(1000)
        self.raises(ValueError, "999", device.free, buf, 999)
        self.raises(TypeError, "no buffer", device.free, buf.pooled)
        device.free(buf, 1000)
        self.assertEqual((device.active_blocks, device.held_blocks), (0, 1))
        self.raises(ValueError, "released", device.free, buf)
        device(0).release()
        device.free(device(0), 0)
        self.raises(ValueError, "", device.allocate, -1)
        self.raises(ValueError, "aligned", device.allocate, 100, 64)

    def test_free_on_a_queue(self):
        pool, device = thp(), binpool.opencl.DevicePool(self.queue)
        gate = pyopencl.UserEvent(self.context)
        host, target = pool(4000), device(4000)
        ptr = host.ptr
        array = host.array("u4")
        pyopencl.enqueue_marker(self.queue, wait_for=[gate])
        # PyOpenCL keeps what it copies from until its event is gone, which waits.
        event = pyopencl.enqueue_copy(self.queue, target, array, is_blocking=False)
        del array
        self.raises(BufferError, "views", binpool.opencl.free_on_queue, host, self.queue)
        binpool.opencl.free_on_queue(target, self.queue)
        other = pool(4000)
        binpool.opencl.free_on_queue(other, self.queue)
        self.assertEqual((other.released, pool.poll(), device.poll()), (True, 1, 1))
        # Nobody gets them meanwhile.
        more = [pool(4000) for _ in range(10)], device(4000)
        gate.set_status(pyopencl.command_execution_status.COMPLETE)
        self.queue.finish()
        self.assertEqual((pool.poll(), device.poll(), device.active_blocks), (0, 0, 1))
        del event, more
        binpool.opencl.free_on_queue(host, self.queue)
        self.queue.finish()
        self.assertEqual((pool.poll(), pool.active_blocks, device.active_blocks), (0, 0, 0))
        self.assertIn(ptr, [b.ptr for b in [pool(4000) for _ in range(20)]])
        self.raises(ValueError, "released", binpool.opencl.free_on_queue, target, self.queue)
        buf, over = device(100), []
        device.free_after(buf, lambda: bool(over))
        self.assertEqual(device.poll(), 1)
        over.append(1)
        self.assertEqual(device.poll(), 0)

    def test_wrong_types(self):
        pool, device = thp(), binpool.opencl.DevicePool(self.queue)
        host, buf = pool(100), device(100)
        for bad in (None, 17, "queue", self.context, object()):
            self.raises(TypeError, "CommandQueue", binpool.opencl.attach, pool, bad)
            self.raises(TypeError, "CommandQueue", binpool.opencl.free_on_queue, host, bad)
            self.raises(TypeError, "CommandQueue", binpool.opencl.free_on_queue, buf, bad)
            self.raises(TypeError, "CommandQueue", binpool.opencl.DevicePool, bad)
            self.raises(TypeError, "no pool", binpool.opencl.attach, bad, self.queue)
            self.raises(TypeError, "no buffer", binpool.opencl.free_on_queue, bad, self.queue)
            self.raises(TypeError, "no buffer", device.free, bad)
            self.raises(TypeError, "no buffer", device.free_after, bad, lambda: True)
            if bad != 17:
                self.assertRaises(TypeError, device.allocate, bad)
                self.raises(TypeError, "flags", binpool.opencl.DevicePool, self.queue, flags=bad)
            if bad not in (17, None):
                self.assertRaises(TypeError, device.free, buf, bad)
                self.assertRaises(TypeError, device.allocate, 10, bad)
        self.raises(ValueError, "flags", binpool.opencl.DevicePool, self.queue, flags=-1)
        self.assertEqual((host.released, buf.pooled.released), (False, False))
        device.free(buf, 100)

    def test_limits(self):
        device = binpool.opencl.DevicePool(self.queue, max_alloc_bytes=MIB)
        a, b = device(512 << 10), device(512 << 10)
        self.raises(MemoryError, "max_bytes is 1 MiB", device.allocate, 4096)
        del a
        # Held memory goes before the limit refuses.
        self.assertEqual(device(4096).capacity, 4096)
        del b
        e = self.raises(MemoryError, "CL_INVALID_BUFFER_SIZE",
                        binpool.opencl.DevicePool(self.queue).allocate, 1 << 50)
        self.assertEqual(e.errno, errno.EFBIG)
        self.assertRaises(ValueError, binpool.opencl.DevicePool, self.queue, mantissa_bits=99)

    def test_memory_errors_of_opencl(self):
        """They are shortages, so held memory is given up before one is passed on."""
        refusals = []

        class Few:
            def __call__(self, nbytes):
                if refusals:
                    raise refusals.pop()
                return pyopencl.Buffer(context, pyopencl.mem_flags.READ_WRITE, nbytes)

        context = self.context
        pool = binpool.MemoryPool("x", Few(), kind="handle")
        pool(1000)
        with self.assertRaises(pyopencl.Error) as caught:
            pyopencl.Buffer(context, pyopencl.mem_flags.READ_WRITE, 0)
        shortage = pyopencl.MemoryError(caught.exception.args[0])
        refusals.append(shortage)
        self.assertEqual(pool(5000).capacity >= 5000, True)
        self.assertEqual(pool.counters()["frees_held"], 1)
        refusals.extend([shortage] * 9)
        e = self.raises(MemoryError, "", pool.allocate, 9000)
        self.assertIs(e.__cause__, shortage)

    def test_over_an_allocator_of_pyopencl(self):
        pool = binpool.MemoryPool("x", pyopencl.tools.ImmediateAllocator(self.queue),
                                  kind="handle")
        buf = pool(1000)
        self.assertIsInstance(buf.handle, pyopencl.Buffer)
        self.assertGreaterEqual(buf.handle.size, 1000)
        pool.free(buf)
        pool.free_held()
        self.assertEqual(pool.reserved_bytes, 0)

    def test_the_end(self):
        """Context, queue, pools and arrays are dropped as Python likes, silently."""
        for collector in ("gc.disable()", "gc.set_threshold(1)"):
            self.script(f"""
                import pyopencl, pyopencl.array, binpool.opencl
                {collector}
                c_context = pyopencl.Context(pyopencl.get_platforms()[0].get_devices())
                a_queue = pyopencl.CommandQueue(c_context)
                b_host = binpool.MemoryPool("h", "thp")
                d_registrar = binpool.opencl.attach(b_host, a_queue)
                z_array = b_host.empty(100000, "f4")
                y_device = binpool.opencl.DevicePool(a_queue)
                x_array = pyopencl.array.zeros(a_queue, 100000, "f4", allocator=y_device)
                pyopencl.enqueue_copy(a_queue, x_array.base_data, z_array, is_blocking=False)
                e_region = y_device(8192)[4096:8192]
                pyopencl.kept = y_device(100), b_host(100)
                """)
