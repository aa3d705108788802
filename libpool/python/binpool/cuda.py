# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For programs with CUDA, whatever they use it through: CuPy, PyTorch, Numba, PyCUDA.

    pool = binpool.MemoryPool("host")
    binpool.cuda.attach(pool)                       # it is pinned from now on
    host = pool(1 << 20)
    ...                                             # an asynchronous copy from host
    binpool.cuda.free_on_stream(host, stream)

    device = binpool.cuda.DevicePool()              # of the context that is current
    array = cupy.asarray(device(1 << 20))           # or torch.as_tensor(..., device="cuda")

Needs libbinpool-cuda and, when a function is called, the driver. A context is never made.
"""

import ctypes
import numbers
import operator

from . import _library
from ._backend import MemoryPool, PooledBuffer
from ._errors import check
from ._pool import give
from ._registrar import Registrar

_, _lib = _library.open_library("libbinpool-cuda.so.0", {
    "free_on_cuda_streams": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                             ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int),
                             ctypes.c_size_t),
    "cuda_attach": (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32,
                    ctypes.POINTER(ctypes.c_uint64)),
    "cuda_device_allocator": (ctypes.c_int, ctypes.POINTER(_library.AllocatorOps)),
})
# For the extension, which calls it without ctypes.
_address = ctypes.cast(_lib.free_on_cuda_streams, ctypes.c_void_p).value \
    if hasattr(PooledBuffer, "_give_on") else None


def _handle_of(stream):
    """What a package's stream has for a handle, as a number."""
    protocol = getattr(stream, "__cuda_stream__", None)
    handle = protocol()[1] if callable(protocol) else stream
    for name in ("ptr", "cuda_stream", "handle"):
        handle = getattr(handle, name, handle)
    handle = getattr(handle, "value", handle)
    if handle is None:
        return 0
    try:
        # Those of cuda-python are no numbers, but can be made some.
        return int(handle) if hasattr(type(handle), "__int__") and \
            not isinstance(handle, numbers.Number) else operator.index(handle)
    except TypeError:
        raise TypeError(f"{stream!r} is no stream, nor the handle of one") from None


def _handle(stream):
    """The driver's handle of what the packages call a stream."""
    handle = stream if type(stream) is int else _handle_of(stream)
    if not 0 <= handle < 1 << 64:
        raise ValueError(f"{handle} is the handle of no stream")
    return handle


def attach(pool, *, optional=False):
    """Makes all memory of a pool known to CUDA as pinned, now and whenever there is more.

    It belongs to the context that is current to this thread now; all contexts know it as pinned. (Of
    PyTorch and CuPy there is one when they have done anything on the device, not by
    torch.cuda.init().)
    optional: what the driver does not take is used all the same, and counted in
    registrations_refused. Returns a Registrar; its remove() waits for all work on the device.
    OSError: ENODEV no driver, no device or no current context; BufferError: attached already.
    """
    if not isinstance(pool, MemoryPool):
        raise TypeError(f"{pool!r} is no pool")
    number = ctypes.c_uint64()
    pool._ask(_lib.cuda_attach, _library.REGISTRAR_OPTIONAL if optional else 0,
              ctypes.byref(number))
    return Registrar(pool, number.value)


def free_on_stream(buf, stream=0):
    """Frees a buffer, of a host's or a device's pool, that work in a stream may still use.

    It rests until that is done. stream: a handle, or a stream of one of those packages; 0: the
    legacy default stream. Errors as MemoryPool.free's; BufferError also while the stream is
    captured; OSError (ENODEV) without a driver or a context. Then nothing happened.
    """
    free_on_streams(buf, (stream,))


def free_on_streams(buf, streams, devices=None):
    """As free_on_stream, of several: it rests until what is in all of them by now is done.

    devices: the device of each stream, by its number, as a default stream has one handle on all of
    them. It is then that of the current context, if this is one of its device, and otherwise of the one
    that PyTorch, CuPy and RMM use; where there is none nothing is at work. -1, or None for all: the
    current context's. No streams: it is freed at once. ValueError also: not as many devices as streams.
    """
    if isinstance(buf, PooledBuffer):
        pooled = buf
    elif isinstance(buf, DeviceBuffer):
        pooled = buf.pooled
    else:
        raise TypeError(f"{buf!r} is no buffer of a pool")
    handles = [*map(_handle, streams)]
    if devices is not None:
        devices = [*map(operator.index, devices)]
        for device in devices:
            if not -1 <= device < 1 << 31:
                raise ValueError(f"{devices} are no numbers of devices")
        if len(devices) != len(handles):
            raise ValueError(f"{len(devices)} devices of {len(handles)} streams")
    if _address:
        check(pooled._give_on(_address, handles, devices))
        return
    n = len(handles)
    late = give(pooled, _lib.free_on_cuda_streams, (ctypes.c_void_p * n)(*handles),
                None if devices is None else (ctypes.c_int * n)(*devices), n)
    if late:
        raise late


