# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers in several processes, addresses, and memory that goes back by age."""

import errno
import multiprocessing
import os
import re
import time

import numpy

import binpool
from helpers import Case, MIB, thp

NR_HUGEPAGES = "/proc/sys/vm/nr_hugepages"
PAGES = 8


def number(path):
    with open(path, encoding="utf-8") as f:
        return int(f.read())


def free_pages():
    with open("/proc/meminfo", encoding="utf-8") as f:
        return int(re.search(r"HugePages_Free: *(\d+)", f.read()).group(1))


def other(connection):
    """What the other process does: reads, writes, says whether it is still that buffer."""
    share = connection.recv()
    there = share.open()
    share.close()
    array = there.array("u4", (10, 10))
    connection.send((int(array.sum()), there.check(), share.nbytes))
    array[:] = 7
    connection.send("written")
    connection.recv()
    connection.send((there.check(), bytes(there.memory[:4])))
    del array, there
    connection.close()


class Shares(Case):
    @classmethod
    def setUpClass(cls):
        cls.pages = number(NR_HUGEPAGES)
        if free_pages() < PAGES and not os.geteuid():
            with open(NR_HUGEPAGES, "w", encoding="utf-8") as f:
                f.write(str(cls.pages + PAGES))

    @classmethod
    def tearDownClass(cls):
        if not os.geteuid() and number(NR_HUGEPAGES) != cls.pages:
            with open(NR_HUGEPAGES, "w", encoding="utf-8") as f:
                f.write(str(cls.pages))

    def pool(self):
        """One with files behind its memory."""
        pool = binpool.MemoryPool("shared", "hugetlb")
        try:
            pool.reserve(MIB)
        except MemoryError as e:
            self.skipTest(f"no huge pages: {e}")
        return pool

    def test_two_processes(self):
        for method in ("fork", "spawn"):
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                pool = self.pool()
                buf = pool(400)
                buf.array("u4")[:] = 3
                here, there = context.Pipe()
                process = context.Process(target=other, args=(there,))
                process.start()
                there.close()
                with buf.export() as share:
                    here.send(share)
                    self.assertEqual(here.recv(), (300, True, 400))
                self.assertEqual(here.recv(), "written")
                self.assertTrue((buf.array("u4") == 7).all())
                pool.free(buf)
                here.send("freed")
                self.assertFalse(here.recv()[0])
                process.join()
                self.assertEqual(process.exitcode, 0)
                pool.destroy()

    def test_in_one_process(self):
        pool = self.pool()
        buf = pool(5000)
        share = buf.export()
        there = share.open()
        view, array = there.memory, there.array()
        array[:] = 9
        self.assertEqual((bytes(buf), bytes(view), there.check()), (b"\x09" * 5000,
                                                                    b"\x09" * 5000, True))
        self.assertNotEqual(array.ctypes.data, buf.ptr)
        buf.release()
        self.assertFalse(there.check())
        e = self.raises(OSError, "", share.open)
        self.assertEqual(e.errno, errno.ESTALE)
        share.close()
        share.close()
        self.raises(ValueError, "closed", share.open)
        # Mapped as long as something of it is there.
        del there
        self.assertEqual(view[0], view[-1])
        self.assertEqual(len(array), 5000)

    def test_what_is_not_shared(self):
        pool = thp()
        buf = pool(1000)
        e = self.raises(OSError, "", buf.export)
        self.assertEqual(e.errno, errno.EOPNOTSUPP)
        self.raises(ValueError, "a part", buf.sub(0, 10).export)
        pool.free(buf)
        self.raises(ValueError, "released", buf.export)


class Addresses(Case):
    def test_query(self):
        pool = thp("asked")
        buf = pool.allocate(5000, tag="mine")
        found = binpool.query(buf)
        self.assertEqual((found["pool"], found["buffer"], found["offset"], found["bytes"],
                          found["capacity"], found["state"], found["tag"], found["provider"],
                          found["registrations"], found["registrars"]),
                         (pool.ptr, buf.ptr, 0, 5000, buf.capacity, "active", "mine", "thp", 0,
                          []))
        self.assertGreaterEqual(found["page_bytes"], os.sysconf("SC_PAGE_SIZE"))
        self.assertEqual(binpool.query(buf.ptr + 4999)["offset"], 4999)
        array = buf.array("u1")[100:]
        self.assertEqual(binpool.query(array)["offset"], 100)
        with pool.add_registrar(lambda *a: None, name="somebody"):
            self.assertEqual(binpool.query(buf)["registrars"], ["somebody"])
        ptr = buf.ptr
        del array
        pool.free(buf)
        self.assertIn(binpool.query(ptr)["state"], ("held", "free"))
        for nobody in (bytearray(10), numpy.zeros(10), 0, 12345):
            e = self.raises(OSError, "", binpool.query, nobody)
            self.assertEqual(e.errno, errno.ENOENT)
        self.assertRaises(TypeError, binpool.query, "address")


class Trim(Case):
    def test_by_bytes(self):
        pool = thp()
        del (bufs := [pool(8 * MIB) for _ in range(4)])[:]
        before = pool.reserved_bytes
        self.assertGreaterEqual(before, 32 * MIB)
        self.assertEqual(pool.trim(before), 0)
        given = pool.trim(16 * MIB)
        self.assertGreater(given, 0)
        self.assertEqual(pool.reserved_bytes, before - given)
        self.assertLessEqual(pool.reserved_bytes, 16 * MIB)
        pool.trim()
        self.assertEqual((pool.reserved_bytes, pool.held_blocks), (0, 0))

    def test_by_age(self):
        pool = binpool.MemoryPool("x", "thp", cache_bytes=0)
        pool(8 * MIB)
        self.assertEqual(pool.trim(age=3600), 0)
        time.sleep(0.02)
        self.assertGreaterEqual(pool.trim(age=0.01), 8 * MIB)
        for bad in (-1, float("nan"), float("inf")):
            self.raises(ValueError, "age", pool.trim, 0, bad)
        self.raises(ValueError, "negative", pool.trim, -1)
