# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For CuPy: its pinned memory from a pool.

    pool = binpool.MemoryPool("host")
    binpool.cuda.attach(pool)                       # when CuPy has a context
    cupy.cuda.set_pinned_memory_allocator(binpool.cupy.PinnedAllocator(pool))
    host = cupyx.empty_pinned(1 << 20, "f4")

Needs cupy.
"""

import functools

from ._backend import MemoryPool
from ._in_flight import again, rest

try:
    import cupy
    import cupy.cuda
except ImportError as e:
    raise ImportError("binpool.cupy needs CuPy (pip install cupy-cuda13x, or -cuda12x)") from e

__all__ = ["PinnedAllocator"]

_CUDAError = cupy.cuda.runtime.CUDARuntimeError
_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


@functools.lru_cache(None)
def _devices():
    return range(cupy.cuda.runtime.getDeviceCount())


def _in_use():
    """The streams that are current, one of each device."""
    try:
        return [(cupy.cuda.get_current_stream(device), device) for device in _devices()]
    except _CUDAError:
        # Without a driver or a device nothing is at work.
        return ()


class _Memory:
    """What CuPy takes for a cupy.cuda.PinnedMemory."""

    __slots__ = ("buffer", "ptr", "size", "__weakref__")

    def __init__(self, buffer):
        self.buffer, self.ptr, self.size = buffer, buffer.ptr, buffer.size

    def __int__(self):
        return self.ptr

    def __del__(self, rest=rest, in_use=_in_use):
        if self.size:
            rest(self.buffer, in_use)


class PinnedAllocator:
    """An allocator for cupy.cuda.set_pinned_memory_allocator, over a pool of host memory.

    It keeps the pool, and so does what it gives. The pool has to be attached to CUDA
    (binpool.cuda.attach), or its memory is copied as any. Called with a number of bytes it returns a
    cupy.cuda.PinnedMemoryPointer, whose memory goes back with the last array of it: it
    rests until the streams that are current then, one of each device, have done what they have by
    then. No memory: the
    CUDARuntimeError that CuPy knows (cudaErrorMemoryAllocation), with the pool's as its cause;
    CuPy then copies without pinned memory. OSError in a forked child. Any thread may call it.
    TypeError: no pool; ValueError: one of handles.
    """

    __slots__ = ("pool",)

    def __init__(self, pool):
        if not isinstance(pool, MemoryPool):
            raise TypeError(f"{pool!r} is no pool")
        if pool._of_handles:
            raise ValueError("a pool of handles has no memory of the host")
        self.pool = pool

    def __call__(self, nbytes):
        again()
        try:
            buffer = self.pool.allocate(nbytes)
        except MemoryError as e:
            raise _CUDAError(_OUT_OF_MEMORY) from e
        return cupy.cuda.PinnedMemoryPointer(_Memory(buffer), 0)
