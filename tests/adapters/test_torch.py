# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""PyTorch: tensors in a pool's memory, and how long they have it."""

import gc
import threading

from peers import is_pinned, needs_gpu, peer, settled, without_gpu

torch = peer("torch")

import binpool
import binpool.torch
from binpool import cuda
from helpers import Case, MIB, thp
from told import Told


def views(pool):
    """How many of the pool's buffers a tensor of empty() has, as far as the adapter knows."""
    return sum(view.buffer.pool is pool for view in binpool.torch._views.values())


class Tensors(Case):
    def test_no_copy(self):
        pool = thp()
        buf = pool(4000)
        tensor = binpool.torch.from_buffer(buf, torch.float32, (10, -1))
        self.assertEqual((tensor.shape, tensor.dtype, tensor.data_ptr()),
                         ((10, 100), torch.float32, buf.ptr))
        tensor[:] = 3
        self.assertTrue((buf.array("f4") == 3).all())
        buf.array("f4")[17] = 4
        self.assertEqual(float(tensor[0, 17]), 4)
        flat = binpool.torch.from_buffer(buf)
        self.assertEqual((flat.shape, flat.dtype), ((4000,), torch.uint8))
        part = binpool.torch.from_buffer(buf.sub(400, 80), torch.int16)
        part[:] = -1
        self.assertTrue((flat[400:480] == 255).all())
        made = binpool.torch.empty(pool, (3, 5), torch.float64)
        self.assertEqual((made.shape, made.dtype, pool.active_blocks), ((3, 5), torch.float64, 2))
        self.assertEqual(binpool.query(made.data_ptr())["bytes"], 120)
        for size in (7, (7,), [7], torch.Size([7])):
            self.assertEqual(binpool.torch.empty(pool, size).shape, (7,))
        self.assertEqual(binpool.torch.empty(pool, ()).shape, ())
        self.assertEqual(binpool.torch.empty(pool, 1).dtype, torch.get_default_dtype())

    def test_nothing(self):
        pool = thp()
        self.assertEqual(binpool.torch.from_buffer(pool(0), torch.float32).shape, (0,))
        self.assertEqual(binpool.torch.empty(pool, (3, 0, 2)).shape, (3, 0, 2))
        self.assertEqual(pool.active_blocks, 0)

    def test_who_keeps_it(self):
        gc.disable()
        self.addCleanup(gc.enable)
        pool = thp()
        buf = pool(1000)
        tensor = binpool.torch.from_buffer(buf)
        view = tensor[10:20].view(2, 5)
        self.raises(BufferError, "views", buf.release)
        self.raises(BufferError, "views", pool.free, buf)
        del tensor, buf
        self.assertEqual(pool.active_blocks, 1)
        self.raises(BufferError, "", pool.destroy)
        view[:] = 1
        del view
        self.assertEqual(pool.active_blocks, 0)
        tensor = binpool.torch.empty(pool, 1000)
        array, ptr = tensor[5:].numpy(), tensor.data_ptr()
        del tensor
        self.assertEqual((pool.active_blocks, views(pool), array.ctypes.data), (1, 1, ptr + 20))
        del array
        self.assertEqual((settled(pool).active_blocks, views(pool)), (0, 0))
        again = binpool.torch.empty(pool, 1000)
        self.assertEqual(again.data_ptr(), ptr)
        # In a circle: the collector has it to find.
        again.itself = again
        del again
        gc.collect()
        self.assertEqual(settled(pool).active_blocks, 0)
        pool.destroy()
        # And the pool, by its tensors alone.
        tensor = binpool.torch.empty(thp(), 1000)
        tensor.fill_(7)
        self.assertEqual(int(tensor.sum()), 7000)

    def test_wrong_arguments(self):
        pool = thp()
        released = pool(100)
        released.release()
        # How is the backend's to say.
        self.assertRaises((ValueError, TypeError, BufferError), binpool.torch.from_buffer, released)
        for kind, words, function, *arguments in (
                (TypeError, "no buffer", binpool.torch.from_buffer, bytearray(10)),
                (ValueError, "", binpool.torch.from_buffer, pool(10), torch.float32),
                (RuntimeError, "", binpool.torch.from_buffer, pool(12), torch.float32, (2, 2)),
                (TypeError, "no pool", binpool.torch.empty, None, 10),
                (TypeError, "", binpool.torch.empty, pool, 1.5),
                (TypeError, "", binpool.torch.empty, pool, 10, "f4"),
                (ValueError, "negative", binpool.torch.empty, pool, (3, -1)),
                (MemoryError, "", binpool.torch.empty, pool, 1 << 60),
                (TypeError, "no tensor", binpool.torch.record_stream, 1, None),
                (TypeError, "Stream", binpool.torch.record_stream, torch.empty(1), 7)):
            self.raises(kind, words, function, *arguments)
        gc.collect()
        self.assertEqual(settled(pool).active_blocks, 0)

    def test_threads(self):
        pool, wrong = thp(), []

        def work(number):
            try:
                for i in range(200):
                    tensor = binpool.torch.empty(pool, 100 + i)
                    tensor.fill_(number)
                    if not bool((tensor == number).all()):
                        wrong.append((number, i))
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((wrong, settled(pool).active_blocks, views(pool)), ([], 0, 0))

    def test_forked_child(self):
        out = self.script("""
            import torch, binpool.torch
            pool = binpool.MemoryPool("x", "thp")
            tensor = binpool.torch.empty(pool, 1000).fill_(1)
            mine = binpool.torch.from_buffer(pool(100))
            pid = os.fork()
            if not pid:
                try:
                    binpool.torch.empty(pool, 10)
                except OSError:
                    print("refused", flush=True)
                del tensor, mine
                os._exit(0)
            print(os.waitpid(pid, 0)[1], int(tensor.sum()), pool.active_blocks)
            """)
        self.assertEqual(out, ["refused", "0 1000 2"])

    def test_the_end(self):
        """In whatever order things go; what has a view of the pool's keeps the pool."""
        for collector, names in (("gc.disable()", "a_pool b_buf c_tensor d_made"),
                                 ("gc.set_threshold(1)", "d_pool c_buf b_tensor a_made"),
                                 ("gc.disable()", "b_pool a_buf d_tensor c_made")):
            pool, buf, tensor, made = names.split()
            out = self.script(f"""
                import atexit, torch, binpool.torch
                from peers import Late
                {collector}
                {pool} = binpool.MemoryPool("x", "thp")
                {buf} = {pool}(1000)
                {tensor} = binpool.torch.from_buffer({buf})
                {made} = binpool.torch.empty({pool}, 1000)
                sys.kept = {made}[1:], binpool.torch.empty({pool}, 10)
                torch.kept = binpool.torch.empty({pool}, 10), {pool}
                other = binpool.torch.empty(binpool.MemoryPool("y", "thp"), 10)
                late = [Late(t, t.data_ptr()) for t in ({made}, {tensor}, other)]
                sys.module, sys.late = binpool._in_flight, Late(other, other.data_ptr())
                atexit.register([binpool.torch.empty({pool}, 10)].clear)
                """)
            self.assertEqual(out, ["late"] * 4)


