# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Callbacks that the library calls and Python answers: allocators and registrars.

They run on the thread whose call needs them, with the interpreter's lock. What they raise is
raised by that call; where nobody can be told (freeing, detaching) ctypes prints it.
"""

import ctypes
import errno
import itertools
import operator
import sys
import traceback
import weakref

from . import _library
from ._errors import forget, remember


def main_interpreter_only(what):
    get = ctypes.pythonapi.PyInterpreterState_Get
    number = ctypes.pythonapi.PyInterpreterState_GetID
    get.restype, number.argtypes, number.restype = ctypes.c_void_p, [ctypes.c_void_p], \
        ctypes.c_int64
    if number(get()):
        raise RuntimeError(f"{what} written in Python can be had in the main interpreter only")


def _is_memory_error(e):
    opencl = sys.modules.get("pyopencl")
    return isinstance(e, MemoryError) or (opencl and isinstance(e, opencl.MemoryError))


def _errno_of(e):
    if _is_memory_error(e):
        return -errno.ENOMEM
    if isinstance(e, OSError) and e.errno and 0 < e.errno < 4096:
        return -e.errno
    return -errno.EIO


def _fail(e):
    remember(e, f"{type(e).__name__}: {e}")
    return _errno_of(e)


def _address(memory, nbytes):
    """Address of what exports a buffer, and what keeps it in its place."""
    try:
        view = memoryview(memory)
    except TypeError:
        raise TypeError(f"the allocator gave a {type(memory).__name__}, which is no memory: for "
                        "a pool of other things say kind='handle'") from None
    if view.readonly or not view.contiguous or view.nbytes < nbytes:
        raise ValueError(f"the allocator gave {view.nbytes} bytes of {nbytes} asked for, or "
                         "they cannot be written or are scattered")
    keeper = ctypes.c_char.from_buffer(view)
    return ctypes.addressof(keeper), keeper


class Callables:
    """What the callbacks of an allocator or a registrar call, and what that gave.

    A pool has it, and the garbage collector sees it there. The callbacks know it weakly and are
    hidden from the collector, which takes circles apart in any order: they have to be there
    when a pool is destroyed at last. By then what is missing here has gone already.
    """

    __slots__ = ("get", "give", "things", "inner", "_known", "__weakref__")

    def __init__(self, get, give=None):
        self.get, self.give, self.things, self.inner = get, give, {}, None
        self._known = [weakref.ref(self)]

    def written_in_python(self):
        """Whether an allocation calls Python; inner: those of the pool that this one is over."""
        return self.get is not None or (self.inner is not None
                                        and self.inner.written_in_python())

    def keep(self):
        """Until let_go() the callbacks find it, even if the collector is about to take it."""
        self._known[0] = lambda: self

    def let_go(self):
        self._known[0] = weakref.ref(self)

    def finder(self):
        known = self._known
        return lambda: known[0]()


def allocator_ops(callables, handles):
    """An allocator over a callable; its things are what it gave, by address or name."""
    find = callables.finder()

    def alloc(ctx, nbytes, out):
        try:
            callables = find()
            thing = callables.get(nbytes)
            if thing is None:
                raise MemoryError("the allocator gave None")
            if handles:
                name, keeper = id(thing), None
            else:
                name, keeper = _address(thing, nbytes)
            if name in callables.things:
                raise ValueError("the allocator gave what it had given before")
            callables.things[name] = (thing, keeper)
            out[0] = name
            forget()
            return 0
        except BaseException as e:
            return _fail(e)

    def free(ctx, name, nbytes):
        callables = find()
        if callables is not None:
            callables.things.pop(name, None)

    ops = _library.AllocatorOps(size=ctypes.sizeof(_library.AllocatorOps))
    if handles:
        ops.alloc_handle, ops.free_handle = _library.ALLOC_HANDLE(alloc), \
            _library.FREE_HANDLE(free)
    else:
        ops.alloc, ops.free = _library.ALLOC(alloc), _library.FREE(free)
    return ops


# What the fences that wait in all pools ask, by number.
_waiting = {}
_numbers = itertools.count(1)


@_library.FENCE_DONE
def _fence_done(number, waiting=_waiting):
    try:
        return 1 if waiting[number]() else 0
    except BaseException:
        traceback.print_exc()
        return -errno.EIO


@_library.FENCE_RELEASE
def _fence_release(number, waiting=_waiting):
    waiting.pop(number, None)


# Pools may ask when this module is gone.
for _thunk in (_fence_done, _fence_release):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_thunk))


def fence(what):
    """A fence of a descriptor, or of what has one, or of a callable: whether it is over."""
    f = _library.Fence(size=ctypes.sizeof(_library.Fence))
    if callable(what):
        main_interpreter_only("a fence")
        f.kind, f.done, f.release = _library.FENCE_CALLBACK, _fence_done, _fence_release
        f.ctx = next(_numbers)
        _waiting[f.ctx] = what
    else:
        f.kind = _library.FENCE_EVENTFD
        if not isinstance(what, int) and not callable(getattr(what, "fileno", None)):
            raise TypeError(f"{what!r} is no fence: no descriptor, nothing with fileno(), and no "
                            "callable")
        fd = operator.index(what if isinstance(what, int) else what.fileno())
        # ctypes would cut it.
        if not -1 << 31 <= fd < 1 << 31:
            raise OSError(errno.EBADF, f"{fd} is no descriptor")
        f.fd = fd
    return f


def forget_fence(f):
    """Of one that no pool has taken."""
    _waiting.pop(f.ctx, None)


def registrar_ops(name, callables, flags):
    """A registrar over two callables: attach(ptr, nbytes, fd, node), detach(what it returned)."""
    find = callables.finder()

    def attach(ctx, extent, out):
        try:
            callables, e = find(), extent.contents
            callables.things[e.ptr] = callables.get(e.ptr, e.bytes, e.fd, e.node)
            forget()
            return 0
        except BaseException as e:
            return _fail(e)

    def detach(ctx, extent, cookie):
        callables = find()
        if callables is not None:
            answer = callables.things.pop(extent.contents.ptr)
            if callables.give is not None:
                callables.give(answer)

    return _library.RegistrarOps(ctypes.sizeof(_library.RegistrarOps), name, None,
                                 _library.ATTACH(attach), _library.DETACH(detach),
                                 _library.RELEASE(), flags)
