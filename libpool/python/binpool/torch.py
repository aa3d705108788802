# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""For PyTorch: tensors in a pool's memory, which is_pinned() once the pool is attached to CUDA.

    pool = binpool.MemoryPool("host")
    binpool.cuda.attach(pool)                       # when PyTorch has done something on a GPU
    tensor = binpool.torch.empty(pool, (256, 3, 224, 224), torch.float32)
    copy = tensor.to("cuda", non_blocking=True)
    del tensor                                      # its memory rests until the copy is over

Any thread may call anything. Needs torch.
"""

import functools
import operator
import weakref

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


@functools.lru_cache(None)
def _devices():
    # The public one may ask NVML, which sees what the environment says by now.
    count = getattr(torch._C, "_cuda_getDeviceCount", torch.cuda.device_count)
    return range(count())


# The handle of a device's current stream; no object is made for it.
_current = getattr(torch._C, "_cuda_getCurrentRawStream", None) or \
    (lambda device: torch.cuda.current_stream(device))


@functools.lru_cache(None)
def _bytes_each(dtype):
    return torch.empty((), dtype=dtype).element_size()


def _in_use(recorded):
    """The streams that are current, one of each device, and those that were recorded."""
    if not torch.cuda.is_initialized():
        return ()
    streams = [(_current(device), device) for device in _devices()]
    if recorded:
        streams += [(stream, stream.device.index) for stream in recorded]
    return streams


def _ended(view, views=_views, rest=rest):
    views.pop(view.ptr, None)
    recorded = view.streams
    rest(view.buffer, lambda: _in_use(recorded))


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
    is attached to CUDA. When its last tensor goes, the memory rests until the streams that are
    current then, one of each device, have done what they have by then; for others see
    record_stream(). A graph's tensors are kept as long as the graph is used. MemoryError; OSError
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
    buffer = pool.allocate(size.numel() * _bytes_each(dtype))
    if not buffer.size:
        return torch.empty(size, dtype=dtype)
    memory = memoryview(buffer)
    view = _View(memory, _ended)
    view.buffer, view.ptr, view.streams = buffer, buffer.ptr, set()
    _views[view.ptr] = view
    # It has as many elements already. A view would be another tensor, and is slower to make.
    return torch.frombuffer(memory, dtype=dtype).resize_(size)


def record_stream(tensor, stream):
    """Has the memory of a tensor of empty(), or of a view of one, rest for another stream too.

    stream: a torch.cuda.Stream that copies from or to it, and is not current where its last
    tensor goes. As Tensor.record_stream, which is for memory of the device. ValueError: no such
    tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{tensor!r} is no tensor")
    if not isinstance(stream, torch.cuda.Stream):
        raise TypeError(f"{stream!r} is no torch.cuda.Stream")
    storage = getattr(tensor, "untyped_storage", tensor.storage)()
    view = _views.get(storage.data_ptr())
    if view is None:
        raise ValueError("the tensor is none of binpool.torch.empty()")
    view.streams.add(stream)
