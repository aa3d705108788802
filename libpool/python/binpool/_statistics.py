# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What a pool counts."""


class MemoryPoolStatistics:
    """Counters of a pool, or of whatever is pushed: how often and how long.

    allocs and frees are buffers got and given up (t: nanoseconds that memory for them took, of a
    pool 0 where it had memory already); returns and reuses are buffers put into bins and taken from
    them (size: bytes). A snapshot of a pool (MemoryPool.statistics) is its own: pushing to it does
    not change the pool. Not locked.
    """

    def __init__(self, allocs=0, frees=0, returns=0, reuses=0, alloc_ns=0, free_ns=0):
        self.allocs, self.frees, self.returns, self.reuses = allocs, frees, returns, reuses
        self.alloc_ns, self.free_ns = alloc_ns, free_ns
        self.alloc_bytes = self.free_bytes = self.return_bytes = self.reuse_bytes = 0

    def push_alloc(self, size, t):
        self.alloc_bytes, self.alloc_ns = self.alloc_bytes + size, self.alloc_ns + t
        self.allocs += 1

    def push_free(self, size, t):
        self.free_bytes, self.free_ns = self.free_bytes + size, self.free_ns + t
        self.frees += 1

    def push_return(self, size):
        self.return_bytes += size
        self.returns += 1

    def push_reuse(self, size):
        self.reuse_bytes += size
        self.reuses += 1

    def mean_alloc_time(self):
        """Nanoseconds; 0 if there were none, see allocs."""
        return self.alloc_ns / self.allocs if self.allocs else 0.0

    def mean_free_time(self):
        """Nanoseconds; 0 if there were none, see frees."""
        return self.free_ns / self.frees if self.frees else 0.0

    def reuse_factor(self):
        """Share of requests that a held buffer served, 0 to 1."""
        requests = self.reuses + self.allocs
        return self.reuses / requests if requests else 0.0

    def __repr__(self):
        return (f"<MemoryPoolStatistics: {self.allocs} allocs, {self.frees} frees, "
                f"{self.returns} returns, {self.reuses} reuses>")
