# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers that something is at work on, and waiting for room."""

import errno
import os
import threading
import time

import binpool
from helpers import Case, MIB, NO_VIEW, thp


class Fences(Case):
    def test_descriptors(self):
        pool = thp()
        read, write = os.pipe()
        buf = pool(1000)
        ptr = buf.ptr
        pool.free_after(buf, read)
        os.close(read)
        self.assertEqual((buf.released, pool.pending_blocks, pool.active_blocks, pool.poll()),
                         (True, 1, 1, 1))
        self.raises(ValueError, "released", pool.free, buf)
        others = [pool(1000) for _ in range(20)]
        self.assertNotIn(ptr, [b.ptr for b in others])
        self.raises(BufferError, "", pool.destroy)
        os.close(write)
        self.assertEqual((pool.poll(), pool.active_blocks), (0, 20))
        with open("/dev/zero", "rb") as over:
            pool.free_after(others.pop(), over, over.fileno())
            self.assertEqual(pool.poll(), 0)

    def test_callables(self):
        pool = thp()
        over = [False, False]
        pool.free_after(pool(1000), lambda: over[0], lambda: over[1])
        for i in range(2):
            self.assertEqual(pool.poll(), 1)
            over[i] = True
        self.assertEqual((pool.poll(), pool.active_blocks), (0, 0))
        # None at all: at once.
        pool.free_after(pool(1000))
        self.assertEqual(pool.poll(), 0)
        self.assertEqual(pool.counters()["fence_errors"], 0)

    def test_over_a_counter_of_numpy(self):
        import numpy
        pool, counter = thp(), numpy.zeros(1, "u8")
        for i in range(1, 5):
            pool.free_after(pool(1000), lambda i=i: counter[0] >= i)
        left = []
        for i in range(1, 5):
            counter[0] = i
            left.append(pool.poll())
        self.assertEqual(left, [3, 2, 1, 0])

    def test_what_is_wrong(self):
        pool, other = thp(), thp()
        buf = pool(1000)
        view = memoryview(buf)
        self.raises(BufferError, "views", pool.free_after, buf, lambda: True)
        view.release()
        self.raises(ValueError, "another pool's", other.free_after, buf, lambda: True)
        self.raises(ValueError, "a part", pool.free_after, buf.sub(0, 10), lambda: True)
        self.assertRaises(TypeError, pool.free_after, b"", lambda: True)
        self.raises(TypeError, "no fence", pool.free_after, buf, "fence")
        e = self.raises(OSError, "", pool.free_after, buf, lambda: True, 999)
        self.assertEqual(e.errno, errno.EBADF)
        # Nothing of that took it.
        self.assertEqual((buf.released, pool.pending_blocks, bytes(memoryview(buf)[:0])),
                         (False, 0, b""))
        pool.free(buf)
        self.raises(ValueError, "released", pool.free_after, buf, lambda: True)
        from binpool import _callbacks
        self.assertEqual(_callbacks._waiting, {})

    def test_nobody_views_what_is_given(self):
        """A thread that comes while another is in the call finds the buffer released."""
        pool = thp()
        buf = pool(1000)

        def refused(_, ptr):
            self.assertTrue(buf.released)
            self.assertRaises(NO_VIEW, memoryview, buf)
            self.raises(ValueError, "released", pool.free, buf)
            buf.release()
            raise OSError(errno.EIO, "refused")

        self.raises(OSError, "refused", buf._give_with, refused)
        self.assertEqual((buf.released, buf.pool, memoryview(buf).nbytes), (False, pool, 1000))
        pool.free(buf)
        self.assertEqual(pool.active_blocks, 0)

    def test_descriptors_are_not_cut(self):
        pool = thp()
        buf = pool(1000)
        for fd in (1 << 32, -1, -(1 << 32)):
            self.assertEqual(self.raises(OSError, "", pool.free_after, buf, fd).errno, errno.EBADF)
        self.assertFalse(buf.released)

    def test_reaper_of_the_environment(self):
        """Its thread calls no Python either, whoever asked for it."""
        out = self.script("""
            os.environ["BINPOOL_OPTS"] = "reaper=0,reaper"
            pool = binpool.MemoryPool("x", "thp")
            over = binpool.MemoryPool("over", pool)
            for function in (lambda: pool.free_after(pool(1000), lambda: True),
                             lambda: pool.add_registrar(lambda *what: None)):
                try:
                    function()
                except ValueError as e:
                    print("reaper" in str(e))
            over.free_after(over(1000), lambda: True)
            os.environ["BINPOOL_OPTS"] = "reaper,reaper=0"
            binpool.MemoryPool("y", "thp").add_registrar(lambda *what: None)
        """)
        self.assertEqual(out, ["True", "True"])

    def test_fences_that_raise(self):
        out = self.script("""
            pool = binpool.MemoryPool("x", "thp")
            pool.free_after(pool(1000), lambda: 1 / 0)
            print(pool.poll(), pool.counters()["fence_errors"], pool.active_blocks)
            """, errors=["ZeroDivisionError"])
        self.assertEqual(out, ["0 1 0"])

    def test_pool_goes_before_its_fence(self):
        """It is destroyed when it can be, with those who know of its memory told."""
        log, over = [], []
        for make in (lambda: thp(), lambda: binpool.MemoryPool("x", bytearray)):
            pool = make()
            pool.add_registrar(lambda *a: log.append("attach"), lambda a: log.append("detach"))
            pool.free_after(pool(1000), lambda: bool(over))
            del pool
            thp()
            over.append(True)
            thp()
            self.assertEqual(log, ["attach", "detach"])
            del log[:], over[:]

    def test_exit_with_fences(self):
        out = self.script("""
            read, write = os.pipe()
            pool = binpool.MemoryPool("x", "thp")
            over = binpool.MemoryPool("y", bytearray)
            for p in pool, over:
                p.free_after(p(1000), read)
                p.free_after(p(1000), lambda: False)
            print(pool.poll(), over.poll())
            """)
        self.assertEqual(out, ["2 2"])


