# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""A binned memory pool over huge, pinnable host memory, with the names of HySoP's.

    import binpool

    pool = binpool.MemoryPool("loader")
    buffer = pool.allocate(1 << 20)         # or pool(1 << 20)
    array = pool.empty((512, 512), "f4")    # of numpy

Sizes are in bytes, times in nanoseconds unless said otherwise. binpool.backend says whether
the extension is used ("native") or, where it cannot be, ctypes ("ctypes", slower, the same in
all else), and backend_reason why. binpool.opencl is for PyOpenCL, binpool.cuda for CUDA, and
binpool.torch, binpool.cupy and binpool.rmm for what is used with it.
"""

from ._backend import MemoryPool, PooledBuffer
from ._backend import name as backend
from ._backend import reason as backend_reason
from ._registrar import Registrar
from ._share import Import, Share, pressure_fd, query
from ._statistics import MemoryPoolStatistics

__all__ = ["Import", "MemoryPool", "MemoryPoolStatistics", "PooledBuffer", "Registrar", "Share",
           "backend", "backend_reason", "pressure_fd", "query"]
__version__ = "0.1.0"
