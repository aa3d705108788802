# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For RMM, and so for cuDF and whoever else allocates by it: memory from a pool.

    device = binpool.cuda.DevicePool("gpu")         # when there is a context
    rmm.mr.set_current_device_resource(binpool.rmm.MemoryResource(device))

Needs rmm.
"""

import ctypes

from . import cuda
from ._backend import MemoryPool
from ._in_flight import again, rest

try:
    import rmm.mr
    from cuda.bindings import runtime
except ImportError as e:
    raise ImportError("binpool.rmm needs RMM (pip install rmm-cu13, or rmm-cu12)") from e

__all__ = ["MemoryResource"]

# What RMM promises of each address.
_ALIGNMENT = 256


# RMM knows what it calls by its bare address: while it has memory, the garbage collector, which takes
# circles apart in any order, is not to take that.
_keep = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_let_go = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


def _device():
    """The thread's, whose default stream RMM means; -1: there is none."""
    try:
        error, device = runtime.cudaGetDevice()
        return -1 if error else device
    except RuntimeError:
        # No driver.
        return -1


class _Deallocate:
    """What RMM calls with what it has no more use for; kept by each buffer that it has."""

    __slots__ = ("pool", "buffers")

    def __init__(self, pool):
        self.pool, self.buffers = pool, {}

    def __call__(self, ptr, nbytes, stream, rest=rest, device=_device, let_go=_let_go):
        # Nobody can be told of an error here.
        buffer = self.buffers.pop(ptr, None)
        if buffer is not None:
            try:
                rest(buffer, lambda: [(stream, device())])
            finally:
                let_go(self)


class _Allocate:
    __slots__ = ("deallocate", "aligned")

    def __init__(self, deallocate):
        self.deallocate = deallocate
        # All memory of a device is.
        self.aligned = () if isinstance(deallocate.pool, cuda.DevicePool) else (_ALIGNMENT,)

    def __call__(self, nbytes, stream):
        again()
        # Of no bytes there is no address that is one's own.
        buffer = self.deallocate.pool.allocate(max(nbytes, 1), *self.aligned)
        ptr = buffer.ptr
        self.deallocate.buffers[ptr] = buffer
        _keep(self.deallocate)
        return ptr


class MemoryResource(rmm.mr.CallbackMemoryResource):
    """A memory resource over a binpool.cuda.DevicePool, or a MemoryPool of host memory.

    Of the host: one that is attached to CUDA (binpool.cuda.attach), whose memory devices that
    share addresses with the host can use, over their bus. What is deallocated on a stream rests
    until that has done what it has by then; nobody gets it sooner, on that stream
    neither. The resource keeps the pool (its attribute pool), and memory in use keeps
    both. Any thread may use it. Each call goes through Python: a resource of RMM's own over this one,
    as rmm.mr.PoolMemoryResource, makes them few. TypeError: no pool; ValueError: one of other handles;
    when allocating MemoryError, of others of the pool's errors RuntimeError.
    """

    def __init__(self, pool):
        if not isinstance(pool, MemoryPool):
            raise TypeError(f"{pool!r} is no pool")
        if pool._of_handles and not isinstance(pool, cuda.DevicePool):
            raise ValueError("a pool of handles that are no memory of CUDA's")
        deallocate = _Deallocate(pool)
        super().__init__(_Allocate(deallocate), deallocate)
        self.pool = pool