class Reaper(Case):
    def test_it_gives_back(self):
        pool = thp(reaper=True, extent_idle_ms=20, cache_bytes=0)
        read, write = os.pipe()
        pool.free_after(pool(8 * MIB), read)
        os.close(write)
        end = time.monotonic() + 60
        while pool.pending_blocks and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(pool.pending_blocks, 0)
        os.close(read)
        for call in (lambda: pool.free_after(pool(10), lambda: True),
                     lambda: pool.add_registrar(print),
                     lambda: binpool.MemoryPool("x", bytearray, reaper=True),
                     lambda: binpool.MemoryPool("x", binpool.MemoryPool("y", bytearray),
                                                reaper=True)):
            self.raises(ValueError, "written in Python", call)
        over = binpool.MemoryPool("x", pool, reaper=True)
        self.assertEqual(over(100).size, 100)
        over.destroy()
        pool.destroy()

    def test_exit(self):
        self.script("""
            pool = binpool.MemoryPool("x", "thp", reaper=True, extent_idle_ms=1)
            kept = pool(1000), memoryview(pool(1 << 20))
            sys.kept = pool(10)
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
            """)

    def test_pressure_fd(self):
        try:
            fd = binpool.pressure_fd()
        except OSError as e:
            self.assertIn(e.errno, (errno.EOPNOTSUPP, errno.EPERM, errno.EACCES))
        else:
            os.close(fd)


class Waiting(Case):
    def test_timeout(self):
        pool = thp(max_alloc_bytes=8 * MIB)
        kept = [pool(6 * MIB)]
        self.raises(TimeoutError, "6 MiB", pool.allocate, 6 * MIB, timeout=0.02)
        self.raises(MemoryError, "", pool.allocate, 6 * MIB)
        # What can never be is refused at once.
        self.raises(MemoryError, "never fits", pool.allocate, 16 * MIB, timeout=3600)
        for bad in (-1, float("nan")):
            self.raises(ValueError, "negative", pool.allocate, 10, timeout=bad)
        self.assertRaises(TypeError, pool.allocate, 10, timeout="long")
        timer = threading.Timer(0.05, kept.clear)
        timer.start()
        start = time.monotonic()
        self.assertEqual(pool.allocate(6 * MIB, timeout=float("inf")).size, 6 * MIB)
        self.assertLess(time.monotonic() - start, 60)
        timer.join()
        self.assertEqual(pool(10, 64, timeout=0).size, 10)

    def test_for_a_fence(self):
        pool = thp(max_alloc_bytes=8 * MIB)
        read, write = os.pipe()
        pool.free_after(pool(6 * MIB), read)
        timer = threading.Timer(0.05, os.close, [write])
        timer.start()
        self.assertEqual(pool.allocate(6 * MIB, timeout=60).size, 6 * MIB)
        timer.join()
        os.close(read)
