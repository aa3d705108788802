# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers whose last user goes while a device may still be at work on them."""

import collections
import errno
import sys

from . import cuda

# Those that could not be given back yet, as a graph was being captured, and what they wait for.
_later = collections.deque()


def rest(buffer, streams, ending=sys.is_finalizing):
    """Frees a buffer when what is now in some streams is over.

    streams() says in which, at once: later others may be current, or none. It gives a stream and its
    device each, or nothing: then nothing is at work. What a driver refuses for now, as a graph is
    being captured, is kept until this or again() is called next. OSError (ENODEV): there is no
    context, so nothing is at work. Raises nothing but an interrupt: it is called where something
    ends. When all does nobody asks for memory any more, and a driver is told of its end, which
    waits for the device.
    """
    if ending():
        return
    found = None  # it was not to be told, or there was an interrupt: it is asked again
    try:
        found = list(streams())
    except Exception:
        pass
    finally:
        _later.append((buffer, streams, found))
    again()


def _gone(e):
    """Whether a stream or its context is gone, or he who used the buffer has released it himself."""
    return isinstance(e, ValueError) or getattr(e, "errno", None) == errno.ENODEV


def _is_there(pool, stream):
    """Whether a stream could be waited for: the library does so for all of several, or for none."""
    try:
        cuda.free_on_streams(pool.allocate(0), *zip(stream))
    except Exception as e:
        if not _gone(e):
            raise
        return False
    return True


def _free(buffer, found):
    """Frees it when what is in the streams is over; in those that are gone nothing is at work."""
    try:
        if found:
            cuda.free_on_streams(buffer, *zip(*found))
    except Exception as e:
        if not _gone(e) or buffer.released or len(found) == 1:
            raise
        pool = getattr(buffer, "pooled", buffer).pool
        there = [stream for stream in found if _is_there(pool, stream)]
        if len(there) == len(found):
            raise
        _free(buffer, there)


def again():
    """Tries once more to free what could not be."""
    for _ in range(len(_later)):
        try:
            buffer, streams, found = _later.popleft()
        except IndexError:
            return
        try:
            if found is None:
                found = list(streams())
            _free(buffer, found)
        except BaseException as e:
            if not _gone(e):
                _later.append((buffer, streams, found))
            # An interrupt is the caller's, but the memory is no less in flight.
            if not isinstance(e, Exception):
                raise
