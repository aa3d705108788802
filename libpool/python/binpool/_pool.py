# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What both backends' pools and buffers have in common: all but the way of a buffer.

A backend has MemoryPool with allocate, __call__, allocate_aligned, free, destroy, _adopt,
_enter and _leave, and PooledBuffer with the buffer protocol. The functions here become
members of these two, so that no class stands between a caller and the fast path.
"""

import ctypes
import os

from . import _library, _registrar
from ._arguments import c_string, one_of, uint64, within
from ._callbacks import Callables, allocator_ops, fence, forget_fence, main_interpreter_only
from ._errors import check, exception
from ._library import lib
from ._registrar import NO_PYTHON, RegistrarMembers
from ._share import Share
from ._statistics import MemoryPoolStatistics

# Providers that can be had by their name.
NAMED = {name: number for name, number in _library.PROVIDERS.items() if name != "allocator"}
KINDS = {"host": _library.KIND_HOST, "handle": _library.KIND_HANDLE}


def _as_callable(allocator):
    """What makes memory: the allocator itself, or its allocate()."""
    if callable(allocator):
        return allocator
    if callable(getattr(allocator, "allocate", None)):
        return allocator.allocate
    raise TypeError(f"{allocator!r} is no provider's name, no callable, and has no allocate()")


def give(buffer, function, *arguments):
    """Has a function of the library's take a buffer back, or raises what it says.

    An interrupt from when it had taken it is returned, to be raised: else None.
    """
    done, late = [], None

    def call(pool, ptr):
        nonlocal late
        try:
            # In one step, within which Python raises no interrupt.
            done.extend(map(function, (pool,), (ptr,), *((a,) for a in arguments)))
            check(done[0])
        except BaseException as e:
            if not done or done[0] < 0:
                raise
            late = e

    buffer._give_with(call)
    return late


def _reaper_asked_for():
    """Whether BINPOOL_OPTS, which the library took for good, gives pools a thread."""
    asked = [option.partition("=")[2] for option in os.environ.get("BINPOOL_OPTS", "").split(",")
             if option.partition("=")[0] == "reaper"]
    return bool(asked) and asked[-1] != "0"


def _is_plain_pool(allocator):
    """Whether it is a pool whose memory comes from the library alone, with nothing in between."""
    return isinstance(allocator, PLAIN) and type(allocator).allocate is PLAIN.allocate and \
        type(allocator).__call__ is PLAIN.__call__


def _ops_of(allocator, callables, handles):
    """The callbacks of an allocator: the library's own, or ones that call into Python."""
    if hasattr(allocator, "_binpool_ops"):
        return allocator._binpool_ops()
    if _is_plain_pool(allocator):
        ops = _library.AllocatorOps(size=ctypes.sizeof(_library.AllocatorOps))
        allocator._ask(lib.pool_allocator, ctypes.byref(ops))
        return ops
    main_interpreter_only("an allocator")
    callables.get = _as_callable(allocator)
    return allocator_ops(callables, handles)


