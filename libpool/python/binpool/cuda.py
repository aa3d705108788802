# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For programs with CUDA, whatever they use it through: CuPy, PyTorch, Numba, PyCUDA.

    pool = binpool.MemoryPool("host")
    host = pool(1 << 20)
    ...                                             # an asynchronous copy from host
    binpool.cuda.free_on_stream(host, stream)

Needs libbinpool-cuda and, when a function is called, the driver.
"""

import ctypes

from . import _library
from ._errors import check

_, _lib = _library.open_library("libbinpool-cuda.so.0", {
    "free_on_cuda_stream": (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
})


def _handle(stream):
    """The driver's handle of what the packages call a stream."""
    for name in ("ptr", "cuda_stream", "handle"):
        stream = getattr(stream, name, stream)
    return int(getattr(stream, "value", stream) or 0)


def free_on_stream(buf, stream=0):
    """Frees a buffer that work in a stream may still use; it rests until that is done.

    stream: a handle, or a stream of one of those packages; 0: the legacy default stream. Errors as
    MemoryPool.free's; BufferError also while the stream is captured; OSError (ENODEV) without a
    driver or a context. Then nothing happened.
    """
    handle = _handle(stream)
    buf._give_with(lambda pool, ptr: check(_lib.free_on_cuda_stream(pool, ptr, handle)))
