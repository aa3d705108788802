# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""HySoP's members, and that they mean what they meant there."""

import csv
import errno
import io
import os
import random
import threading

import binpool
from helpers import BACKEND, Case, Counter, MIB, Thing, thp

DATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")


def rows(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as f:
        yield from csv.DictReader(f)


class Members(Case):
    def test_backend_is_told(self):
        self.assertEqual(binpool.backend, BACKEND)
        self.assertIn(os.environ["BINPOOL_LIBRARY"], binpool.backend_reason)
        self.assertEqual(binpool.PooledBuffer.__name__, "PooledBuffer")

    def test_recorded_trace(self):
        """Counters of PyOpenCL's pool over a counting allocator, after each operation."""
        steps = 0
        for r in rows("pool_trace.csv"):
            op, handle, size = r["op"], r["handle"], int(r["size"] or 0)
            if op == "create":
                pool, live = None, {}
                counter = Counter()
                pool = binpool.MemoryPool("trace", counter, None, int(r["mantissa_bits"]),
                                          kind="handle", classes="hysop", granule=1)
            elif op == "alloc":
                live[handle] = pool.allocate(size)
            elif op == "free":
                pool.free(live.pop(handle), size)
            else:
                getattr(pool, op)()
            self.assertEqual([int(r[k]) for k in ("active_blocks", "held_blocks", "active_bytes",
                                                  "managed_bytes")],
                             [pool.active_blocks, pool.held_blocks, pool.active_bytes,
                              pool.managed_bytes], r)
            self.assertEqual(counter.nbytes, pool.managed_bytes)
            self.identities(pool)
            steps += 1
        self.assertGreater(steps, 100)

    def test_size_classes(self):
        pools = {m: binpool.MemoryPool("x", Counter(), None, m, kind="handle", classes="hysop")
                 for m in range(9)}
        for r in rows("bins.csv"):
            pool, bin_nr = pools[int(r["mantissa_bits"])], int(r["bin_number"])
            self.assertEqual((pool.bin_number(int(r["size"])), pool.alloc_size(bin_nr)),
                             (bin_nr, int(r["alloc_size"])), r)
        pool = thp()
        for k in range(6, 34):
            self.assertEqual(pool.alloc_size(pool.bin_number(1 << k)), 1 << k)

    def test_names_and_defaults(self):
        with thp("a name", max_alloc_bytes=64 * MIB, mantissa_bits=2) as pool:
            self.assertEqual((pool.name, pool.allocator, pool.max_alloc_bytes, pool.mantissa_bits,
                              pool.verbose, pool.provider), ("a name", "thp", 64 * MIB, 2, False,
                                                             "thp"))
            self.assertIn("thp was asked for", pool.provider_reason)
            self.assertIn("a name", repr(pool))
        self.raises(ValueError, "destroyed", pool.allocate, 1)
        self.assertIn("destroyed", repr(pool))
        pool.destroy()
        self.assertIn(binpool.MemoryPool().provider, ("device", "hugetlb", "thp"))
        limit = binpool.MemoryPool("x", Counter(), kind="handle").max_alloc_bytes
        self.assertIsNone(limit)
        limit = binpool.MemoryPool("x", bytearray).max_alloc_bytes
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.assertTrue(0.79 < limit / memory <= 0.8)

    def test_allocate_and_free(self):
        pool = thp()
        for make in (lambda: pool(1000), lambda: pool.allocate(1000),
                     lambda: pool.allocate(nbytes=1000), lambda: pool.allocate(1000, 64),
                     lambda: pool(1000, alignment=64), lambda: pool.allocate_aligned(1000, 64),
                     lambda: pool.allocate(1000, zeroed=True)):
            buf = make()
            self.assertEqual((buf.size, buf.nbytes, buf.capacity, buf.pool, buf.parent),
                             (1000, 1000, 1024, pool, None))
            self.assertEqual((pool.active_blocks, pool.active_bytes), (1, 1000))
            self.raises(ValueError, "999", pool.free, buf, 999)
            self.raises(ValueError, "another pool's", thp().free, buf)
            pool.free(buf, 1000)
            self.assertEqual((pool.active_blocks, pool.held_blocks), (0, 1))
            self.assertTrue(buf.released)
            self.raises(ValueError, "released", pool.free, buf)
            self.raises(ValueError, "released", lambda: buf.ptr)
            buf.release()
            self.identities(pool)
        self.assertEqual(pool.held_blocks, 1)

    def test_alignment_and_zeroing(self):
        pool = thp()
        for shift in range(0, 24):
            buf = pool.allocate(100, 1 << shift)
            self.assertEqual(buf.ptr % (1 << shift), 0)
        for size in (100, 5000, 3 * MIB):
            memoryview(pool(size))[:] = b"\xff" * size
            self.assertEqual(bytes(pool(size, zeroed=True)), bytes(size))

    def test_size_zero(self):
        pool = thp()
        bufs = [pool(0), pool.allocate(0, 4096)]
        self.assertEqual([(b.size, b.capacity, bytes(b)) for b in bufs], [(0, 0, b"")] * 2)
        self.assertNotEqual(bufs[0].ptr, bufs[1].ptr)
        self.assertEqual(pool.reserved_bytes, 0)
        pool.free(bufs[0], 0)

    def test_holding(self):
        pool = thp(max_alloc_bytes=64 * MIB)
        del (buf := [pool(MIB), pool(MIB), pool(5000)])[:]
        self.assertEqual((pool.held_blocks, pool.holding), (3, True))
        pool.free_held()
        self.assertEqual((pool.held_blocks, pool.holding, pool.reserved_bytes), (0, True, 0))
        buf = pool(MIB)
        pool.stop_holding()
        pool.free(buf)
        self.assertEqual((pool.held_blocks, pool.holding, pool.reserved_bytes), (0, False, 0))
        pool.resume_holding()
        pool(MIB)
        self.assertEqual((pool.held_blocks, pool.holding), (1, True))
        pool.reserve(20 * MIB)
        self.assertGreaterEqual(pool.reserved_bytes, 20 * MIB)
        self.assertTrue(pool.may_alloc(4 * MIB))
        self.assertFalse(pool.may_alloc(60 * MIB))
        self.assertFalse(pool.may_alloc((1 << 64) - 1))

    def test_reports(self):
        pool = thp("reported")
        buf = pool(5000)
        self.assertTrue(pool.header().startswith("pool reported: provider thp"))
        self.assertTrue(pool.allocation_report().startswith(pool.header()))
        out = io.StringIO()
        pool.print_allocation_report(out)
        self.assertIn("1 buffer, ", out.getvalue())
        keys = dict(line.split("=", 1) for line in pool.allocation_report(keys=True).splitlines())
        counters = pool.counters()
        self.assertEqual(keys["active_bytes"], "5000")
        self.assertEqual({k: str(v) for k, v in counters.items() if k in keys and k != "provider"},
                         {k: keys[k] for k in counters if k in keys and k != "provider"})
        # Longer than any first guess of its length.
        more = [pool(64 * i) for i in range(1, 500)]
        self.assertGreater(len(pool.allocation_report(keys=True)), 4096)
        del buf, more

    def test_leaks(self):
        pool = thp()
        self.assertEqual(pool.leaks(), "")
        kept = [pool.allocate(5000, tag="loader"), pool(7000, tag="loader"), pool(10),
                pool.allocate(100, 4096, zeroed=True, tag="zeroes")]
        self.assertEqual((kept[3].ptr % 4096, bytes(kept[3])), (0, bytes(100)))
        table, keys = pool.leaks(), pool.leaks(keys=True)
        for word in ("loader", "zeroes"):
            self.assertIn(word, table)
            self.assertIn(word, keys)
        self.assertRaises(TypeError, pool, 10, tag=5)
        del kept[:]
        self.assertEqual(pool.leaks(), "")
        self.identities(pool)
        self.script("""
            pool = binpool.MemoryPool("mine", "thp", leaks=True)
            buf = pool(100, tag="forgotten")
            try:
                pool.destroy()
            except BufferError:
                pass
            """, errors=["forgotten"])

    def test_statistics(self):
        pool = thp()
        for _ in range(4):
            pool(5000)
        s = pool.statistics
        self.assertEqual((s.allocs, s.reuses, s.returns, s.frees), (1, 3, 4, 0))
        self.assertEqual((pool.reuse_factor(), s.reuse_factor()), (0.75, 0.75))
        self.assertGreater(pool.mean_alloc_time(), 0)
        self.assertEqual(pool.mean_free_time(), 0)
        self.assertIn("1 allocs", repr(s))
        over = binpool.MemoryPool("x", Counter(bytearray))
        over(100)
        over.free_held()
        self.assertGreater(over.mean_free_time(), 0)

    def test_statistics_pushed(self):
        s = binpool.MemoryPoolStatistics()
        self.assertEqual((s.mean_alloc_time(), s.mean_free_time(), s.reuse_factor()), (0, 0, 0))
        s.push_alloc(100, 10)
        s.push_alloc(300, 30)
        s.push_free(100, 5)
        s.push_return(300)
        s.push_reuse(300)
        s.push_reuse(100)
        self.assertEqual((s.mean_alloc_time(), s.mean_free_time(), s.reuse_factor()), (20, 5, 0.5))
        self.assertEqual((s.alloc_bytes, s.free_bytes, s.return_bytes, s.reuse_bytes),
                         (400, 100, 300, 400))

    def test_random(self):
        pool = thp(max_alloc_bytes=128 * MIB)
        rng = random.Random(int(os.environ.get("BINPOOL_TEST_SEED", "20240229")))
        live = {}
        for step in range(4000):
            if live and rng.random() < 0.5:
                buf, mark = live.pop(rng.choice(list(live)))
                view = memoryview(buf)
                self.assertTrue(not view or view[0] == view[-1] == mark)
            else:
                buf = pool(int(2 ** rng.uniform(0, 20)))
                mark = step % 256
                memoryview(buf)[:1] = memoryview(buf)[-1:] = bytes([mark])
                live[step] = buf, mark
            del buf
            if step % 100 == 0:
                view = None
                c = self.identities(pool)
                self.assertEqual((c["active_blocks"], c["active_bytes"]),
                                 (len(live), sum(b.size for b, _ in live.values())))


class Errors(Case):
    def test_memory_errors_say_why(self):
        pool = thp(max_alloc_bytes=8 * MIB)
        live = pool(6 * MIB)
        e = self.raises(MemoryError, "max_bytes is 8 MiB", pool.allocate, 6 * MIB)
        self.assertEqual(e.errno, errno.ENOSPC)
        e = self.raises(MemoryError, "never fits", pool.allocate, 1 << 30)
        self.assertEqual(e.errno, errno.EFBIG)
        for huge in ((1 << 64) - 1, 1 << 63):
            self.assertIn(self.raises(MemoryError, "", pool.allocate, huge).errno,
                          (errno.E2BIG, errno.EFBIG))
        self.raises(MemoryError, "address space", pool.allocate, 1 << 64)
        self.raises(MemoryError, "address space", pool.may_alloc, 1 << 64)
        self.assertEqual(self.identities(pool)["refused"], 4)
        del live
        # Held memory goes before the limit refuses.
        pool(8 * MIB)

    def test_wrong_arguments(self):
        pool = thp()
        for bad in (-1, -(1 << 70)):
            self.raises(ValueError, "number of bytes", pool.allocate, bad)
            self.raises(ValueError, "negative", pool.may_alloc, bad)
        for bad in ("1", None, 1.5, b""):
            self.assertRaises(TypeError, pool.allocate, bad)
            self.assertRaises(TypeError, pool, bad)
            self.assertRaises(TypeError, pool.free, bad)
            self.assertRaises(TypeError, pool.bin_number, bad)
        for bad in (0, 3, 48, 1 << 40, -1):
            self.assertRaises(ValueError, pool.allocate, 100, bad)
        self.raises(ValueError, "", pool.alloc_size, 1 << 40)
        self.assertRaises(TypeError, pool.allocate)
        self.assertRaises(TypeError, pool)
        self.assertRaises(TypeError, pool.allocate, 1, 64, True)
        self.assertRaises(TypeError, pool.allocate, 1, nonsense=1)
        self.assertRaises(TypeError, pool.allocate, 1, nbytes=1)
        self.assertRaises(TypeError, pool.free)
        self.assertRaises(TypeError, binpool.PooledBuffer)
        self.raises(ValueError, "negative", pool.destroy, -1)
        self.assertEqual(pool.counters()["allocs"], 0)

    def test_wrong_options(self):
        self.raises(ValueError, "'floppy' is none of", binpool.MemoryPool, "x", "floppy")
        self.raises(ValueError, "none of tight, hysop", thp, classes="loose")
        self.raises(ValueError, "none of host, handle", thp, kind="cup")
        self.raises(ValueError, "allocator of yours", thp, kind="handle")
        self.raises(TypeError, "no callable", binpool.MemoryPool, "x", 17)
        for bad in ({"mantissa_bits": 17}, {"mantissa_bits": -1}, {"granule": 48},
                    {"max_alloc_bytes": 0}, {"max_alloc_bytes": -1}, {"max_alloc_bytes": 1},
                    {"cache_bytes": -1}):
            with self.subTest(bad):
                self.assertRaises(ValueError, thp, **bad)
        self.assertRaises(TypeError, thp, nonsense=1)
        if not os.path.exists("/dev/binpool"):
            self.raises(OSError, "strict", binpool.MemoryPool, "x", strict=True)
            e = self.raises(OSError, "/dev/binpool", binpool.MemoryPool, "x", "device")
            self.assertIn(e.errno, (errno.ENODEV, errno.ENOENT))

    def test_debug(self):
        """Who writes to what he gave back is found out."""
        self.script("""
            import ctypes
            pool = binpool.MemoryPool("strict", "thp", debug=True)
            for stale in (False, True):
                buf = pool(5000)
                ptr = buf.ptr
                pool.free(buf)
                if stale:
                    ctypes.memset(ptr + 100, 1, 1)
                print(pool(5000).size)
            """, status=-6, errors=["strict: the buffer at", "offset 100:"])

    def test_destroy(self):
        pool = thp()
        buf = pool(100)
        e = self.raises(BufferError, "1 buffer in use", pool.destroy)
        self.assertEqual(e.errno, errno.EBUSY)
        self.raises(BufferError, "in use", pool.destroy, 0.01)
        keep = [buf]
        del buf
        timer = threading.Timer(0.05, keep.clear)
        timer.start()
        pool.destroy(30)
        timer.join()
        self.raises(ValueError, "destroyed", pool.free_held)

    def test_subclass(self):
        class Mine(binpool.MemoryPool):
            def allocate(self, nbytes):
                return super().allocate(2 * nbytes)

        pool = Mine("mine", "thp")
        self.assertEqual((pool.allocate(100).size, pool(100).size, pool(100, 64).size),
                         (200, 100, 100))
        self.assertEqual(pool(nbytes=100, alignment=64).size, 100)
        self.assertRaises(TypeError, pool)


class Allocators(Case):
    def test_memory_of_others(self):
        import mmap
        import numpy

        for make in (bytearray, lambda n: mmap.mmap(-1, n), lambda n: numpy.empty(n, "u1"), thp()):
            pool = binpool.MemoryPool("over", make)
            buf = pool(1000)
            memoryview(buf)[:] = b"x" * 1000
            self.assertEqual((pool.provider, bytes(buf), pool.reserved_bytes, buf.handle),
                             ("allocator", b"x" * 1000, buf.capacity, None))
            self.assertEqual(pool.allocate(1000, 4096).ptr % 4096, 0)
            if isinstance(make, binpool.MemoryPool):
                self.assertEqual(make.active_blocks, 2)
                del buf
                pool.free_held()
                self.assertEqual(make.active_blocks, 0)

    def test_object_with_allocate(self):
        class HasAllocate:
            allocate = staticmethod(bytearray)

        self.assertEqual(binpool.MemoryPool("x", HasAllocate()).allocate(10).size, 10)

    def test_handles(self):
        counter = Counter()
        pool = binpool.MemoryPool("handles", counter, kind="handle")
        buf = pool(1000)
        self.assertIsInstance(buf.handle, Thing)
        self.assertEqual((buf.handle.nbytes, buf.capacity), (1024, 1024))
        self.assertRaises((BufferError, TypeError), memoryview, buf)
        self.raises(ValueError, "parts", buf.sub, 0, 10)
        self.raises(ValueError, "not aligned", pool.allocate, 1000, 64)
        self.raises(ValueError, "nor zeroed", pool.allocate, 1000, zeroed=True)
        self.assertIsNone(pool(0).handle)
        first = buf.handle
        pool.free(buf)
        self.assertRaises(ValueError, lambda: buf.handle)
        buf = pool(1000)
        self.assertIs(buf.handle, first)
        del first, buf
        pool.free_held()
        self.assertEqual((counter.allocs, counter.frees), (1, 1))

    def test_pools_over_pools(self):
        inner = thp("inner", max_alloc_bytes=16 * MIB)
        middle = binpool.MemoryPool("middle", inner)
        outer = binpool.MemoryPool("outer", middle, 8 * MIB)
        buf = outer(5000)
        memoryview(buf)[:] = b"o" * 5000
        self.assertEqual([p.active_blocks for p in (inner, middle, outer)], [1, 1, 1])
        e = self.raises(BufferError, "", inner.destroy)
        self.assertEqual(e.errno, errno.EBUSY)
        self.raises(MemoryError, "never fits", outer.allocate, 12 * MIB)
        del middle, outer
        self.assertEqual((bytes(buf)[:5], inner.active_blocks), (b"ooooo", 1))
        del buf
        self.assertEqual(inner.active_blocks, 0)
        inner.destroy()
        # Of handles, whose things are the innermost's; also if it only looks like a pool.
        counter = Counter()
        inner = binpool.MemoryPool("inner", counter, kind="handle")
        outer = binpool.MemoryPool("outer", inner, kind="handle")
        buf = outer(5000)
        self.assertIsInstance(buf.handle, Thing)
        del buf, outer
        inner.free_held()
        self.assertEqual((counter.allocs, counter.frees), (1, 1))

        class Odd(binpool.MemoryPool):
            def allocate(self, nbytes):
                return super().allocate(nbytes + 1)

        odd = Odd("odd", "thp")
        outer = binpool.MemoryPool("outer", odd.allocate)
        self.assertEqual((outer(4096).size, odd.active_bytes), (4096, 4097))
        # What cannot be made leaves the inner one alone.
        inner = thp()
        self.assertRaises(ValueError, binpool.MemoryPool, "x", inner, granule=48)
        self.assertRaises(ValueError, binpool.MemoryPool, "x", inner, kind="handle")
        inner.destroy()

    def test_what_is_no_memory(self):
        for make, kind, words in ((lambda n: 17, TypeError, "kind='handle'"),
                                  (bytes, ValueError, "cannot be written"),
                                  (lambda n: bytearray(n - 1), ValueError, "asked for"),
                                  (lambda n: memoryview(bytearray(2 * n))[::2], ValueError,
                                   "scattered"),
                                  (lambda n: None, MemoryError, "None")):
            pool = binpool.MemoryPool("x", make)
            self.raises(kind, words, pool.allocate, 1000)
            self.assertEqual(self.identities(pool)["reserved_bytes"], 0)
        same = bytearray(2000)
        pool = binpool.MemoryPool("x", lambda n: same)
        buf = pool(1000)
        self.raises(ValueError, "given before", pool.allocate, 1000)
        del buf

    def test_exceptions_pass_through(self):
        counter = Counter(bytearray)
        pool = binpool.MemoryPool("x", counter)

        class Odd(Exception):
            pass

        for odd in (Odd("odd"), KeyboardInterrupt(), OSError(errno.EACCES, "no"),
                    ValueError("bad")):
            held = pool.held_blocks
            counter.fails = [odd]
            with self.assertRaises(type(odd)) as caught:
                pool(5000)
            self.assertIs(caught.exception, odd)
            # Only for want of memory are held buffers given up.
            self.assertEqual(pool.held_blocks, held)
            pool(100 + held)
        counter.fails = [MemoryError("none left")] * 9
        e = self.raises(MemoryError, "none left", pool.allocate, 5000)
        self.assertEqual((e.errno, type(e.__cause__)), (errno.ENOMEM, MemoryError))
        self.assertEqual(pool.held_blocks, 0)
        counter.fails = []
        pool(100)
        counter.fails = [MemoryError("for now")]
        pool(6000)
        self.assertEqual(counter.fails, [])
        # What was overcome is not told later.
        small = binpool.MemoryPool("small", "thp", 4 * MIB)
        e = self.raises(MemoryError, "never fits", small.allocate, 8 * MIB)
        self.assertIsNone(e.__cause__)

    def test_held_memory_goes_before_it_fails(self):
        counter = Counter(bound=10000)
        pool = binpool.MemoryPool("x", counter, kind="handle")
        for size in (1024, 2048, 4096):
            pool(size)
        self.assertEqual(pool.held_blocks, 3)
        # Largest first: 4096 is enough.
        buf = pool(6144)
        self.assertEqual((pool.held_blocks, counter.frees), (2, 1))
        self.raises(MemoryError, "bound", pool.allocate, 8192)
        self.assertEqual((pool.held_blocks, counter.frees, buf.size), (0, 3, 6144))

    def test_what_ends_leaves_the_last_error(self):
        """It may end between an error and the exception that tells it."""
        import gc
        from binpool._library import lib

        stash, seen = [], []

        def allocate(nbytes):
            lib.set_last_error(b"mine")
            stash.clear()
            seen.append(lib.last_error())
            return bytearray(nbytes)

        pool = binpool.MemoryPool("x", allocate)
        stash.append(pool(100))
        del seen[:]
        # Its own buffer, which cannot be freed there.
        pool(5000)
        # A pool that cannot be destroyed yet, and one with its buffer in a circle.
        stash.append(thp())
        stash[0].free_after(stash[0](100), lambda: False)
        pool(6000)
        circle = [thp()]
        circle += circle, memoryview(circle[0](100))
        lib.set_last_error(b"mine")
        del circle
        gc.collect()
        self.assertEqual((seen, lib.last_error()), ([b"mine"] * 2, b"mine"))

    def test_callback_uses_its_own_pool(self):
        stash, errors = [], []

        def allocate(nbytes):
            stash.clear()
            try:
                pool(10)
            except OSError as e:
                errors.append(e.errno)
            return bytearray(nbytes)

        pool = binpool.MemoryPool("x", allocate)
        stash.append(pool(100))
        del errors[:]
        kept = pool(5000)
        self.assertEqual(errors, [errno.EDEADLK])
        # What ended in the callback is free by now.
        self.assertEqual((pool.active_blocks, pool.held_blocks), (1, 1))
        del kept

    def test_free_of_things_that_raise(self):
        """Nobody can be told, but nothing else suffers."""
        self.script("""
            class Bad(bytearray):
                def __del__(self):
                    raise RuntimeError("in __del__")
            pool = binpool.MemoryPool("x", Bad)
            pool(100)
            pool.free_held()
            assert pool.reserved_bytes == 0
            """, errors=["in __del__"])

    def test_in_background(self):
        pool = thp()
        pool.wait_registered()
        buf = pool(100)
        pool.wait_registered()
        pool.wait_registered(buf, timeout=0)
        with pool.add_registrar(lambda *a: None):
            self.raises(ValueError, "written in Python", pool.register_in_background)
        pool.register_in_background(bytes_per_second=1 << 30)
        self.raises(ValueError, "written in Python", pool.add_registrar, lambda *a: None)
        pool.wait_registered(buf, 60)
        self.raises(ValueError, "written in Python",
                    binpool.MemoryPool("x", bytearray).register_in_background)
        for bad in (-1, float("nan")):
            self.raises(ValueError, "negative", pool.wait_registered, buf, bad)
        self.raises(ValueError, "negative", pool.register_in_background, -1)
        for bad in ("x", b"", [], 1.5):
            self.assertRaises(TypeError, pool.register_in_background, bad)
            self.assertRaises(TypeError, pool.wait_registered, bad)
        self.assertRaises(TypeError, pool.wait_registered, buf, "long")
        # Its thread ends with it, and with the interpreter.
        del buf
        pool.destroy()
        self.script("""
            pool = binpool.MemoryPool("x", "thp")
            pool.register_in_background()
            sys.kept = pool(1 << 20)
            """)

    def test_registrar(self):
        pool, log = thp(), []
        before = pool(100)

        def attach(ptr, nbytes, fd, node):
            log.append(("attach", ptr, nbytes))
            return ptr

        registrar = pool.add_registrar(attach, lambda ptr: log.append(("detach", ptr)), "mine")
        self.assertEqual(log, [("attach", before.ptr & -4 * MIB, 4 * MIB)]
                         if before.ptr % (4 * MIB) == 0 else log)
        self.assertEqual(len(log), 1)
        big = pool(16 * MIB)
        self.assertEqual(len(log), 2)
        self.assertTrue(log[1][1] <= big.ptr < log[1][1] + log[1][2])
        del big
        pool.free_held()
        self.assertIn(("detach", log[1][1]), log)
        registrar.remove()
        registrar.remove()
        self.assertEqual(sorted(e[1] for e in log if e[0] == "attach"),
                         sorted(e[1] for e in log if e[0] == "detach"))
        self.assertEqual(pool.counters()["registrations"], 0)

        def refuse(*args):
            raise PermissionError(errno.EPERM, "not this one")

        self.raises(PermissionError, "not this one", pool.add_registrar, refuse)
        other = thp()
        with other.add_registrar(refuse):
            self.raises(PermissionError, "not this one", other.allocate, 100)
        self.assertEqual(other(100).size, 100)
        with other.add_registrar(refuse, optional=True):
            self.assertEqual(other(8 * MIB).size, 8 * MIB)
            self.assertGreater(other.counters()["registrations_refused"], 0)
