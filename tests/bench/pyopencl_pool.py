# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""A peer of hotpath.c: PyOpenCL's MemoryPool on the first device; prints the figures of a row."""

import random
import statistics
import sys
import time

import pyopencl as cl
from pyopencl.tools import ImmediateAllocator, MemoryPool

PAIRS = {"pair_64k": 64 << 10, "pair_1m": 1 << 20, "pair_16m": 16 << 20}


def pair(pool, size):
    n = 20000
    start = time.perf_counter_ns()
    for _ in range(n):
        pool.allocate(size).release()
    return (time.perf_counter_ns() - start) / n


def mixed(pool, live, steps):
    start = time.perf_counter_ns()
    for slot, size in steps:
        if live[slot] is not None:
            live[slot].release()
        live[slot] = pool.allocate(size)
    return (time.perf_counter_ns() - start) / len(steps)


def main():
    row = sys.argv[1]
    context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
    queue = cl.CommandQueue(context)
    pool = MemoryPool(ImmediateAllocator(queue))
    if row in PAIRS:
        ns = [pair(pool, PAIRS[row]) for _ in range(16)][1:]
    else:
        rng = random.Random(1)
        steps = [(rng.randrange(64), int(2 ** rng.uniform(12, 24))) for _ in range(8192)]
        live = [None] * 64
        ns = [mixed(pool, live, steps) for _ in range(8)][1:]
        sizes, peak = [0] * 64, 0
        for slot, size in steps:
            sizes[slot] = size
            peak = max(peak, sum(sizes))
        print(f"reserved_over_peak {pool.managed_bytes / peak:.3f}")
    print(f"{row}_ns {statistics.median(ns):.2f}\n{row}_min_ns {min(ns):.2f}")


if __name__ == "__main__":
    main()
