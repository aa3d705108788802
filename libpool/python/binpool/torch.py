# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For PyTorch: tensors in a pool's memory, which is_pinned() once the pool is attached to CUDA.

    pool = binpool.MemoryPool("host")
    binpool.cuda.attach(pool)                       # when PyTorch has done something on a GPU
    tensor = binpool.torch.empty(pool, (256, 3, 224, 224), torch.float32)
    copy = tensor.to("cuda", non_blocking=True)
    del tensor                                      # its memory rests until the copy is over

Any thread may call anything. Needs torch.
"""

import errno
import operator
import weakref

from . import cuda
from ._backend import MemoryPool, PooledBuffer
from ._in_flight import again, rest

try:
    import torch
except ImportError as e:
    raise ImportError("binpool.torch needs PyTorch (pip install torch)") from e

__all__ = ["empty", "from_buffer", "record_stream"]

# The views that tensors of empty() keep, by their address. A view's end is the last tensor's.
_views = {}


class _View(weakref.ref):
    __slots__ = ("buffer", "ptr", "streams")


def _ended(view, views=_views, rest=rest):
    views.pop(view.ptr, None)
    streams = view.streams
    rest(view.buffer, lambda buffer: _give(buffer, streams))


def _give(buffer, streams):
    """Frees it when what is in the current stream and in those that were recorded is over."""
    if not torch.cuda.is_initialized():
        return
    current = torch.cuda.current_stream()
    if streams - {current}:
        events = []
        for stream in streams | {current}:
            events.append(torch.cuda.Event())
            events[-1].record(stream)
        buffer.pool.free_after(buffer, *(event.query for event in events))
        return
    try:
        cuda.free_on_stream(buffer, current)
    except OSError as e:
        if e.errno != errno.ENODEV:
            raise
        # A thread that has done nothing on the device. This gives it the context.
        current.query()
        cuda.free_on_stream(buffer, current)


def from_buffer(buffer, dtype=None, size=None):
    """A tensor over a PooledBuffer or a part of one: its bytes, not a copy of them.

    dtype: torch.uint8 if None. size: an int or several; None: all, in one dimension. The tensor and
    its views keep the buffer: release() and free() refuse (BufferError) while there are any. When
    they are gone the memory is its owner's: what a copy is still at work on he frees with
    binpool.cuda.free_on_stream(). ValueError: the buffer is released, or no whole number of dtype;
    RuntimeError: not that many; TypeError.
    """
    if not isinstance(buffer, PooledBuffer):
        raise TypeError(f"{buffer!r} is no buffer of a pool")
    dtype = dtype or torch.uint8
    view = memoryview(buffer)
    flat = torch.frombuffer(view, dtype=dtype) if buffer.size else torch.empty(0, dtype=dtype)
    return flat if size is None else flat.view(size)


def empty(pool, size, dtype=None):
    """A tensor in memory of a pool's, which goes back with the last tensor that has it.

    size: an int or several; dtype: PyTorch's default if None. Contents: anything. Pinned if the pool
    is attached to CUDA. When its last tensor goes, the memory rests until the stream that is
    current then, of the current device, has done what it has by then; for others, and copies to
    other devices, see record_stream(). A graph's tensors are kept as long as the graph is used. MemoryError; OSError
    in a forked child.
    """
    if not isinstance(pool, MemoryPool):
        raise TypeError(f"{pool!r} is no pool")
    try:
        size = torch.Size(size)
    except TypeError:
        size = torch.Size((operator.index(size),))
    if min(size, default=0) < 0:
        raise ValueError(f"size {tuple(size)} has a negative dimension")
    dtype = dtype or torch.get_default_dtype()
    again()
    buffer = pool.allocate(size.numel() * torch.empty((), dtype=dtype).element_size())
    if not buffer.size:
        return torch.empty(size, dtype=dtype)
    memory = memoryview(buffer)
    view = _View(memory, _ended)
    view.buffer, view.ptr, view.streams = buffer, buffer.ptr, set()
    _views[view.ptr] = view
    return torch.frombuffer(memory, dtype=dtype).view(size)


def record_stream(tensor, stream):
    """Has the memory of a tensor of empty(), or of a view of one, rest for another stream too.

    stream: a torch.cuda.Stream that copies from or to it, and is not current where its last
    tensor goes. As Tensor.record_stream, which is for memory of the device. ValueError: no such
    tensor, or its pool has a reaper, which asks nothing of Python's.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{tensor!r} is no tensor")
    if not isinstance(stream, torch.cuda.Stream):
        raise TypeError(f"{stream!r} is no torch.cuda.Stream")
    storage = getattr(tensor, "untyped_storage", tensor.storage)()
    view = _views.get(storage.data_ptr())
    if view is None:
        raise ValueError("the tensor is none of binpool.torch.empty()")
    if view.buffer.pool._reaper:
        raise ValueError("a pool's own thread (reaper) asks no events of PyTorch's")
    view.streams.add(stream)