class PoolMembers:
    """A pool of buffers in size classes; freed ones are held for the next request.

    name
        For reports.
    allocator
        Where memory comes from. "auto", "device", "hugetlb" or "thp" name a provider of the
        library (None: "auto"; provider and provider_reason say which it became). Or a callable,
        or an object with allocate(): called with a number of bytes it returns something with a
        writable buffer, at once, or raises MemoryError; then held buffers are given up and it
        is asked again. What it returned is let go when the pool gives it back. A MemoryPool is
        one.
    max_alloc_bytes
        Bound on what is reserved, in bytes. None: what the provider allows, 80 % of this machine's
        memory over an allocator, no bound for handles.
    mantissa_bits
        2 to the power of this are the size classes per power of two, 0 to 16.
    verbose
        True: a line on stderr for each operation; slow.
    kind
        "host", or "handle": what the allocator returns is no memory of this process but
        something else, a cl.Buffer for example; buffers have it as handle.
    node, strict_node
        The NUMA node that memory is to be on, -1 for any; or an error if it cannot be.
    leaks
        True: leaks() on stderr when destroying is refused, and at exit.
    reaper
        True: a thread of the pool's own asks fences, and gives memory back that is empty for
        extent_idle_ms (milliseconds; 0: 10 s), and all that is held when memory is short. Nothing
        written in Python is called by it: allocator, registrars and callables as fences are refused.
    strict
        True: what was asked for or an error, so "auto" is the device, and no small pages. Else they
        show as fallbacks in counters() and in the report.
    debug
        True: the process is aborted if something writes to memory that is free, with a line on
        stderr, and every double free is found; slow.
    classes
        "tight": powers of two fit exactly; "hysop": the original's.
    granule, cache_bytes
        Smallest unit, in bytes, and what may be held; 0 and None: by itself.

    The environment variable BINPOOL_OPTS overrides options of pools that are not over an
    allocator. Raises ValueError, MemoryError, PermissionError, OSError.

    Any thread may use a pool, and any other give the buffer back. The interpreter's lock is
    held for what this thread's cache can do, and let go for everything longer. A pool is
    destroyed when it and all of its buffers are gone, or by destroy(). In a forked child the
    parent's pools allocate nothing (OSError, EOWNERDEAD), and what is freed there is not freed
    for the parent.
    """

    # Of one that is not made, or not yet.
    _name, _callables, _reaper = "", None, False

    def __init__(self, name="binpool", allocator=None, max_alloc_bytes=None, mantissa_bits=4,
                 verbose=None, *, kind="host", node=-1, strict_node=False, classes="tight",
                 granule=0, cache_bytes=None, leaks=False, reaper=False,
                 extent_idle_ms=0, strict=False, debug=False):
        if self._callables is not None:
            raise ValueError(f"pool {self._name!r} is made already")
        handles = one_of("kind", KINDS, kind)
        options = _library.Options(
            size=ctypes.sizeof(_library.Options),
            name=c_string("name", str(name)),
            kind=handles, provider=0, node=within("node", -1, 0x7fffffff, node),
            mantissa_bits=min(uint64(mantissa_bits, "mantissa_bits"), 0xffffffff),
            classes=one_of("classes", _library.CLASSES, classes),
            flags=(_library.POOL_VERBOSE if verbose else 0)
            | (_library.POOL_STRICT_NODE if strict_node else 0)
            | (_library.POOL_LEAKS if leaks else 0)
            | (_library.POOL_REAPER if reaper else 0)
            | (_library.POOL_STRICT if strict else 0)
            | (_library.POOL_DEBUG if debug else 0),
            extent_idle_ms=within("extent_idle_ms", 0, 0xffffffff, extent_idle_ms),
            max_bytes=0 if max_alloc_bytes is None
            else uint64(max_alloc_bytes, "max_alloc_bytes"),
            granule=uint64(granule, "granule"),
            cache_bytes=_library.CACHE_AUTO if cache_bytes is None
            else uint64(cache_bytes, "cache_bytes"))
        if max_alloc_bytes == 0:
            raise ValueError("max_alloc_bytes 0 leaves nothing; None is no bound of yours")
        callables, callbacks = Callables(None), []
        if allocator is None or isinstance(allocator, str):
            if handles:
                raise ValueError("a pool of handles is over an allocator of yours")
            options.provider = one_of("allocator", NAMED, "auto" if allocator is None
                                       else allocator, ", and no callable")
        else:
            ops = _ops_of(allocator, callables, handles)
            callables.inner = allocator._callables if _is_plain_pool(allocator) else None
            if reaper and callables.written_in_python():
                if ops.release:
                    ops.release(ops.ctx)
                raise ValueError(NO_PYTHON)
            options.provider = _library.PROVIDERS["allocator"]
            options.allocator = _library.AllocatorOpsPointer(ops)
            callbacks.append(ops)
        c_pool = ctypes.c_void_p()
        err = lib.create(ctypes.byref(c_pool), ctypes.byref(options))
        if err:
            e = exception(err)
            if callbacks and ops.release:
                ops.release(ops.ctx)
            raise e
        self._adopt(c_pool.value, type(self)._buffer_type, exception, callbacks, handles)
        self._callbacks, self._callables, self._of_handles = callbacks, callables, handles
        self._registrars, self._reaper = {}, bool(reaper) or not callbacks and _reaper_asked_for()
        self._name, self._allocator = str(name), allocator
        self._mantissa_bits, self._verbose = mantissa_bits, bool(verbose)

    def _ask(self, function, *arguments):
        """A call of the library on this pool."""
        c_pool = self._enter()
        try:
            return check(function(c_pool, *arguments))
        finally:
            self._leave()

    # ---- What it is

    @property
    def name(self):
        return self._name

    @property
    def allocator(self):
        """As given: a provider's name, None, or the object that memory comes from."""
        return self._allocator

    @property
    def mantissa_bits(self):
        return self._mantissa_bits

    @property
    def verbose(self):
        return self._verbose

    @property
    def max_alloc_bytes(self):
        """Bound on reserved bytes; None: none."""
        limit = self.counters()["max_bytes"]
        return None if limit == (1 << 64) - 1 else limit

    @property
    def provider(self):
        """Where memory really comes from: "device", "hugetlb", "thp" or "allocator"."""
        return lib.provider_name(self.counters()["provider"]).decode()

    @property
    def provider_reason(self):
        """Why "auto" took its provider and none that is better."""
        c_pool = self._enter()
        try:
            return lib.provider_reason(c_pool).decode()
        finally:
            self._leave()

    @property
    def ptr(self):
        """Address of the struct binpool, for C."""
        try:
            return self._enter()
        finally:
            self._leave()

    # ---- What is in flight

    def free_after(self, buf, *fences):
        """As free, for a buffer that something is still at work on: it rests until that is over.

        A fence is a descriptor, or an object with fileno(), that is readable when it is over (an
        eventfd, a pidfd, a pipe whose other end is closed); or a callable, asked now and then,
        that returns true when it is. All have to be over. Errors as free's; then nothing happened.
        """
        if not isinstance(buf, type(self)._buffer_type):
            raise TypeError(f"{buf!r} is no buffer of a pool")
        if not buf.released and buf.pool is not self:
            raise ValueError(f"{buf!r} is another pool's")
        if self._reaper and any(callable(f) for f in fences):
            raise ValueError(NO_PYTHON)
        array = (_library.Fence * len(fences))()
        made = 0
        try:
            for made, what in enumerate(fences, 1):
                array[made - 1] = fence(what)
            late = give(buf, lib.free_after, array, len(fences))
        except BaseException:
            for f in array[:made]:
                forget_fence(f)
            raise
        if late:
            raise late

    def poll(self):
        """Asks some of the fences; how many buffers still wait for theirs."""
        return self._ask(lib.poll)

    @property
    def pending_blocks(self):
        """Buffers, of active_blocks, that were freed and wait for fences."""
        return self.counters()["pending_blocks"]

    # ---- Holding

    def free_held(self):
        """Gives all held buffers back, and memory in which no buffer is left."""
        self._ask(lib.free_held)

    def stop_holding(self):
        """From now on freed buffers are not held; what is held goes back."""
        self._ask(lib.stop_holding)

    def resume_holding(self):
        """The opposite of stop_holding()."""
        self._ask(lib.resume_holding)

    def trim(self, nbytes=0, age=0.0):
        """Gives back what was not used for age seconds, longest first; how many bytes that was.

        Until at most nbytes are reserved. What this and other threads hold in caches of their own
        may be found unused only by the second call, age seconds after the first.
        """
        if not 0 <= age < 1 << 50:
            raise ValueError(f"an age of {age} seconds")
        return self._ask(lib.trim, uint64(nbytes), int(age * 1000))

    def reserve(self, nbytes):
        """Gets memory now until nbytes are free for buffers in one stretch. MemoryError."""
        self._ask(lib.reserve, uint64(nbytes))

    # ---- Questions

    def may_alloc(self, size):
        """Whether reserved bytes and a buffer of size together are within max_alloc_bytes."""
        return bool(self._ask(lib.may_alloc, uint64(size)))

    def bin_number(self, size):
        """Size class of size bytes. MemoryError: there is none."""
        return self._ask(lib.pool_bin_number, uint64(size))

    def alloc_size(self, bin_nr):
        """Capacity of a size class, in bytes. ValueError: there is no such class."""
        return self._ask(lib.pool_alloc_size, min(uint64(bin_nr), 0xffffffff))

    @property
    def held_blocks(self):
        """Number of buffers that are held."""
        return self._ask(lib.held_blocks)

    def counters(self):
        """All counters of the library's struct binpool_stats, as a dict; bytes, counts, ns."""
        stats = _library.Stats(size=ctypes.sizeof(_library.Stats))
        self._ask(lib.get_stats, ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_[1:]}

    @property
    def active_blocks(self):
        """Number of buffers in use."""
        return self.counters()["active_blocks"]

    @property
    def active_bytes(self):
        """Bytes asked for, of buffers in use."""
        return self.counters()["active_bytes"]

    @property
    def held_bytes(self):
        """Bytes in held buffers."""
        return self.counters()["held_bytes"]

    @property
    def managed_bytes(self):
        """Bytes in buffers, in use and held."""
        return self.counters()["managed_bytes"]

    @property
    def reserved_bytes(self):
        """Bytes that the pool has from its provider or allocator."""
        return self.counters()["reserved_bytes"]

    @property
    def holding(self):
        """False after stop_holding()."""
        return bool(self.counters()["holding"])

    # ---- Statistics

    @property
    def statistics(self):
        """A MemoryPoolStatistics of what the pool has done so far."""
        c = self.counters()
        return MemoryPoolStatistics(c["allocs"], c["frees_active"] + c["frees_held"],
                                    c["returns"], c["reuses"], c["alloc_ns"], c["free_ns"])

    def mean_alloc_time(self):
        """Nanoseconds of asking for memory, spread over all buffers that were not held.

        A buffer made of memory that the pool has already adds to their number, not to the time;
        over an allocator of yours each asks. 0 if there was none.
        """
        return self.statistics.mean_alloc_time()

    def mean_free_time(self):
        """Nanoseconds of giving memory back, spread over all buffers that were given up; 0 if
        there was none."""
        return self.statistics.mean_free_time()

    def reuse_factor(self):
        """Share of requests that a held buffer served, 0 to 1."""
        return self.statistics.reuse_factor()

    def _text(self, function, form):
        size = 1 << 12
        while True:
            text = ctypes.create_string_buffer(size)
            needed = self._ask(function, form, text, size)
            if needed < size:
                return text.value.decode()
            size = needed + 1

    def header(self):
        """The report's first line: what pool this is."""
        return self._text(lib.report, _library.REPORT_TABLE).partition("\n")[0]

    def allocation_report(self, keys=False):
        """What is in use and held, as a table; keys=True: stable key=value lines."""
        return self._text(lib.report, _library.REPORT_KEYS if keys else _library.REPORT_TABLE)

    def leaks(self, keys=False):
        """Which buffers are in use, by tag, and the largest: a table, "" for none; or keys."""
        return self._text(lib.leaks, _library.REPORT_KEYS if keys else _library.REPORT_TABLE)

    def print_allocation_report(self, file=None):
        """The table, to stdout or a file."""
        if file is not None and not hasattr(file, "write"):
            raise TypeError(f"{file!r} is no file to write to")
        print(self.allocation_report(), end="", file=file)

    # ---- Arrays of numpy

    def empty(self, shape, dtype=float, order="C", *, alignment=None, zeroed=False):
        """A numpy array in a buffer of this pool, which it keeps. Contents: anything."""
        import numpy

        dtype = numpy.dtype(dtype)
        shape = tuple(shape) if hasattr(shape, "__len__") else (shape,)
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= int(n)
        if nbytes < 0:
            raise ValueError(f"shape {shape} has a negative dimension")
        buffer = self.allocate(nbytes, alignment, zeroed=zeroed)
        return buffer.array(dtype, shape, order)

    def zeros(self, shape, dtype=float, order="C", *, alignment=None):
        """As empty(), all zero."""
        return self.empty(shape, dtype, order, alignment=alignment, zeroed=True)

    # ---- The end

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.destroy()

    def __repr__(self):
        try:
            c = self.counters()
        except (ValueError, OSError) as e:
            return f"<binpool.MemoryPool {self._name!r}: {e}>"
        return (f"<binpool.MemoryPool {self._name!r}: {c['active_blocks']} active, "
                f"{c['held_blocks']} held, {c['reserved_bytes']} bytes reserved>")


