# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For PyOpenCL: pinned host arrays, and a pool of device memory.

    pool = binpool.MemoryPool("host")
    binpool.opencl.attach(pool, queue)              # its arrays are pinned from now on
    host = pool.empty(1 << 20, "f4")

    device = binpool.opencl.DevicePool(queue)
    array = pyopencl.array.empty(queue, 1 << 20, "f4", allocator=device)
    pyopencl.enqueue_copy(queue, array.data, host)

Needs pyopencl and libbinpool-opencl.
"""

import contextlib
import ctypes
import operator

from . import _library
from ._arguments import uint64
from ._backend import MemoryPool, PooledBuffer
from ._errors import check
from ._pool import give
from ._registrar import Registrar

try:
    import pyopencl
except ImportError as e:
    raise ImportError("binpool.opencl needs PyOpenCL (pip install pyopencl)") from e

_FUNCTIONS = {
    "cl_attach_ex": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                     ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint64)),
    "cl_mem": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
               ctypes.POINTER(ctypes.c_void_p)),
    "cl_acquire": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                   ctypes.c_void_p),
    "cl_release": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                   ctypes.c_void_p),
    "cl_device_allocator": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64,
                            ctypes.POINTER(_library.AllocatorOps)),
    "free_on_cl_queue": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
}
_ZEROCOPY = 1 << 8
_OUT_OF_ORDER = pyopencl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
_lib = None


def _library_of_ours():
    global _lib
    if _lib is None:
        _, _lib = _library.open_library("libbinpool-opencl.so.0", _FUNCTIONS)
    return _lib


def _is_a(what, kind, name):
    if not isinstance(what, kind):
        raise TypeError(f"{what!r} is no {name}")


def attach(pool, queue, *, zerocopy=False, optional=False):
    """Makes all memory of a pool known to OpenCL as pinned, now and whenever there is more.

    Its buffers and arrays are then the host side of pyopencl.enqueue_copy on any queue of that
    context; a pool may be attached to several. zerocopy: instead, kernels work on the memory
    itself, see on_device(); to one context only (BufferError). optional: what OpenCL does not take
    is used all the same, and counted in registrations_refused. Returns a Registrar; its remove()
    waits for what the queue still does. MemoryError: the device takes no more, or no extent as
    large as the pool's; OSError: any other error of OpenCL. ImportError: there is no
    libbinpool-opencl.
    """
    _is_a(pool, MemoryPool, "pool")
    _is_a(queue, pyopencl.CommandQueue, "pyopencl.CommandQueue")
    number = ctypes.c_uint64()
    flags = (_ZEROCOPY if zerocopy else 0) | (_library.REGISTRAR_OPTIONAL if optional else 0)
    pool._ask(_library_of_ours().cl_attach_ex, queue.context.int_ptr, queue.int_ptr, flags,
              ctypes.byref(number))
    return Registrar(pool, number.value)


@contextlib.contextmanager
def on_device(buf, queue):
    """While it is entered, a buffer is the device's: gives a pyopencl.Buffer of its memory.

        pool = binpool.MemoryPool("host")
        binpool.opencl.attach(pool, queue, zerocopy=True)
        buf = pool.allocate(4 * n, mmap.PAGESIZE)
        with binpool.opencl.on_device(buf, queue) as memory:
            kernel(queue, (n,), None, memory)

    The device has what the host wrote before; the end waits for the queue, and then the host has
    what the device wrote. In between the host leaves its views of it alone, and after it nobody
    uses the pyopencl.Buffer. What is in a buffer before its first time is undefined then.
    OSError: EOPNOTSUPP it is less than a page or does not begin at one, ENOENT its pool is not
    attached with zerocopy, or its memory was refused; BufferError: the device has it already;
    ValueError: released; TypeError; MemoryError.
    """
    _is_a(buf, PooledBuffer, "buffer of a pool")
    _is_a(queue, pyopencl.CommandQueue, "pyopencl.CommandQueue")
    lib, memory = _library_of_ours(), ctypes.c_void_p()
    pool, ptr = buf.pool, buf.ptr
    # With a view of it nobody gives it back meanwhile.
    with memoryview(buf):
        pool._ask(lib.cl_mem, ptr, queue.context.int_ptr, ctypes.byref(memory))
        pool._ask(lib.cl_acquire, ptr, queue.int_ptr, None)
        try:
            yield pyopencl.Buffer.from_int_ptr(memory.value, True)
        finally:
            # An interrupt comes when the queue is done, and the buffer is the host's all the same.
            try:
                if queue.properties & _OUT_OF_ORDER:
                    queue.finish()
            finally:
                pool._ask(lib.cl_release, ptr, queue.int_ptr, None)


def free_on_queue(buf, queue):
    """Frees a buffer, of a host's or a device's pool, that commands in a queue may still use.

    It rests until those that are enqueued by now have ended. Errors as MemoryPool.free's, and
    OSError; then nothing happened.
    """
    _is_a(buf, (PooledBuffer, DeviceBuffer), "buffer of a pool")
    _is_a(queue, pyopencl.CommandQueue, "pyopencl.CommandQueue")
    lib = _library_of_ours()
    pooled = buf.pooled if isinstance(buf, DeviceBuffer) else buf
    late = give(pooled, lib.free_on_cl_queue, queue.int_ptr)
    if buf is not pooled:
        buf.release()
    if late:
        raise late


class DeviceBuffer(pyopencl.Buffer):
    """A pyopencl.Buffer whose memory goes back to its pool when nothing of Python has it.

    pooled is the PooledBuffer behind it. A region of it keeps it. What is enqueued does not:
    on an in-order queue whoever gets the memory next comes after, on several queues or one
    that is out of order use free_on_queue().
    """

    # PyOpenCL makes the object; it becomes one of these.
    __slots__ = ()

    @property
    def capacity(self):
        """Bytes that the pool spent on it."""
        return self.pooled.capacity

    def get_sub_region(self, origin, size, flags=0):
        region = super().get_sub_region(origin, size, flags)
        region.parent = self
        return region

    def __getitem__(self, span):
        region = super().__getitem__(span)
        region.parent = self
        return region

    def release(self):
        """Gives the memory back to the pool now."""
        super().release()
        self.pooled.release()


class _DeviceMemory:
    """The library's allocator of device memory, for one device."""

    def __init__(self, queue, flags):
        _is_a(queue, pyopencl.CommandQueue, "pyopencl.CommandQueue")
        self.queue, self.flags = queue, uint64(flags, "flags")

    def _binpool_ops(self):
        ops = _library.AllocatorOps(size=ctypes.sizeof(_library.AllocatorOps))
        check(_library_of_ours().cl_device_allocator(
            self.queue.context.int_ptr, self.queue.device.int_ptr, self.flags, ctypes.byref(ops)))
        return ops