@without_gpu
class OnAFake(Told):
    """When what is in flight has the memory: a driver that is told what is over."""

    BEGIN = Told.BEGIN + """
        import torch, types, binpool.torch
        class Current:
            def __init__(self, stream, device=0):
                self.cuda_stream = ctypes.addressof(stream) if stream else 0
                self.device = types.SimpleNamespace(index=device)
        torch.cuda.Stream = Current
        current = [Current(stream), Current(None, 1)]
        torch.cuda.is_initialized = lambda: True
        torch.cuda.device_count = lambda: len(current)
        torch.cuda.current_stream = lambda device: current[device]
        host = binpool.MemoryPool("host", "thp")
        """

    def test_rests_until_the_stream_is_past_it(self):
        self.told("""
        tensor = binpool.torch.empty(host, 1000)
        ptr, part = tensor.data_ptr(), tensor[3:]
        del tensor
        assert host.poll() == 0
        del part
        assert host.poll() == 1
        other = binpool.torch.empty(host, 1000)
        assert other.data_ptr() != ptr
        stream.finished = 1
        assert host.poll() == 0
        assert binpool.torch.empty(host, 1000).data_ptr() == ptr
        # The owner's buffer stays his.
        buf = host(100)
        tensor = binpool.torch.from_buffer(buf)
        del tensor
        assert not buf.released
        """)

    def test_while_a_graph_is_captured(self):
        self.told("""
        tensor = binpool.torch.empty(host, 1000)
        stream.capturing = True
        del tensor
        assert (host.active_blocks, host.poll()) == (1, 0)
        stream.capturing = False
        other = binpool.torch.empty(host, 10)
        assert (host.active_blocks, host.poll()) == (2, 1)
        stream.finished = 1
        assert host.poll() == 0 and host.active_blocks == 1
        """)

    def test_the_streams_that_were_current(self):
        """Not those that are when it is tried again."""
        self.told("""
        tensor = binpool.torch.empty(host, 1000)
        stream.capturing = True
        del tensor
        stream.capturing = False
        idle = Stream(stream.context, False, 0, 0)
        current[0] = Current(idle)
        other = binpool.torch.empty(host, 10)
        assert host.poll() == 1
        stream.finished = 1
        assert host.poll() == 0 and host.active_blocks == 1
        """)

    def test_of_all_devices(self):
        """Also where the thread has no context: none is made for it."""
        self.told("""
        tensor = binpool.torch.empty(host, 1000)
        torch._C._cuda_getDeviceCount = lambda: 2
        torch.cuda.device_count = lambda: 3
        there = Stream(None, False, 1, 0)
        kept = primary(1, there)
        stream.finished = 1
        del tensor
        assert host.poll() == 1
        there.finished = 1
        assert host.poll() == 0
        # PyTorch does nothing there yet.
        kept.id = there.finished = 0
        tensor = binpool.torch.empty(host, 1000)
        del tensor
        assert (host.poll(), host.active_blocks) == (0, 0)
        """)

    def test_by_handles(self):
        """Where PyTorch tells those of the current streams no Stream is asked for."""
        self.told("""
        import importlib
        torch._C._cuda_getCurrentRawStream = lambda device: current[device].cuda_stream
        torch.cuda.current_stream = None
        importlib.reload(binpool.torch)
        there = Stream(None, False, 1, 0)
        kept = primary(1, there)
        tensor = binpool.torch.empty(host, 1000)
        del tensor
        assert host.poll() == 1
        stream.finished = 1
        assert host.poll() == 1
        there.finished = 1
        assert (host.poll(), host.active_blocks) == (0, 0)
        """)

    def test_before_cuda_is_used(self):
        self.told("""
        def unasked(*device):
            raise AssertionError("CUDA was initialised")
        torch.cuda.is_initialized = lambda: False
        torch.cuda.current_stream = torch.cuda.device_count = unasked
        tensor = binpool.torch.empty(host, 1000)
        del tensor
        assert (host.poll(), host.active_blocks) == (0, 0)
        """)

    def test_other_streams(self):
        self.told("""
        import time
        for reaper in False, True:
            host = binpool.MemoryPool("r", "thp", reaper=reaper)
            side, stream.finished = Stream(stream.context, False, 1, 0), 0
            recorded = Current(side)
            tensor = binpool.torch.empty(host, 1000)
            raises(ValueError, "none of", binpool.torch.record_stream, torch.empty(1), recorded)
            raises(ValueError, "none of", binpool.torch.record_stream,
                   binpool.torch.from_buffer(host(10)), recorded)
            binpool.torch.record_stream(tensor[5:].view(torch.uint8), recorded)
            del tensor
            stream.finished = 1
            for _ in range(20):
                assert host.active_blocks == 1
                reaper and time.sleep(0.01) or host.poll()
            side.finished = 1
            end = time.monotonic() + 60
            while host.active_blocks and time.monotonic() < end:
                reaper and time.sleep(0.01) or host.poll()
            assert host.active_blocks == 0
        """)


