# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Finds libbinpool, loads it, and describes its functions and structs to ctypes.

The structs are those of binpool.h, as far as this package uses them.
"""

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_int64,
                    c_size_t, c_uint32, c_uint64, c_void_p)

KIND_HOST, KIND_HANDLE = 0, 1
PROVIDERS = {"auto": 0, "device": 1, "hugetlb": 2, "thp": 3, "allocator": 4}
CLASSES = {"tight": 0, "hysop": 1}
POOL_VERBOSE = 1
POOL_STRICT_NODE = 2
POOL_REAPER, POOL_LEAKS, POOL_STRICT, POOL_DEBUG = 4, 8, 16, 32
REGISTRAR_OPTIONAL = 1
BUF_ZEROED = 1 << 16
BUF_WAIT = 1 << 17
FENCE_EVENTFD, FENCE_CALLBACK = 1, 3
UNKNOWN = 0xffffffff
CACHE_AUTO = UNLIMITED = (1 << 64) - 1
REPORT_TABLE, REPORT_KEYS = 0, 1

ALLOC = CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_void_p))
FREE = CFUNCTYPE(None, c_void_p, c_void_p, c_uint64)
ALLOC_HANDLE = CFUNCTYPE(c_int, c_void_p, c_uint64, POINTER(c_uint64))
FREE_HANDLE = CFUNCTYPE(None, c_void_p, c_uint64, c_uint64)
RELEASE = CFUNCTYPE(None, c_void_p)


class AllocatorOps(Structure):
    _fields_ = [("size", c_size_t), ("ctx", c_void_p), ("alloc", ALLOC), ("free", FREE),
                ("alloc_handle", ALLOC_HANDLE), ("free_handle", FREE_HANDLE), ("sub", c_void_p),
                ("sub_free", c_void_p), ("release", RELEASE)]


# Not asked of ctypes again: another interpreter's ctypes makes it forget what it has made.
AllocatorOpsPointer = POINTER(AllocatorOps)


class Options(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("kind", c_uint32),
                ("provider", c_uint32), ("node", c_int32), ("mantissa_bits", c_uint32),
                ("classes", c_uint32), ("flags", c_uint32), ("max_bytes", c_uint64),
                ("granule", c_uint64), ("cache_bytes", c_uint64),
                ("allocator", AllocatorOpsPointer), ("extent_idle_ms", c_uint32),
                ("reserved", c_uint32)]


class AllocOpts(Structure):
    _fields_ = [("size", c_size_t), ("bytes", c_uint64), ("alignment", c_uint64),
                ("flags", c_uint32), ("wait_ms", c_uint32), ("tag", c_char_p)]


class Buf(Structure):
    _fields_ = [("size", c_size_t), ("ptr", c_void_p), ("bytes", c_uint64),
                ("capacity", c_uint64), ("node", c_int32), ("extent_fd", c_int32),
                ("extent_offset", c_uint64), ("flags", c_uint32), ("reserved", c_uint32),
                ("parent", c_uint64), ("handle", c_uint64)]


class Stats(Structure):
    _fields_ = [("size", c_size_t)] + [(name, c_uint64) for name in (
        "active_blocks", "held_blocks", "active_bytes", "held_bytes", "managed_bytes",
        "reserved_bytes", "reserved_max_bytes", "max_bytes", "allocs", "reuses", "returns",
        "frees_active", "frees_held", "alloc_ns", "free_ns", "extents", "extent_allocs",
        "extent_frees", "extent_alloc_ns", "extent_free_ns", "registrations",
        "registration_allocs", "registration_ns", "refused")] + [
            ("provider", c_uint32), ("holding", c_uint32), ("page_bytes", c_uint64),
            ("runs", c_uint64)] + [(name, c_uint64) for name in (
                "extent_extends", "extent_shrinks", "pending_blocks", "pending_bytes",
                "fence_errors", "pressure_trims", "fallbacks",
                "registrations_refused", "registered_bytes", "registrations_lost", "stuck_bytes")]


class Share(Structure):
    _fields_ = [("size", c_size_t), ("extent_fd", c_int32), ("generation_fd", c_int32),
                ("offset", c_uint64), ("bytes", c_uint64), ("unit", c_uint64),
                ("generation", c_uint64), ("slot", c_uint32), ("reserved", c_uint32)]


class PtrInfo(Structure):
    _fields_ = [("size", c_size_t), ("pool", c_void_p), ("buffer", c_void_p),
                ("offset", c_int64), ("bytes", c_uint64), ("capacity", c_uint64),
                ("state", c_uint32), ("provider", c_uint32), ("references", c_uint64),
                ("extent", c_void_p), ("extent_bytes", c_uint64), ("extent_fd", c_int32),
                ("node", c_int32), ("extent_offset", c_uint64), ("page_bytes", c_uint64),
                ("run", c_void_p), ("run_bytes", c_uint64), ("locked", c_uint32),
                ("registrations", c_uint32), ("registrars", c_char * 128), ("tag", c_char * 48)]


FENCE_DONE = CFUNCTYPE(c_int, c_void_p)
FENCE_RELEASE = CFUNCTYPE(None, c_void_p)


class Fence(Structure):
    _fields_ = [("size", c_size_t), ("kind", c_uint32), ("fd", c_int32), ("counter", c_void_p),
                ("target", c_uint64), ("ctx", c_void_p), ("done", FENCE_DONE),
                ("release", FENCE_RELEASE)]


class Extent(Structure):
    _fields_ = [("size", c_size_t), ("ptr", c_void_p), ("bytes", c_uint64), ("fd", c_int32),
                ("node", c_int32)]


ATTACH = CFUNCTYPE(c_int, c_void_p, POINTER(Extent), POINTER(c_void_p))
DETACH = CFUNCTYPE(None, c_void_p, POINTER(Extent), c_void_p)


class RegistrarOps(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("ctx", c_void_p), ("attach", ATTACH),
                ("detach", DETACH), ("release", RELEASE), ("flags", c_uint32),
                ("reserved", c_uint32)]


FUNCTIONS = {
    "create": (c_int, POINTER(c_void_p), POINTER(Options)),
    "destroy_wait": (c_int, c_void_p, c_uint32),
    "alloc": (c_void_p, c_void_p, c_size_t),
    "alloc_cached": (c_void_p, c_void_p, c_size_t),
    "alloc_ex": (c_int, c_void_p, POINTER(AllocOpts), POINTER(Buf)),
    "buf_info": (c_int, c_void_p, c_void_p, POINTER(Buf)),
    "free": (c_int, c_void_p, c_void_p),
    "free_after": (c_int, c_void_p, c_void_p, POINTER(Fence), c_size_t),
    "poll": (c_int64, c_void_p),
    "export": (c_int, c_void_p, c_void_p, POINTER(Share)),
    "import_": (c_int, POINTER(c_void_p), POINTER(Share)),
    "import_ptr": (c_void_p, c_void_p),
    "import_check": (c_int, c_void_p),
    "import_close": (c_int, c_void_p),
    "trim": (c_int64, c_void_p, c_uint64, c_uint64),
    "query": (c_int, c_void_p, POINTER(PtrInfo)),
    "handle_free": (c_int, c_void_p, POINTER(Buf)),
    "pool_allocator": (c_int, c_void_p, POINTER(AllocatorOps)),
    "pressure_fd": (c_int,),
    "reserve": (c_int, c_void_p, c_uint64),
    "free_held": (c_int, c_void_p),
    "stop_holding": (c_int, c_void_p),
    "resume_holding": (c_int, c_void_p),
    "pool_bin_number": (c_int64, c_void_p, c_uint64),
    "pool_alloc_size": (c_int64, c_void_p, c_uint32),
    "held_blocks": (c_int64, c_void_p),
    "may_alloc": (c_int, c_void_p, c_uint64),
    "get_stats": (c_int, c_void_p, POINTER(Stats)),
    "report": (c_int, c_void_p, c_uint32, c_char_p, c_size_t),
    "leaks": (c_int, c_void_p, c_uint32, c_char_p, c_size_t),
    "provider_reason": (c_char_p, c_void_p),
    "provider_name": (c_char_p, c_uint32),
    "last_error": (c_char_p,),
    "set_last_error": (None, c_char_p),
    "add_registrar": (c_int, c_void_p, POINTER(RegistrarOps), POINTER(c_uint64)),
    "register_in_background": (c_int, c_void_p, c_uint64),
    "wait_registered": (c_int, c_void_p, c_void_p, c_uint32),
    "remove_registrar": (c_int, c_void_p, c_uint64),
}


def describe(library, functions):
    """The functions of a library as attributes without their prefix, typed."""
    for name, (result, *arguments) in functions.items():
        # import is no name in Python.
        function = getattr(library, "binpool_" + name.rstrip("_"))
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


def candidates(name):
    """Where a library may be, the best first: installed, then the one that came with us."""
    chosen = os.environ.get("BINPOOL_LIBRARY")
    if chosen:
        return [os.path.join(os.path.dirname(chosen), name)] if name != "libbinpool.so.0" \
            else [chosen]
    return [name, os.path.join(os.path.dirname(os.path.abspath(__file__)), name)]


def open_library(name, functions):
    """Loads the first of the candidates that has all functions: its path, and itself."""
    why = []
    for path in candidates(name):
        try:
            return path, describe(ctypes.CDLL(path, use_errno=True), functions)
        except (OSError, AttributeError) as e:
            why.append(str(e))
    raise ImportError(f"{name} cannot be used: {'; '.join(why)}. Install it (make install, "
                      "ldconfig), or name its path in BINPOOL_LIBRARY.")


PATH, lib = open_library("libbinpool.so.0", FUNCTIONS)
