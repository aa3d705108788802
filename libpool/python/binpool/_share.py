# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers in several processes, what is known of an address, when memory is short."""

import ctypes
import errno
import operator
import os
from multiprocessing import reduction

from . import _library
from ._errors import check
from ._library import lib


def _share_of_the_library(struct):
    if not isinstance(struct, _library.Share):
        raise TypeError("made by PooledBuffer.export() and Share.open() only, not of "
                        f"{struct!r}")
    return struct


class Share:
    """A buffer as other processes can map it; made by PooledBuffer.export().

    Send it through a connection or a queue of multiprocessing; who gets it calls open(). It has
    two descriptors, until close() or its end; the buffer stays its pool's, to be freed as ever.
    """

    def __init__(self, struct):
        self._struct = _share_of_the_library(struct)

    @property
    def nbytes(self):
        """Bytes of the buffer."""
        return self._struct.bytes

    def open(self):
        """Maps the buffer: an Import.

        OSError: ESTALE it was freed already. The Share can be closed, or opened again.
        """
        self._check()
        return Import(self._struct)

    def _check(self):
        if self._struct.extent_fd < 0:
            raise ValueError("the share is closed")

    def close(self):
        """Closes its descriptors. What is open stays so."""
        for name in ("extent_fd", "generation_fd"):
            fd = getattr(self._struct, name)
            if fd >= 0:
                setattr(self._struct, name, -1)
                os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __del__(self):
        if hasattr(self, "_struct"):
            self.close()

    def __reduce__(self):
        """For multiprocessing, which alone can pass descriptors on."""
        self._check()
        s = self._struct
        return _received, (reduction.DupFd(s.extent_fd), reduction.DupFd(s.generation_fd),
                           s.offset, s.bytes, s.unit, s.generation, s.slot)


def _received(extent, generation, *rest):
    return Share(_library.Share(ctypes.sizeof(_library.Share), extent.detach(),
                                generation.detach(), *rest))


class _Mapping:
    """Ends with the last view of it."""

    def __init__(self, struct):
        self.address = ctypes.c_void_p()
        check(lib.import_(ctypes.byref(self.address), ctypes.byref(struct)))
        self.close = lib.import_close

    def __del__(self):
        if self.address:
            self.close(self.address)


class Import:
    """A buffer of another process's pool, mapped here; made by Share.open().

    Views and arrays of it keep it mapped. It stays as it is when its exporter ends; when he frees
    it check() says so.
    """

    def __init__(self, struct):
        self._mapping = _Mapping(_share_of_the_library(struct))
        memory = (ctypes.c_ubyte * struct.bytes).from_address(
            lib.import_ptr(self._mapping.address))
        memory.mapping = self._mapping
        self._memory = memory

    @property
    def memory(self):
        """All of it, a memoryview."""
        return memoryview(self._memory).cast("B")

    def array(self, dtype="u1", shape=None, order="C"):
        """A numpy array of it. shape None: all of it."""
        import numpy

        flat = numpy.frombuffer(self._memory, dtype)
        return flat if shape is None else numpy.ndarray(shape, dtype, flat, order=order)

    def check(self):
        """Whether it is still the buffer that was exported.

        If not, what was read since the last check that said so may be somebody else's.
        """
        err = lib.import_check(self._mapping.address)
        return err != -errno.ESTALE and not check(err)


def pressure_fd():
    """A descriptor that polls POLLPRI when memory is short, for who calls trim() himself.

    The caller closes it. OSError: EOPNOTSUPP the kernel does not tell, EPERM only the privileged.
    """
    return check(lib.pressure_fd())


STATES = ("free", "held", "active", "pending")


def query(what):
    """All that is known of an address, of a buffer or of the first byte of an array: a dict.

    pool, buffer, extent and run are addresses; bytes, capacity, run_bytes and page_bytes (really
    mapped) in bytes; state "free", "held", "active" or "pending". OSError (ENOENT): it is no
    pool's memory.
    """
    if not isinstance(what, int):
        what = operator.index(what.ptr) if hasattr(what, "ptr") else \
            ctypes.addressof(ctypes.c_char.from_buffer(what))
    # ctypes would cut it.
    if not 0 <= what < 1 << 64:
        raise OSError(errno.ENOENT, f"{what} is no address")
    info = _library.PtrInfo(size=ctypes.sizeof(_library.PtrInfo))
    check(lib.query(what, ctypes.byref(info)))
    found = {name: getattr(info, name) for name, _ in info._fields_[1:]}
    found["state"] = STATES[info.state]
    found["provider"] = lib.provider_name(info.provider).decode()
    found["locked"] = bool(info.locked)
    found["tag"] = info.tag.decode(errors="replace")
    found["registrars"] = info.registrars.decode(errors="replace").split(",") \
        if info.registrars else []
    if info.registrations == _library.UNKNOWN:
        found["registrations"] = None
    return found