class DeviceBuffer:
    """Memory of a device, which goes back to its pool when nothing of Python has it.

    It has the __cuda_array_interface__ of bytes: cupy.asarray, torch.as_tensor and
    numba.cuda.as_cuda_array make arrays of it, which keep it. pooled is the PooledBuffer behind
    it. Work that a stream still has for it does not keep it: on one stream whoever gets the
    memory next comes after, on several use free_on_stream(). Made by a DevicePool only.
    """

    __slots__ = ("pooled", "__weakref__")

    def __init__(self, pooled):
        if not isinstance(pooled, PooledBuffer):
            raise TypeError(f"{pooled!r} is no buffer of a pool")
        self.pooled = pooled

    @property
    def ptr(self):
        """Its CUdeviceptr, an int; 0 of a buffer of no bytes. ValueError: released."""
        return self.pooled.handle or 0

    @property
    def size(self):
        """Bytes as asked for."""
        return self.pooled.size

    nbytes = size

    @property
    def capacity(self):
        """Bytes that the pool spent on it."""
        return self.pooled.capacity

    @property
    def released(self):
        """Whether the memory has gone back."""
        return self.pooled.released

    def __int__(self):
        return self.ptr

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.ptr, False),
                "strides": None, "stream": None, "version": 3}

    def release(self):
        """Gives the memory back to the pool now, whoever has arrays of it; again: nothing."""
        self.pooled.release()

    def __enter__(self):
        self.ptr  # raises if it is released
        return self

    def __exit__(self, *exc):
        self.release()

    def __repr__(self):
        return "<binpool.cuda.DeviceBuffer of " + (
            f"{self.size} bytes, released>" if self.released else
            f"{self.size} bytes at {self.ptr:#x}>")


class _DeviceMemory:
    """The library's allocator of device memory, for the context that is current."""

    def _binpool_ops(self):
        ops = _library.AllocatorOps(size=ctypes.sizeof(_library.AllocatorOps))
        check(_lib.cuda_device_allocator(ctypes.byref(ops)))
        return ops


class DevicePool(MemoryPool):
    """A pool of device memory, of the context that is current to the thread that makes it.

    (Of PyTorch and CuPy there is one when they have done anything on the device.) The arguments
    are MemoryPool's; max_alloc_bytes None: what the device has. Calling it, or allocate(), gives
    a DeviceBuffer. Any thread may use it, whatever is current there. With the context the memory
    is gone: then giving it back is nothing, and allocating OSError (ENODEV).

    OSError (ENODEV): no driver, no device or no current context.
    """

    def __init__(self, name="cuda", max_alloc_bytes=None, mantissa_bits=4, verbose=None, *,
                 classes="tight"):
        super().__init__(name, _DeviceMemory(), max_alloc_bytes, mantissa_bits, verbose,
                         kind="handle", classes=classes)

    def allocate(self, nbytes, alignment=None, *, tag=None, timeout=None):
        """A DeviceBuffer of at least nbytes bytes; nbytes may be 0.

        Memory of a device is aligned to 256 bytes; more cannot be asked for. tag and timeout are
        those of MemoryPool. MemoryError, ValueError, OSError.
        """
        return DeviceBuffer(super().allocate(nbytes, alignment, tag=tag, timeout=timeout))

    __call__ = allocate

    def allocate_aligned(self, size, alignment, /):
        """As allocate."""
        return self.allocate(size, alignment)

    def free(self, buf, size=None, /):
        """Gives a buffer back; size, if given, is checked. ValueError, TypeError."""
        super().free(_pooled(buf), size)

    def free_after(self, buf, *fences):
        """As MemoryPool's, of a DeviceBuffer."""
        super().free_after(_pooled(buf), *fences)


def _pooled(buf):
    if not isinstance(buf, DeviceBuffer):
        raise TypeError(f"{buf!r} is no buffer of a pool of device memory")
    return buf.pooled
