# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Pinned memory of PyTorch's and of CuPy's pools, and of binpool's for them, for bench-cuda.

    frameworks.py torch|cupy|binpool.torch|binpool.cupy BYTES...

Prints figures as the programs do: of each size the first allocation, which the framework's pool
does not have yet, and all further ones. Import and context come before, and are told; a pool of
binpool's is made with the first. Status 77 and a sentence: the framework is not installed, or sees
no device.
"""

import importlib
import sys
import time

IMPOSSIBLE = 77
AGAIN_S = 0.05


def impossible(sentence):
    print(sentence, file=sys.stderr)
    sys.exit(IMPOSSIBLE)


def torch():
    """What allocates of PyTorch's."""
    try:
        import torch as library
    except ImportError as error:
        impossible(f"PyTorch is not installed here: {error}")
    if not library.cuda.is_available():
        impossible("PyTorch sees no device")
    library.zeros(1, device="cuda")
    library.cuda.synchronize()
    print(f"# PyTorch {library.__version__}")
    return lambda size: library.empty(size, dtype=library.uint8, pin_memory=True)


def cupy():
    try:
        import cupy as library
        library.cuda.runtime.free(0)
    except ImportError as error:
        impossible(f"CuPy is not installed here: {error}")
    except Exception as error:  # of a runtime's own kind, which may not be had either
        impossible(f"CuPy sees no device: {error}")
    print(f"# CuPy {library.__version__}")
    return library.cuda.alloc_pinned_memory


def pooled(framework):
    """What allocates by binpool's adapter for a framework."""
    framework()
    try:
        import binpool
        import binpool.cuda
        adapter = importlib.import_module(f"binpool.{framework.__name__}")
    except ImportError as error:
        impossible(f"binpool's package cannot be used here: {error}")
    print(f"# binpool.{framework.__name__}: {binpool.backend_reason}")
    made = []

    def make():
        pool = binpool.MemoryPool("bench", "thp")
        binpool.cuda.attach(pool)
        if framework is cupy:
            return adapter.PinnedAllocator(pool)
        uint8 = sys.modules["torch"].uint8
        return lambda size: adapter.empty(pool, size, uint8)

    def alloc(size):
        if not made:
            made.append(make())
        return made[0](size)
    return alloc


def again(alloc, size):
    """Microseconds for taking and giving back."""
    n = 1
    while True:
        start = time.perf_counter()
        for _ in range(n):
            alloc(size)
        took = time.perf_counter() - start
        if took >= AGAIN_S:
            return took / n * 1e6
        n *= 2


def main():
    start = time.perf_counter()
    package, _, name = sys.argv[1].rpartition(".")
    framework = {"torch": torch, "cupy": cupy}[name]
    alloc = pooled(framework) if package else framework()
    print(f"context_ms {(time.perf_counter() - start) * 1e3:.1f}")
    for size in map(int, sys.argv[2:]):
        start = time.perf_counter()
        memory = alloc(size)
        print(f"first_ms.{size} {(time.perf_counter() - start) * 1e3:.4f}", flush=True)
        del memory
        print(f"again_us.{size} {again(alloc, size):.4f}", flush=True)


if __name__ == "__main__":
    main()