class BufferMembers:
    def info(self):
        """All that is known of the buffer, as a dict.

        ptr, bytes and capacity; node, -1 for several or unknown; extent_fd and extent_offset:
        the file behind it, -1 for none. Of a part: of the whole. ValueError: released.
        """
        whole = self
        while whole.parent is not None:
            whole = whole.parent
        ptr = whole.ptr
        buf = _library.Buf(size=ctypes.sizeof(_library.Buf))
        whole.pool._ask(lib.buf_info, ptr, ctypes.byref(buf))
        return {name: getattr(buf, name) for name in (
            "ptr", "bytes", "capacity", "node", "extent_fd", "extent_offset")}

    def export(self):
        """A Share, by which other processes can map this buffer.

        They see all of the file behind it. OSError (EOPNOTSUPP): there is none, as with provider
        thp. ValueError: released. Nothing waits for them: where they need it longer, free_after().
        """
        if self.parent is not None:
            raise ValueError("a part is not exported: its whole is")
        share = _library.Share(size=ctypes.sizeof(_library.Share))
        ptr = self.ptr
        self.pool._ask(lib.export, ptr, ctypes.byref(share))
        return Share(share)

    @property
    def capacity(self):
        """Bytes that the buffer really has."""
        return self.info()["capacity"] if self.parent is None else self.size

    @property
    def node(self):
        """NUMA node that it is on; -1: several, or unknown."""
        return self.info()["node"]

    @property
    def handle(self):
        """What the allocator of a pool of handles gave; None for size 0, and elsewhere."""
        ptr, pool = self.ptr, self.pool
        if not pool._of_handles:
            return None
        if not self.size and self.info()["capacity"] == 0:
            return None
        # Of a pool over pools the innermost's.
        while _is_plain_pool(pool._allocator):
            pool = pool._allocator
        thing = pool._callables.things.get(ptr)
        return thing[0] if thing else ptr

    def array(self, dtype="u1", shape=None, order="C"):
        """A numpy array of this memory, which it keeps. shape None: all of it."""
        import numpy

        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise ValueError("memory of a pool cannot hold Python objects")
        if shape is None:
            if not dtype.itemsize or self.size % dtype.itemsize:
                raise ValueError(f"{self.size} bytes are no whole number of {dtype}")
            shape = (self.size // dtype.itemsize,)
        self.ptr  # raises if it is released
        # A view of its own, which the array holds: so the buffer knows of it.
        flat = numpy.frombuffer(memoryview(self), dtype="u1") if self.size else \
            numpy.empty(0, "u1")
        return numpy.ndarray(shape, dtype, buffer=flat, order=order)

    def __repr__(self):
        if self.released:
            return f"<binpool.PooledBuffer of {self.size} bytes, released>"
        return f"<binpool.PooledBuffer of {self.size} bytes at {self.ptr:#x}>"


# The backend's MemoryPool.
PLAIN = ()

SPECIAL = ("__init__", "__enter__", "__exit__", "__repr__")


def complete(backend):
    """Gives the backend's two classes the members of this module."""
    for members, cls in ((RegistrarMembers, backend.MemoryPool), (PoolMembers, backend.MemoryPool),
                         (BufferMembers, backend.PooledBuffer)):
        for name, member in vars(members).items():
            if not name.startswith("__") or name in SPECIAL:
                setattr(cls, name, member)
    backend.MemoryPool.__doc__ = PoolMembers.__doc__
    global PLAIN
    PLAIN = _registrar.POOL = backend.MemoryPool
    backend.MemoryPool._buffer_type = backend.PooledBuffer
