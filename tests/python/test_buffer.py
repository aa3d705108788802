# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers, and what is made of them: who has a view has the memory."""

import array
import copy
import gc
import pickle
import weakref

import numpy

import binpool
from helpers import BACKEND, Case, Counter, MIB, NO_VIEW, thp


class Views(Case):
    def test_buffer_protocol(self):
        pool = thp()
        buf = pool(1000)
        view = memoryview(buf)
        self.assertEqual((view.nbytes, view.format, view.readonly, view.contiguous, view.ndim),
                         (1000, "B", False, True, 1))
        view[:] = bytes(i % 251 for i in range(1000))
        self.assertEqual(bytes(buf), bytes(view))
        self.assertEqual(array.array("B", bytes(buf))[700], 700 % 251)
        with open("/dev/zero", "rb") as zero:
            self.assertEqual(zero.readinto(buf), 1000)
        self.assertEqual(bytes(buf), bytes(1000))

    def test_a_view_keeps_its_memory(self):
        pool = thp()
        for view_of in (memoryview, lambda b: memoryview(b)[10:20], numpy.asarray,
                        lambda b: numpy.frombuffer(b, "u4")[3:], lambda b: b.array("f4"),
                        lambda b: b.array("f4", (10, 10)).T[2:5], lambda b: b.sub(8, 80),
                        lambda b: memoryview(b.sub(8, 80)), lambda b: b.sub(8, 80).sub(8, 8)):
            buf = pool(1000)
            view = view_of(buf)
            for act in (buf.release, lambda: pool.free(buf), lambda: pool.free(buf, 1000),
                        lambda: buf.__exit__(None, None, None)):
                self.raises(BufferError, "views or parts", act)
            self.assertFalse(buf.released)
            del buf, act
            self.assertEqual(pool.active_blocks, 1)
            self.assertNotEqual(pool(1000).ptr, 0)
            del view
            self.assertEqual(pool.active_blocks, 0)

    def test_release_after_views(self):
        pool = thp()
        with pool(1000) as buf:
            with memoryview(buf):
                pass
            a = numpy.asarray(buf)
            del a
        self.assertTrue(buf.released)
        self.assertIn("released", repr(buf))
        self.assertRaises(NO_VIEW, memoryview, buf)
        for made in (lambda b: b.array(), lambda b: b.sub(0, 1), lambda b: b.__enter__(),
                     lambda b: b.info(), lambda b: b.capacity, lambda b: b.node):
            self.raises(ValueError, "released", made, buf)
        self.assertEqual((buf.pool, buf.size), (None, 1000))

    def test_parts(self):
        pool = thp()
        buf = pool(1000)
        memoryview(buf)[:] = bytes(i % 251 for i in range(1000))
        part = buf.sub(100, 300)
        self.assertEqual((part.size, part.capacity, part.parent, part.ptr, bytes(part), part.node),
                         (300, 300, buf, buf.ptr + 100, bytes(buf)[100:400], buf.node))
        inner = part.sub(50, 0)
        self.assertEqual((inner.size, bytes(inner)), (0, b""))
        for offset, size in ((-1, 1), (0, -1), (0, 1001), (1000, 1), (1 << 62, 1 << 62)):
            self.raises(ValueError, "not within", buf.sub, offset, size)
        self.raises(ValueError, "a part", pool.free, part)
        self.raises(BufferError, "", part.release)
        inner.release()
        part.release()
        self.assertEqual(part.parent, None)
        buf.release()
        self.assertEqual(pool.held_blocks, 1)

    def test_no_copies(self):
        buf = thp()(100)
        self.assertRaises(TypeError, pickle.dumps, buf)
        self.assertRaises(TypeError, copy.copy, buf)
        self.assertRaises(TypeError, binpool.PooledBuffer)

    def test_memory_is_its_own(self):
        """Buffers in use never share a byte, also views of those that are gone by name."""
        pool = thp(max_alloc_bytes=64 * MIB)
        views = []
        for i in range(300):
            v = memoryview(pool(100 * (i % 50 + 1)))
            v[:] = bytes([i % 256]) * len(v)
            views.append((i % 256, v))
            if i % 3 == 0:
                del views[i % len(views)]
        for mark, v in views:
            self.assertEqual(bytes(v), bytes([mark]) * len(v))


