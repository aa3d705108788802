# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Threads, forks, other interpreters, and the end of the interpreter."""

import errno
import os
import queue
import sys
import threading

import binpool
from helpers import BACKEND, Case, MIB, thp


class Threads(Case):
    def test_all_at_once(self):
        """Who allocates, who frees, who gives back: all different threads."""
        pool = thp(max_alloc_bytes=256 * MIB)
        full, wrong, stop = queue.Queue(64), [], threading.Event()

        def produce(mark):
            for i in range(400):
                buf = pool(100 + 977 * (i % 60))
                memoryview(buf)[:1] = memoryview(buf)[-1:] = bytes([mark])
                full.put((mark, buf))

        def consume():
            while (item := full.get()) is not None:
                mark, buf = item
                view = memoryview(buf)
                if view[0] != mark or view[-1] != mark:
                    wrong.append(mark)
                if len(view) % 2:
                    view.release()
                    pool.free(buf)

        def disturb():
            while not stop.wait(0.005):
                pool.free_held()
                self.identities(pool)

        makers = [threading.Thread(target=produce, args=(m,)) for m in range(1, 4)]
        takers = [threading.Thread(target=consume) for _ in range(2)]
        other = threading.Thread(target=disturb)
        for t in makers + takers + [other]:
            t.start()
        for t in makers:
            t.join()
        for _ in takers:
            full.put(None)
        for t in takers:
            t.join()
        stop.set()
        other.join()
        self.assertEqual(wrong, [])
        self.assertEqual(self.identities(pool)["active_blocks"], 0)
        pool.destroy()

    def test_the_lock_is_let_go(self):
        """While one thread's allocator sleeps, others run, and use the pool, and wait for it."""
        entered, leave = threading.Event(), threading.Event()

        def allocate(nbytes):
            if nbytes >= 4096:
                entered.set()
                leave.wait(60)
            return bytearray(nbytes)

        pool = binpool.MemoryPool("slow", allocate)
        pool(100)
        got = []
        slow = threading.Thread(target=lambda: got.append(pool(5000)))
        slow.start()
        self.assertTrue(entered.wait(60))
        self.assertRaises(BufferError, pool.destroy)
        # Served from a bin, so without waiting.
        self.assertEqual(pool(100).size, 100)
        waits = threading.Thread(target=lambda: got.append(pool(6000)))
        waits.start()
        leave.set()
        slow.join()
        waits.join()
        self.assertEqual(sorted(b.size for b in got), [5000, 6000])

    def test_errors_are_a_thread_s_own(self):
        pool = thp(max_alloc_bytes=4 * MIB)
        seen = []

        def fail(n):
            try:
                pool(n * MIB)
            except MemoryError as e:
                seen.append((n, str(e)))

        threads = [threading.Thread(target=fail, args=(n,)) for n in range(8, 16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(seen), 8)
        for n, sentence in seen:
            self.assertIn(f"asked for {n} MiB", sentence)


class Forks(Case):
    def test_child(self):
        """A child gets an error, its own pools work, and its end disturbs nothing."""
        pool = thp()
        buf, array = pool(1000), pool.empty(10)
        memoryview(buf)[:] = b"p" * 1000
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for call in (lambda: pool(1000), lambda: pool(0), lambda: pool(64 * MIB),
                             pool.free_held, lambda: pool.allocate(10, 64)):
                    try:
                        call()
                    except OSError as e:
                        assert e.errno == errno.EOWNERDEAD and "parent" in str(e), e
                    else:
                        raise AssertionError("a child allocates from its parent's pool")
                pool.free(buf)
                del array
                mine = thp("child's")
                mine.empty(1000)[:] = 1
                mine.destroy()
                pool.destroy()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual((pool.active_blocks, bytes(buf)), (2, b"p" * 1000))
        array[:] = 1
        pool.free(buf)

    def test_child_that_ends_as_python_does(self):
        out = self.script("""
            pool = binpool.MemoryPool("x", "thp")
            over = binpool.MemoryPool("y", bytearray)
            bufs = [pool(1000), over(1000), memoryview(pool(5)), pool(1000)]
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
                bufs.clear()
                assert pool.active_blocks == over.active_blocks == 0
                print("parent")
            else:
                bufs.pop()
                print("child", flush=True)
            """)
        self.assertEqual(out, ["child", "parent"])

    def test_fork_while_others_allocate(self):
        out = self.script("""
            import threading, time
            pool = binpool.MemoryPool("x", "thp")
            stop = False
            def work():
                while not stop:
                    for i in range(100):
                        pool(1000 * (i % 40 + 1))
                    pool.free_held()
            threads = [threading.Thread(target=work) for _ in range(2)]
            for t in threads: t.start()
            for i in range(20):
                pid = os.fork()
                if not pid:
                    binpool.MemoryPool("z", "thp", 8 << 20)(1000)
                    try:
                        pool(1000)
                    except OSError:
                        os._exit(0)
                    os._exit(1)
                assert os.waitpid(pid, 0)[1] == 0
            stop = True
            for t in threads: t.join()
            print(pool.active_blocks)
            """)
        self.assertEqual(out, ["0"])

    def test_multiprocessing(self):
        out = self.script("""
            import multiprocessing
            def work(n):
                return sum(memoryview(binpool.MemoryPool("w", "thp", 8 << 20)(n, zeroed=True)))
            pool = binpool.MemoryPool("x", "thp")
            keep = pool(1000)
            with multiprocessing.get_context("fork").Pool(2) as p:
                print(p.map(work, [100, 200, 300]))
            """)
        self.assertEqual(out, ["[0, 0, 0]"])


class InterpreterExit(Case):
    """Nothing crashes and nothing is said, whatever is left; what is not in cycles goes back."""

    TOLD = """
        import atexit
        class Told(bytearray):
            def __del__(self, write=os.write):
                write(1, b"gone\\n")
        """

    def test_globals_in_any_order(self):
        """Arrays of numpy are hidden from the collector, so the allocator has to be elsewhere."""
        for names in ("a_pool b_buf c_view d_array", "d_pool c_buf b_view a_array",
                      "c_pool a_buf d_view b_array", "b_pool d_buf a_view c_array"):
            pool, buf, view, array = names.split()
            for collector in ("gc.disable()", "gc.set_threshold(1)"):
                with self.subTest(names=names, collector=collector):
                    out = self.script(f"""
                        {collector}
                        import numpy
                        space = dict(os=os)
                        exec("class Told(bytearray):\\n"
                             " def __del__(self, write=os.write): write(1, b'gone\\\\n')", space)
                        {pool} = binpool.MemoryPool("x", space["Told"])
                        {buf} = {pool}(1000)
                        {view} = memoryview({pool}(2000))
                        {array} = {pool}.empty(500)
                        """)
                    self.assertEqual(out, ["gone"] * 3)

    def test_globals_that_the_allocator_knows(self):
        """They are in a circle with it, through the module; the collector sees that."""
        for collector in ("gc.disable()", "gc.set_threshold(1)"):
            out = self.script(f"        {collector}" + self.TOLD + """
        pool = binpool.MemoryPool("x", Told)
        buf, view, part = pool(1000), memoryview(pool(2000)), pool(3000).sub(100, 200)
        class Mine(binpool.MemoryPool):
            def __del__(self, write=os.write):
                super().__del__()
                write(1, b"mine\\n")
        mine = Mine("y", "thp")
        kept = mine(100), memoryview(mine(200))
        """)
            self.assertEqual(sorted(out), ["gone"] * 3 + ["mine"])

    def test_everything_that_may_be_left(self):
        out = self.script(self.TOLD + """
        gc.disable()
        import numpy, queue, threading, weakref
        pool = binpool.MemoryPool("x", Told)
        real = binpool.MemoryPool("real", "thp")
        # In a cycle, in another module, in a frame, in a thread that never ends, in a type.
        class Node: pass
        node = Node(); node.itself = node; node.pool, node.buf = real, real(100)
        pool.loop = pool, memoryview(real(100))
        sys.kept, os.kept = real.empty(10), memoryview(real(1000))
        def generate():
            buf, view = real(100), memoryview(real(200))
            yield buf
        generator = generate(); next(generator)
        def forever(buf):
            while True:
                buf.ptr; real(5000); real(1 << 20)
        threading.Thread(target=forever, args=(real(10),), daemon=True).start()
        Node.buf, Node.view = real(50), memoryview(pool(60))
        weakref.finalize(node, print, "finalized")
        atexit.register(lambda: print(real(777).size, pool(888).size))
        registrar = real.add_registrar(lambda *a: a, lambda a: None)
        """)
        self.assertIn("777 888", out)
        self.assertIn("finalized", out)

    def test_views_that_outlive_the_package(self):
        """Kept by something that goes after all modules have."""
        out = self.script(self.TOLD + """
        pool = binpool.MemoryPool("x", Told)
        class Late:
            def __init__(self, *things): self.things = things
            def __del__(self, write=os.write, gone=b"late\\n"):
                write(1, gone)
        import builtins
        builtins.late = Late(memoryview(pool(100)), pool(200), pool)
        late = Late(memoryview(pool(100)), pool(200), pool)
        for name in [n for n in sys.modules if n.startswith("binpool")]:
            del sys.modules[name]
        del binpool, pool
        gc.collect()
        """)
        self.assertEqual(sorted(out), sorted(["late"] * 2 + ["gone"] * 4))

    def test_exception_ends_it(self):
        out = self.script("""
            pool = binpool.MemoryPool("x", "thp")
            def f():
                buf = pool(100)
                view = memoryview(buf)
                raise SystemExit(3)
            f()
            """, status=3)
        self.assertEqual(out, [])


REFUSED = """
try:
    import binpool
except RuntimeError as e:
    result = str(e)
"""


class OtherInterpreters(Case):
    def run_in_another(self, text):
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            self.skipTest("this Python's other interpreters are not for tests")
        mine = thp()
        keep = mine(100)
        read, write = os.pipe()
        try:
            # Where ctypes cannot be had in one that is isolated.
            number = interpreters.create(isolated=False)
        except TypeError:
            number = interpreters.create()
        try:
            interpreters.run_string(number, f"import os, sys\nsys.path[:] = {sys.path!r}\n" + text +
                                    f"\nos.write({write}, result.encode())")
        finally:
            interpreters.destroy(number)
            os.close(write)
        with os.fdopen(read) as f:
            result = f.read()
        self.assertEqual((mine.active_blocks, mine(100).size, keep.size), (1, 100, 100))
        return result

    def test_own_pools(self):
        if BACKEND == "ctypes":
            self.assertEqual(self.run_in_another(REFUSED), "this backend written in Python can "
                             "be had in the main interpreter only")
            return
        self.assertEqual(self.run_in_another("""
import binpool
pool = binpool.MemoryPool("sub", "thp")
view, buf = memoryview(pool(1000, zeroed=True)), pool(500)
try:
    binpool.MemoryPool("x", bytearray)
except RuntimeError as e:
    result = str(e)
result += f" {bytes(view) == bytes(1000)} {pool.active_blocks} {binpool.backend}"
"""), "an allocator written in Python can be had in the main interpreter only True 2 native")
