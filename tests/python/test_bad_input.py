# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Every public callable, with every argument of a wrong type or value: a documented exception,
whose sentence says something, and nothing has changed. In both backends, so they agree too."""

import decimal
import errno
import pickle

import binpool
from binpool import cuda
from helpers import Case, MIB, thp


class Hostile:
    """Looks like everything, and is nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Hostile()


# Of no use as anything, whatever is asked for.
NOTHING = (object(), Hostile(), 1j, [], {}, ..., type)
# No number of anything, nor a time.
NO_NUMBER = NOTHING + ("12", b"12", decimal.Decimal("1.5"), None)
# Beyond what C has, or what there is.
FAR = (-1, -(1 << 31) - 1, -(1 << 63) - 1, -(1 << 70), 1 << 64, (1 << 64) + 64, 1 << 70, 1 << 2000)

WRONG = (TypeError, ValueError, MemoryError)


class BadInput(Case):
    def refused(self, function, /, *arguments, allowed=WRONG, **named):
        """The call raises one of these, with a sentence."""
        what = f"{function}{arguments}{named}"[:200]
        try:
            result = function(*arguments, **named)
        except allowed as e:
            self.assertTrue(str(e), what)
            return e
        except BaseException as e:
            raise AssertionError(f"{what}: {type(e).__name__}: {e}") from e
        raise AssertionError(f"{what} gave {result!r}")

    def setUp(self):
        self.pool = thp("hurt", max_alloc_bytes=64 * MIB)
        self.buf = self.pool.allocate(5000, tag="mine")
        self.before = self.state()

    def state(self):
        c = self.pool.counters()
        return {k: c[k] for k in ("active_blocks", "active_bytes", "reserved_bytes", "registrations",
                                  "pending_blocks")}

    def tearDown(self):
        self.assertEqual(self.state(), self.before)
        self.identities(self.pool)
        self.pool.free(self.buf)
        self.pool.destroy()

    def test_options(self):
        make = binpool.MemoryPool
        for name in ("allocator", "device:", "thp ", "", "THP"):
            e = self.refused(make, "x", name, allowed=ValueError)
            self.assertIn("none of auto, device, hugetlb, thp", str(e))
            self.assertIn("callable", str(e))
        for bad in NO_NUMBER[:-1]:
            for name in ("max_alloc_bytes", "mantissa_bits", "granule", "cache_bytes",
                         "extent_idle_ms", "node"):
                e = self.refused(thp, **{name: bad}, allowed=TypeError)
                self.assertIn(name, str(e))
            for name in ("kind", "classes"):
                self.refused(thp, **{name: bad})
        for bad in FAR:
            for name in ("max_alloc_bytes", "mantissa_bits", "granule", "cache_bytes"):
                self.refused(thp, **{name: bad})
        for bad in (-2, 1 << 31, 1 << 32, (1 << 32) + 1, -(1 << 32), 1 << 70):
            self.assertIn("node", str(self.refused(thp, node=bad, allowed=ValueError)))
        for bad in (-1, 1 << 32, 1 << 64):
            self.assertIn("extent_idle_ms", str(self.refused(thp, extent_idle_ms=bad)))
        for bad in (None, 5, "", [], b"thp"):
            self.refused(thp, kind=bad)
            self.refused(thp, classes=bad)
        # What would be cut off.
        self.assertIn("null", str(self.refused(thp, "a\0b", allowed=ValueError)))
        self.refused(thp, "\udc80")
        for bad in NOTHING[:1] + NOTHING[2:-1] + (17, b"thp"):
            e = self.refused(make, "x", bad, allowed=TypeError)
            self.assertIn("no provider's name, no callable", str(e))
        # A second time it would forget its first.
        e = self.refused(self.pool.__init__, "y", "thp", allowed=ValueError)
        self.assertIn("is made already", str(e))
        self.assertEqual(self.pool.name, "hurt")

    def test_half_made(self):
        """One whose parent's __init__ was never called."""
        class Half(binpool.MemoryPool):
            def __init__(self):
                pass

        for pool in (Half(), binpool.MemoryPool.__new__(binpool.MemoryPool)):
            self.assertIn("MemoryPool", repr(pool))
            self.refused(pool, 100, allowed=ValueError)
            self.refused(pool.counters, allowed=ValueError)
            self.refused(pool.free_after, self.buf, 0, allowed=ValueError)
            self.refused(pool.add_registrar, print, allowed=ValueError)
            self.refused(binpool.MemoryPool, "x", pool, allowed=ValueError)
            pool.destroy()

    def test_allocating(self):
        pool = self.pool
        for call in (pool, pool.allocate, lambda n: pool.allocate(n, 64),
                     lambda n: pool.allocate_aligned(n, 64), lambda n: pool(n, zeroed=True)):
            for bad in NO_NUMBER:
                self.refused(call, bad, allowed=TypeError)
            for bad in FAR:
                self.refused(call, bad, allowed=(ValueError, MemoryError))
        for bad in NO_NUMBER[:-1]:
            self.refused(pool, 100, bad, allowed=TypeError)
            self.refused(pool, 100, tag=bad if bad != "12" else 12, allowed=TypeError)
        for bad in FAR + (0, 3):
            self.refused(pool, 100, bad, allowed=(ValueError, MemoryError))
        for bad in ("x\0y", "\udc80", "t" * 5000):
            self.refused(pool, 100, tag=bad, allowed=ValueError)
        for bad in NOTHING + ("1", b"1"):
            self.refused(pool, 100, timeout=bad, allowed=TypeError)
            self.refused(pool.destroy, bad, allowed=TypeError)
        for bad in (-1, float("-inf"), float("nan"), -(1 << 2000)):
            self.refused(pool, 100, timeout=bad, allowed=ValueError)
            self.refused(pool.destroy, bad, allowed=ValueError)
        # As long as can be.
        for long in (1 << 40, 1 << 2000, float("inf"), decimal.Decimal("1e30")):
            self.assertEqual(pool(100, timeout=long).size, 100)

    def test_freeing(self):
        pool, buf = self.pool, self.buf
        for bad in NO_NUMBER:
            self.refused(pool.free, bad, allowed=TypeError)
            self.refused(pool.free_after, bad, 0, allowed=TypeError)
            if bad is not None:
                self.refused(pool.free, buf, bad, allowed=TypeError)
        for bad in FAR + (4999, 5001):
            self.refused(pool.free, buf, bad, allowed=(ValueError, MemoryError))
        for bad in NOTHING[:-1] + ("0", None, 1.5):
            self.refused(pool.free_after, buf, bad, allowed=TypeError)
            self.refused(pool.free_after, buf, lambda: True, bad, allowed=TypeError)
        for bad in FAR + (9999,):
            e = self.refused(pool.free_after, buf, bad, allowed=OSError)
            self.assertEqual(e.errno, errno.EBADF)

    def test_questions(self):
        pool = self.pool
        for call in (pool.may_alloc, pool.bin_number, pool.alloc_size, pool.reserve, pool.trim):
            for bad in NO_NUMBER:
                self.refused(call, bad, allowed=TypeError)
            for bad in FAR:
                self.refused(call, bad, allowed=(ValueError, MemoryError))
        for bad in NOTHING + ("1", None):
            self.refused(pool.trim, 0, bad, allowed=TypeError)
        for bad in (-1, float("nan"), float("inf"), 1 << 2000):
            self.refused(pool.trim, 0, bad, allowed=ValueError)
        for bad in NOTHING[:1] + (5, "file"):
            self.refused(pool.print_allocation_report, bad, allowed=TypeError)
        for bad in NOTHING + ("x", b"x", 1.5, None):
            self.refused(binpool.query, bad, allowed=(TypeError, ValueError))
        for bad in FAR + (0, 12345, self.buf.ptr + (1 << 64)):
            e = self.refused(binpool.query, bad, allowed=OSError)
            self.assertEqual(e.errno, errno.ENOENT)

    def test_registrars(self):
        add = self.pool.add_registrar
        for bad in NOTHING[:-1] + (5, "f", None):
            self.refused(add, bad, allowed=TypeError)
            if bad is not None:
                self.refused(add, lambda *a: None, bad, allowed=TypeError)
            self.refused(binpool.Registrar, bad, 1, allowed=TypeError)
        for bad in NO_NUMBER:
            if not isinstance(bad, str):
                self.refused(add, lambda *a: None, None, bad, allowed=TypeError)
            self.refused(binpool.Registrar, self.pool, bad, allowed=TypeError)
        self.refused(add, lambda *a: None, None, "a\0b", allowed=ValueError)
        self.refused(binpool.Registrar(self.pool, 99).remove, allowed=(ValueError, OSError))

    def test_buffers(self):
        buf = self.buf
        for bad in NO_NUMBER + (1.5,):
            self.refused(buf.sub, bad, 1, allowed=TypeError)
            self.refused(buf.sub, 0, bad, allowed=TypeError)
        for bad in FAR + (5001,):
            self.refused(buf.sub, bad, 1, allowed=ValueError)
            self.refused(buf.sub, 0, bad, allowed=ValueError)
        for bad in ("nonsense", object(), object, 17, "O", "f4,O"):
            self.refused(buf.array, bad, allowed=(TypeError, ValueError))
        for bad in ((10, -1), (1 << 40, 1 << 40), 1 << 60, 1 << 70, "x", 1.5, (1.5,), object()):
            self.refused(buf.array, "u1", bad, allowed=(TypeError, ValueError))
            self.refused(self.pool.empty, bad, "u1")
        self.refused(buf.array, "u1", 5001, allowed=(TypeError, ValueError))
        self.refused(self.pool.empty, -1, "u1", allowed=ValueError)
        self.refused(buf.array, "V7", allowed=ValueError)
        self.refused(buf.array, "u1", 10, "Q", allowed=(TypeError, ValueError))
        self.refused(self.pool.empty, 10, object, allowed=(TypeError, ValueError))
        self.refused(self.pool.zeros, 10, "nonsense", allowed=TypeError)
        self.refused(self.pool.empty, 10, "u1", "Q", allowed=(TypeError, ValueError))
        self.refused(self.pool.empty, 10, "u1", alignment=3, allowed=ValueError)
        self.refused(pickle.dumps, buf, allowed=TypeError)
        self.assertEqual(buf.array()[:0].size, 0)

    def test_shares(self):
        for bad in NO_NUMBER + (5,):
            self.refused(binpool.Share, bad, allowed=TypeError)
            self.refused(binpool.Import, bad, allowed=TypeError)
        closed = binpool._library.Share(64, -1, -1, 0, 100)
        share = binpool.Share(closed)
        self.refused(share.open, allowed=ValueError)
        self.refused(pickle.dumps, share, allowed=ValueError)
        # Files that are no pool's.
        for fd, bytes_ in ((9999, 100), (0, 100), (0, 0), (0, (1 << 64) - 1)):
            struct = binpool._library.Share(64, fd, fd, 0, bytes_, 4096)
            self.refused(binpool.Import, struct, allowed=(OSError, ValueError, MemoryError))

    def test_statistics(self):
        s = binpool.MemoryPoolStatistics()
        for bad in ("1", None, [], object()):
            for call in (lambda b: s.push_alloc(b, 1), lambda b: s.push_alloc(1, b),
                         lambda b: s.push_free(b, 1), lambda b: s.push_free(1, b),
                         s.push_return, s.push_reuse):
                self.refused(call, bad, allowed=TypeError)
        # All or nothing.
        self.assertEqual((s.allocs, s.frees, s.returns, s.reuses, s.alloc_bytes, s.free_bytes),
                         (0,) * 6)

    def test_streams(self):
        for bad in NOTHING + ("7", b"7", 1.5):
            self.refused(cuda.free_on_stream, self.buf, bad, allowed=TypeError)
        for bad in (-1, 1 << 64, 1 << 70):
            self.refused(cuda.free_on_stream, self.buf, bad, allowed=ValueError)
        for bad in NO_NUMBER:
            self.refused(cuda.free_on_stream, bad, 0, allowed=TypeError)


