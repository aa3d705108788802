# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Chooses between the extension and ctypes, and says which and why."""

import os

from . import _library, _pool


def _choose():
    wanted = os.environ.get("BINPOOL_PYTHON_BACKEND", "")
    if wanted not in ("", "native", "ctypes"):
        raise ImportError(f"BINPOOL_PYTHON_BACKEND is {wanted!r}: native or ctypes")
    if wanted == "ctypes":
        reason = "BINPOOL_PYTHON_BACKEND says so"
    else:
        try:
            from . import _native
            used = _native.load(_library.PATH)
            return _native, "native", f"the extension is there; library {used}"
        except ImportError as e:
            if wanted:
                raise
            reason = f"the extension cannot be used: {e}"
    from . import _ctypes
    return _ctypes, "ctypes", f"{reason}; library {_library.PATH}"


_module, name, reason = _choose()
_pool.complete(_module)
MemoryPool, PooledBuffer = _module.MemoryPool, _module.PooledBuffer
