# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The backend for Pythons without the extension: the same classes, over ctypes.

Slower, the same in all else, but that views of what is released, or is a handle, are refused
with a TypeError. The buffer protocol comes from a type that is made by Python's own C functions;
views are counted, so that a buffer with views is not released. In the main interpreter only.
"""

import ctypes
import errno
import operator

from . import _library
from ._arguments import c_string
from ._callbacks import main_interpreter_only
from ._errors import exception
from ._library import lib

main_interpreter_only("this backend")

_READ_WRITE = 0


class _Slot(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("basicsize", ctypes.c_int),
                ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
                ("slots", ctypes.POINTER(_Slot))]


_keep = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))
_let_go = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_DecRef", ctypes.pythonapi))


# Buffers that the garbage collector takes with views of them, by id: how many views, what else is
# needed. It takes their attributes first.
_ended = {}


def _unexport(b, ended=_ended):
    """One view or part less."""
    state = ended.get(id(b))
    if state is None:
        b._exports -= 1
        return
    state[0] -= 1
    if not state[0]:
        del ended[id(b)]
        state[1](*state[2:])


def _hand_back(pool, parent, name, unexport=_unexport):
    if parent is not None:
        unexport(parent)
    else:
        pool._give(name)


def _make_exporter():
    """A type whose instances export their _ptr and size as a writable buffer."""
    api = ctypes.pythonapi
    fill = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p,
                             ctypes.c_ssize_t, ctypes.c_int, ctypes.c_int)(
                                 ("PyBuffer_FillInfo", api))
    from_spec = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Spec))(
        ("PyType_FromSpec", api))

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    def get(self, view, flags):
        result = fill(view, self, self._ptr, self.size, _READ_WRITE, flags)
        self._exports += 1
        return result

    @ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.c_void_p)
    def put(self, view, unexport=_unexport):
        unexport(self)

    # Views may go after this module has.
    _keep(get)
    _keep(put)
    bf_getbuffer, bf_releasebuffer = 1, 2
    heaptype, basetype, default = 1 << 9, 1 << 10, 1 << 18
    slots = (_Slot * 3)(_Slot(bf_getbuffer, ctypes.cast(get, ctypes.c_void_p)),
                        _Slot(bf_releasebuffer, ctypes.cast(put, ctypes.c_void_p)), _Slot())
    return from_spec(ctypes.byref(_Spec(b"binpool._Exporter", object.__basicsize__, 0,
                                        heaptype | basetype | default, slots)))


def _size(number):
    number = operator.index(number)
    if number < 0:
        raise ValueError(f"{number} is no number of bytes")
    if number >> 64:
        raise MemoryError(f"{number} bytes: no address space is that large")
    return number


def _ms(seconds):
    if not seconds >= 0:
        raise ValueError("a time to wait is not negative")
    return int(min(seconds * 1000, 0xffffffff))


class PooledBuffer:
    """Memory of a MemoryPool, with the buffer protocol.

    memoryview, numpy and whoever else takes buffers can use it as writable
    bytes; what they make of it keeps the memory. Made by a pool only.
    """

    __slots__ = ("_pool", "_parent", "_ptr", "_name", "_size", "_exports", "__weakref__")

    def __new__(cls, *args):
        raise TypeError("buffers are made by a pool")

    @property
    def ptr(self):
        """Address, an int."""
        self._check()
        return self._ptr

    @property
    def size(self):
        """Bytes as asked for."""
        return self._size

    nbytes = size

    @property
    def released(self):
        """Whether the memory has gone back."""
        return self._pool is None

    @property
    def pool(self):
        """The MemoryPool; None once released."""
        return self._pool

    @property
    def parent(self):
        """What this is a part of, or None."""
        return self._parent

    def _check(self):
        if self._pool is None:
            raise ValueError("the buffer is released")

    def _give(self):
        pool, parent = self._pool, self._parent
        self._pool = self._parent = None
        self._hand_back(pool, parent, self._name)

    def release(self):
        """Gives the memory back to the pool; a second time does nothing.

        BufferError: views or parts keep it. Dropping the last reference does the same.
        """
        if self._pool is None:
            return
        self._hide()
        self._give()

    def _hide(self):
        """From now on no thread gets a view of it; unless there are some, or parts."""
        was, self.__class__ = self.__class__, PooledBuffer
        if self._exports:
            self.__class__ = was
            raise BufferError(f"the buffer has {self._exports} views or parts that keep its "
                              "memory")

    def _give_with(self, function):
        """Gives the buffer back by function(pool's address, its own), unless that raises."""
        self._check()
        if self._parent is not None:
            raise ValueError("a part is not given back: its whole is")
        was = self.__class__
        self._hide()
        pool, self._pool = self._pool, None
        pool._calls += 1
        try:
            function(pool._pool, self._ptr)
        except BaseException:
            self._pool, self.__class__ = pool, was
            raise
        finally:
            pool._calls -= 1

    def sub(self, offset, size, /):
        """A buffer that is a part of this one, and keeps it.

        In bytes. ValueError: not within this one.
        """
        offset, size = operator.index(offset), operator.index(size)
        self._check()
        if offset < 0 or size < 0 or offset + size > self._size:
            raise ValueError(f"{size} bytes at {offset} are not within a buffer of {self._size}")
        if self._pool._handles:
            raise ValueError("a buffer of a pool of handles has no parts")
        part = _make(self._pool, self, self._ptr + offset, size)
        self._exports += 1
        return part

    def __enter__(self):
        self._check()
        return self

    def __exit__(self, *exc):
        self.release()

    def __reduce__(self):
        raise TypeError("cannot pickle 'PooledBuffer' object")

    _hand_back = staticmethod(_hand_back)

    def __del__(self, ended=_ended):
        if getattr(self, "_pool", None) is None:
            return
        if self._exports:
            ended[id(self)] = [self._exports, self._hand_back, self._pool, self._parent, self._name]
        else:
            self._give()


class _Viewable(PooledBuffer, _make_exporter()):
    __slots__ = ()
    __qualname__ = "PooledBuffer"


def _make(pool, parent, ptr, size, name=None):
    """name: what frees it, an address or a filled struct binpool_buf."""
    b = object.__new__(PooledBuffer if pool._handles else _Viewable)
    b._pool, b._parent, b._ptr, b._size, b._exports = pool, parent, ptr, size, 0
    b._name = name or ptr
    return b


# Pools whose objects went before their last fence, and what they need until they go.
_orphans = {}


class MemoryPool:
    __slots__ = ("_pool", "_calls", "_closing", "_handles", "_ended", "_late", "_hidden", "_free",
                 "_destroy", "_let_go", "_sentence", "_set_sentence", "_again", "__dict__",
                 "__weakref__")

    def __new__(cls, *args, **named):
        self = super().__new__(cls)
        self._pool, self._calls, self._late = None, 0, []
        self._closing = self._handles = self._ended = False
        return self

    def _adopt(self, address, buffer_type, fail, callbacks, handles):
        self._handles = handles
        # For when this module is gone.
        self._free = lib.handle_free if handles else lib.free
        self._destroy, self._let_go = lib.destroy_wait, _let_go
        self._sentence, self._set_sentence = lib.last_error, lib.set_last_error
        # Until it is destroyed, whatever the garbage collector thinks.
        _keep(callbacks)
        self._hidden = callbacks
        self._again = (-errno.EDEADLK,)
        self._pool = address
        for orphan in list(_orphans):
            if not self._destroy(orphan, 0):
                del _orphans[orphan]

    def _enter(self):
        if not self._pool or self._closing:
            raise ValueError("the pool is being destroyed" if self._pool else
                             "the pool is destroyed")
        self._free_late()
        self._calls += 1
        return self._pool

    def _leave(self):
        self._calls -= 1

    def _give(self, name):
        # This may be anywhere, as between an error and the exception that tells it.
        before = self._sentence()
        if self._free(self._pool, name) in self._again:
            # In a callback of this pool, which it is not to be used by.
            self._late.append(name)
        elif self._late:
            self._free_late()
        if self._ended:
            self._end()
        self._set_sentence(before)

    def _free_late(self):
        while self._late:
            name = self._late.pop()
            if self._free(self._pool, name) in self._again:
                self._late.append(name)
                return

    def allocate(self, nbytes, alignment=None, *, zeroed=False, tag=None, timeout=None):
        """A PooledBuffer of at least nbytes bytes; the same as calling the pool.

        nbytes may be 0. alignment: a power of two up to 1 GiB. zeroed: all bytes are 0.
        tag: what leaks() calls it; a tagged buffer takes the pool's lock to be freed.
        timeout: how many seconds to wait for room, TimeoutError after that; None: no waiting.
        MemoryError (its errno says why), ValueError; in a forked child OSError.
        """
        nbytes = _size(nbytes)
        if alignment is not None and not _size(alignment):
            raise ValueError("alignment 0 is no power of two")
        c_pool = self._enter()
        try:
            name = None
            if alignment is None and not zeroed and tag is None and timeout is None \
                    and not self._handles:
                ptr = lib.alloc(c_pool, nbytes)
                err = 0 if ptr else -ctypes.get_errno()
            elif self._handles and (alignment is not None or zeroed):
                raise ValueError("handles are not aligned, nor zeroed")
            else:
                opts = _library.AllocOpts(ctypes.sizeof(_library.AllocOpts), nbytes,
                                          0 if alignment is None else _size(alignment),
                                          (_library.BUF_ZEROED if zeroed else 0)
                                          | (0 if timeout is None else _library.BUF_WAIT),
                                          0 if timeout is None else _ms(timeout),
                                          None if tag is None else
                                          c_string("tag", tag))
                buf = _library.Buf(size=ctypes.sizeof(_library.Buf))
                err = lib.alloc_ex(c_pool, ctypes.byref(opts), ctypes.byref(buf))
                ptr = buf.handle or buf.ptr
                if self._handles:
                    buf.bytes, name = 0, buf
            if err:
                raise exception(err)
            return _make(self, None, ptr, nbytes, name)
        finally:
            self._leave()

    __call__ = allocate

    def allocate_aligned(self, size, alignment, /):
        """As allocate."""
        return self.allocate(size, alignment)

    def free(self, buf, size=None, /):
        """Gives a buffer back; size, if given, is checked.

        ValueError: another pool's, released, or not of that size; BufferError: views or
        parts keep it. Dropping the last reference to a buffer does the same.
        """
        if not isinstance(buf, PooledBuffer):
            raise TypeError(f"{buf!r} is no buffer of a pool")
        buf._check()
        if buf._pool is not self or buf._parent is not None:
            raise ValueError(f"{buf!r} is " + ("a part of a buffer" if buf._parent is not None
                                               else "another pool's"))
        if size is not None and _size(size) != buf._size:
            raise ValueError(f"free with size {size}, but {buf._size} were asked for")
        buf.release()

    def destroy(self, timeout=0.0, /):
        """Gives everything back and ends the pool.

        Waits up to timeout seconds for buffers that other threads have, and for fences.
        BufferError: buffers live; nothing changed. A second time does nothing.
        """
        ms = _ms(timeout)
        if not self._pool:
            return
        if self._calls or self._closing:
            raise BufferError("another thread is in a call on the pool")
        self._free_late()
        self._closing = True
        try:
            err = self._destroy(self._pool, ms)
        finally:
            self._closing = False
        if err:
            raise exception(err)
        self._pool = None
        self._let_go(self._hidden)

    def _end(self, orphans=_orphans):
        if not self._pool:
            return
        if not self._destroy(self._pool, 0):
            orphans.pop(self._pool, None)
            self._pool = None
            self._let_go(self._hidden)
        else:
            # Or when some pool begins, if the last fences are over by then.
            orphans[self._pool] = self._destroy, getattr(self, "_callables", None)

    def __del__(self):
        if self._pool:
            before = self._sentence()
            self._before_collection()
            self._free_late()
            # Or with the last of its buffers, if they go together.
            self._ended = True
            self._end()
            self._set_sentence(before)