@needs_gpu
class Gpu(Case):
    def setUp(self):
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.pool = thp()
        self.assertFalse(binpool.torch.empty(self.pool, 10).is_pinned())
        cuda.attach(self.pool)
        self.assertEqual(settled(self.pool).active_blocks, 0)

    def test_pinned(self):
        tensor = binpool.torch.empty(self.pool, 8 * MIB, torch.uint8)
        self.assertTrue(tensor.is_pinned() and tensor[MIB:].is_pinned())
        self.assertTrue(binpool.torch.from_buffer(self.pool(100)).is_pinned())
        self.assertTrue(is_pinned(tensor.data_ptr()))
        tensor.copy_((torch.arange(8 * MIB) % 251).to(torch.uint8))
        there = tensor.to("cuda", non_blocking=True)
        back = binpool.torch.empty(self.pool, 8 * MIB, torch.uint8)
        back.copy_(there, non_blocking=True)
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(back, tensor))

    def in_flight(self, stream):
        """Dropped under a copy that a kernel holds up: nobody has the memory before it is over."""
        size, wrong = 4 * MIB, 0
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        for i in range(20):
            tensor = binpool.torch.empty(self.pool, size, torch.uint8).fill_(i)
            ptr = tensor.data_ptr()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                there.copy_(tensor, non_blocking=True)
            if stream != torch.cuda.current_stream():
                binpool.torch.record_stream(tensor, stream)
            del tensor
            after = binpool.torch.empty(self.pool, size, torch.uint8).fill_(255)
            wrong += after.data_ptr() == ptr
            del after
            stream.synchronize()
            wrong += not bool((there == i).all())
        self.assertEqual(wrong, 0)
        torch.cuda.synchronize()
        self.assertEqual(self.pool.poll(), 0)

    def test_in_flight(self):
        self.in_flight(torch.cuda.current_stream())

    def test_in_flight_elsewhere(self):
        self.in_flight(torch.cuda.Stream())

    def test_control(self):
        """Those copies do read what is written after them, where nothing rests."""
        size = 4 * MIB
        buf = self.pool(size)
        tensor = binpool.torch.from_buffer(buf).fill_(1)
        there = torch.zeros(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)
        there.copy_(tensor, non_blocking=True)
        tensor.fill_(2)
        torch.cuda.synchronize()
        self.assertTrue(bool((there == 2).all()))

    def test_dropped_by_a_thread_without_a_context(self):
        tensors = [binpool.torch.empty(self.pool, MIB, torch.uint8)]
        torch.cuda._sleep(500_000_000)
        pending = []

        def drop():
            tensors.clear()
            pending.append(self.pool.poll())

        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        self.assertEqual(pending, [1])
        torch.cuda.synchronize()
        self.assertEqual(self.pool.poll(), 0)

    def test_captured(self):
        there = torch.zeros(1000, dtype=torch.uint8, device="cuda")
        tensor = binpool.torch.empty(self.pool, 1000, torch.uint8).fill_(5)
        other = binpool.torch.empty(self.pool, 1000, torch.uint8)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            there.copy_(tensor, non_blocking=True)
            del other
        self.assertEqual(self.pool.active_blocks, 2)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(bool((there == 5).all()))
        binpool.torch.empty(self.pool, 0)
        binpool.torch.empty(self.pool, 10)
        torch.cuda.synchronize()
        self.pool.poll()
        self.assertEqual(self.pool.active_blocks, 1)

    def test_loader(self):
        """Batches that are made in pinned memory."""
        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, i):
                return torch.full((1000,), i % 251, dtype=torch.uint8)

        def collate(items):
            batch = binpool.torch.empty(self.pool, (len(items), 1000), torch.uint8)
            return torch.stack(items, out=batch)

        total = 0
        for batch in torch.utils.data.DataLoader(Items(), batch_size=8, collate_fn=collate):
            self.assertTrue(batch.is_pinned())
            total += int(batch.to("cuda", non_blocking=True).to(torch.int64).sum())
        self.assertEqual(total, sum(i % 251 * 1000 for i in range(64)))
        del batch
        torch.cuda.synchronize()
        self.pool.poll()
        self.assertEqual(self.pool.active_blocks, 0)

    def test_the_end(self):
        """Under a copy, whatever goes first."""
        for collector, names in (("gc.disable()", "a_pool b_tensor c_there"),
                                 ("gc.set_threshold(1)", "c_pool b_tensor a_there"),
                                 ("gc.disable()", "b_pool a_tensor c_there")):
            pool, tensor, there = names.split()
            self.script(f"""
                import torch, binpool.cuda, binpool.torch
                {collector}
                torch.cuda.init()
                {there} = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
                {pool} = binpool.MemoryPool("x", "thp")
                binpool.cuda.attach({pool})
                {tensor} = binpool.torch.empty({pool}, 1 << 20, torch.uint8)
                sys.kept = {tensor}[1:]
                torch.cuda._sleep(200_000_000)
                {there}.copy_({tensor}, non_blocking=True)
                """)
