# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Members of both backends' pools: who must know about a pool's memory, and when."""

import ctypes

from . import _library
from ._arguments import c_string, uint64
from ._callbacks import Callables, main_interpreter_only, registrar_ops
from ._library import lib

# It may outlast the interpreter, and would wait for its lock for ever.
NO_PYTHON = "a pool's own thread (reaper, background) calls nothing that is written in Python"

# The backend's MemoryPool.
POOL = ()


class RegistrarMembers:
    # Of one that is not made, or not yet.
    _registrars, _background = (), False

    def add_registrar(self, attach, detach=None, name="python", *, optional=False):
        """Has all memory of the pool made known to somebody, now and whenever there is more.

        attach(ptr, nbytes, fd, node) is called for each extent before a buffer of it is handed
        out; what it raises the allocation raises. detach, with what attach returned, is called
        before the memory goes. optional: an extent that it refuses is used all the same, and counted
        in registrations_refused. Neither may use the pool (OSError, EDEADLK). Returns a Registrar.
        """
        main_interpreter_only("a registrar")
        for what, function in (("attach", attach), ("detach", detach)):
            if not callable(function) and (function is not None or what == "attach"):
                raise TypeError(f"{what} {function!r} is no callable")
        name = c_string("name", name)
        self.ptr  # raises if it is destroyed
        if self._reaper or self._background:
            raise ValueError(NO_PYTHON)
        callables, number = Callables(attach, detach), ctypes.c_uint64()
        ops = registrar_ops(name, callables, _library.REGISTRAR_OPTIONAL if optional else 0)
        # For as long as the pool may call it.
        self._callbacks.append(ops)
        try:
            self._ask(lib.add_registrar, ctypes.byref(ops), ctypes.byref(number))
        except BaseException:
            self._callbacks.remove(ops)
            raise
        self._registrars[number.value] = callables, ops
        return Registrar(self, number.value)

    def register_in_background(self, bytes_per_second=None):
        """From now on memory is used at once, and made known by a thread of the pool's own.

        One extent after the other, of those that are there too, at most so many bytes a second;
        None: as fast as it goes, 0: none until this is called again. What is refused is used all
        the same, and counted in registrations_refused. ValueError: a registrar or the
        allocator is written in Python; BlockingIOError, MemoryError: there is no thread.
        """
        rate = _library.UNLIMITED if bytes_per_second is None else uint64(bytes_per_second)
        self.ptr  # raises if it is destroyed
        if self._registrars or self._callables.written_in_python():
            raise ValueError(NO_PYTHON)
        self._ask(lib.register_in_background, rate)
        self._background = True

    def wait_registered(self, buf=None, timeout=None):
        """Waits until everybody knows of the memory of a buffer, or of all of the pool's.

        timeout: in seconds; None: as long as it takes. TimeoutError: it took longer;
        BlockingIOError: it would, and timeout is 0. What was refused is tried again, and its
        error raised.
        """
        if buf is not None and not isinstance(buf, POOL._buffer_type):
            raise TypeError(f"{buf!r} is no buffer of a pool")
        if timeout is not None and not timeout >= 0:
            raise ValueError("a time to wait is not negative")
        ms = 0xffffffff if timeout is None else int(min(timeout * 1000, 0xffffffff))
        self._ask(lib.wait_registered, None if buf is None else buf.ptr, ms)

    def _remove_registrar(self, number):
        callables, ops = self._registrars.get(number, (None, None))
        if callables:
            callables.keep()
        try:
            self._ask(lib.remove_registrar, number)
        finally:
            if callables:
                callables.let_go()
        if ops:
            del self._registrars[number]
            self._callbacks.remove(ops)

    def _before_collection(self):
        """Whoever knows of the memory is told while he can be: a collector comes."""
        for number in list(getattr(self, "_registrars", ())):
            self._remove_registrar(number)


class Registrar:
    """Somebody whom a pool makes its memory known to."""

    def __init__(self, pool, number):
        if not isinstance(pool, POOL):
            raise TypeError(f"{pool!r} is no pool")
        self._pool, self._number = pool, uint64(number)

    def remove(self):
        """Detaches all memory and forgets it; a second time does nothing."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            pool._remove_registrar(self._number)
        except BaseException:
            self._pool = pool
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.remove()