class Arrays(Case):
    def test_shapes(self):
        pool = thp()
        for shape, dtype, order in ((10, "f8", "C"), ((3, 4, 5), "i2", "F"), ((), "c16", "C"),
                                    ((2, 0, 3), "f4", "C"), (numpy.int64(7), "u1", "C"),
                                    ((5,), [("a", "i4"), ("b", "f8")], "C")):
            a = pool.empty(shape, dtype, order)
            want = numpy.empty(shape, dtype, order)
            self.assertEqual((a.shape, a.dtype, a.nbytes), (want.shape, want.dtype, want.nbytes))
            if a.nbytes:
                self.assertEqual(a.strides, want.strides)
            a[...] = 1
            self.assertTrue((a == numpy.ones(shape, dtype)).all())
            self.assertEqual(pool.active_blocks, 1 if a.nbytes else 0)
            del a
        self.assertEqual(pool.active_blocks, 0)

    def test_zeros_and_alignment(self):
        pool = thp()
        pool.empty(1000)[:] = 7
        self.assertEqual(pool.zeros(1000).sum(), 0)
        self.assertEqual(pool.empty(10, alignment=1 << 16).ctypes.data % (1 << 16), 0)

    def test_views_in_arrays(self):
        pool = thp()
        buf = pool(4096)
        a, b = buf.array("u1"), buf.array("u4")
        a[4:8] = 1
        self.assertEqual((b[1], a.ctypes.data, b.shape), (0x01010101, buf.ptr, (1024,)))
        self.assertEqual(buf.array("f8", (4, 4), "F").strides, (8, 32))
        self.raises(ValueError, "no whole number", pool(10).array, "f8")
        self.raises(ValueError, "Python objects", buf.array, object)
        self.assertRaises((ValueError, TypeError), buf.array, "f8", (1000, 1000))
        self.assertRaises(ValueError, pool.empty, (-1, 3))

    def test_mathematics(self):
        pool = thp()
        x = pool.empty((100, 100))
        x[...] = numpy.arange(10000).reshape(100, 100)
        y = pool.empty((100, 100))
        numpy.matmul(x, numpy.eye(100), out=y)
        self.assertTrue((x == y).all())


class Order(Case):
    """Without garbage collection: memory before its pool, and not before its last view."""

    def setUp(self):
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

    def test_dropped_in_any_order(self):
        for order in ("pbva", "avbp", "vpab", "bavp", "abpv", "pavb"):
            with self.subTest(order):
                counter = Counter(lambda n: numpy.empty(n, "u1"))
                pool = binpool.MemoryPool("x", counter)
                buf = pool(1000)
                things = {"p": pool, "b": buf, "v": memoryview(buf)[5:], "a": buf.array("u4")[2:]}
                dead = weakref.ref(pool)
                del pool, buf
                for i, name in enumerate(order):
                    self.assertIsNotNone(dead())
                    things[name] = None
                self.assertIsNone(dead())

    def test_memory_goes_before_its_pool(self):
        events = []

        class Told(bytearray):
            def __del__(self):
                events.append("memory")

        pool = binpool.MemoryPool("x", Told)
        weakref.finalize(pool, events.append, "pool's name")
        view = memoryview(pool(100))
        del pool
        self.assertEqual(events, [])
        del view
        self.assertEqual(sorted(events), ["memory", "pool's name"])

    def test_weak_references(self):
        pool = thp()
        buf = pool(100)
        dead = weakref.ref(buf)
        view = memoryview(buf)
        del buf
        self.assertIsNotNone(dead())
        view.release()
        self.assertIsNone(dead())
        self.assertEqual(pool.active_blocks, 0)

    def test_cycles(self):
        """What is in a cycle waits for the collector, and then is gone."""
        counter = Counter(bytearray)
        pool = binpool.MemoryPool("x", counter)
        pool.itself = pool
        dead = weakref.ref(pool)
        del pool
        self.assertIsNotNone(dead())
        gc.collect()
        self.assertIsNone(dead())

        pool = thp()

        class Node:
            pass

        node = Node()
        node.itself, node.buf = node, pool(100)
        del node
        self.assertEqual(pool.active_blocks, 1)
        gc.collect()
        self.assertEqual(pool.active_blocks, 0)
        # Whose allocator knows the pool.
        node = Node()
        node.allocate = bytearray
        node.pool = binpool.MemoryPool("x", lambda n, node=node: node.allocate(n))
        node.pool(100)
        dead = weakref.ref(node.pool)
        del node
        gc.collect()
        self.assertIsNone(dead())

    def test_registrars_in_cycles(self):
        """Who knows of the memory is told before the collector takes it."""
        for keep in (lambda pool: None, lambda pool: pool(200), lambda pool: memoryview(pool(9))):
            log, pool = [], thp()
            pool.add_registrar(lambda *a: log.append("attach"), lambda a: log.append("detach"))
            pool.itself = pool, keep(pool)
            pool(100)
            del pool
            self.assertEqual(log, ["attach"])
            gc.collect()
            self.assertEqual(log, ["attach", "detach"])

    def test_nothing_is_lost(self):
        """A million buffers' worth of objects leave no references behind."""
        import sys
        pool = thp()
        pool(100)
        before = sys.getrefcount(pool), sys.getrefcount(binpool.PooledBuffer)
        for i in range(2000):
            b = pool(100)
            memoryview(b)
            b.sub(0, 10).release()
            pool.free(b)
            try:
                pool.free(b)
            except ValueError:
                pass
            try:
                pool(-1)
            except ValueError:
                pass
            b = pool.allocate(100, 64, zeroed=True)
        del b
        after = sys.getrefcount(pool), sys.getrefcount(binpool.PooledBuffer)
        self.assertEqual(before, after)
        self.assertIn(BACKEND, ("native", "ctypes"))