class DevicePool(MemoryPool):
    """A pool of device memory, and an allocator for pyopencl.array and whoever else wants one.

    queue: of the context and device that memory is for. flags: pyopencl.mem_flags. The others
    are MemoryPool's; max_alloc_bytes None: what the device has. Calling it, or allocate(), gives
    a DeviceBuffer. Any thread may use it.
    """

    def __init__(self, queue, name="opencl", max_alloc_bytes=None, mantissa_bits=4, verbose=None,
                 *, flags=pyopencl.mem_flags.READ_WRITE, classes="tight"):
        super().__init__(name, _DeviceMemory(queue, flags), max_alloc_bytes, mantissa_bits, verbose,
                         kind="handle", classes=classes)

    def allocate(self, nbytes, alignment=None):
        """A DeviceBuffer of at least nbytes bytes, of one byte for 0.

        Memory of a device is aligned for all of its types; more cannot be asked for.
        MemoryError, ValueError.
        """
        nbytes = operator.index(nbytes)
        pooled = super().allocate(max(nbytes, 1) if nbytes >= 0 else nbytes, alignment)
        # Another name for the memory that the pool has, so that its end can be seen.
        buffer = pyopencl.Buffer.from_int_ptr(pooled.handle, True)
        buffer.__class__ = DeviceBuffer
        buffer.pooled = pooled
        return buffer

    __call__ = allocate

    def free(self, buf, size=None, /):
        """Gives a buffer back; size, if given, is checked. ValueError, TypeError."""
        _is_a(buf, DeviceBuffer, "buffer of a pool of device memory")
        pooled = buf.pooled
        super().free(pooled, None if size is None else max(operator.index(size), 1))
        buf.release()

    def free_after(self, buf, *fences):
        """As MemoryPool's, of a DeviceBuffer."""
        _is_a(buf, DeviceBuffer, "buffer of a pool of device memory")
        super().free_after(buf.pooled, *fences)
        buf.release()
