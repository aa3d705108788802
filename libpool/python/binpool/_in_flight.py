# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers whose last user goes while a device may still be at work on them."""

import collections
import errno
import sys
import time
import warnings

from . import cuda

# Those that could not be given back yet, as a graph was being captured: the buffer, who says what it
# waits for, and what he said.
_later = collections.deque()
# Those that a driver refused otherwise, perhaps for good: after one that it refuses again there is a
# pause, in seconds, until _when.
_refused = collections.deque()
_PAUSE, _when = 1.0, 0.0

_LEGACY, _PER_THREAD = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD


def rest(buffer, streams, ending=sys.is_finalizing):
    """Frees a buffer when what is now in some streams is over.

    streams() says in which, at once: later others may be current, or none. It gives a stream and its
    device each, or nothing: then nothing is at work. What a driver refuses for now, as a graph is
    being captured, is kept until this or again() is called next; what it refuses otherwise is kept,
    too, with a RuntimeWarning, and tried again now and then. OSError (ENODEV): there is no
    context, so nothing is at work. Raises nothing but an interrupt: it is called where something
    ends. When all does nobody asks for memory any more, and a driver is told of its end, which
    waits for the device.
    """
    # Until it has been tried here nobody else has it: he might be on another thread.
    mine, to = [[buffer, streams, None]], _later
    try:
        if ending():
            mine.clear()
        else:
            to = _try(mine)
            if _later or _refused:
                again()
    finally:
        if mine:
            to.extend(mine)


def again():
    """Tries once more to free what could not be."""
    global _when
    try:
        for _ in range(len(_later)):
            _try_first(_later)
        if _refused and time.monotonic() >= _when:
            _when = time.monotonic() + _PAUSE
            # Until one is refused again, which went to the end.
            while _try_first(_refused) is not _refused:
                pass
    except IndexError:
        # Other threads have them.
        pass


def _try_first(of):
    """_try() of the first in a list, which goes to the end of where it belongs. IndexError: none."""
    mine, to = [], of
    try:
        # In one step, within which Python raises no interrupt.
        mine.extend(map(collections.deque.popleft, (of,)))
        to = _try(mine, told=of is _refused)
    finally:
        to.extend(mine)
    return to


def _try(mine, told=False):
    """Frees what a list has, and empties it. Else the list is as it was, and what is returned says
    where it is to be kept."""
    buffer, streams, found = mine[0]
    try:
        if found is None:
            # It was not to be told, or there was an interrupt: it is asked again.
            found = mine[0][2] = list(streams())
        else:
            # A thread's own default stream is none of another's, but what is in all threads' comes
            # before what is in the legacy one.
            found = [(_LEGACY if cuda._handle(stream) == _PER_THREAD else stream, device)
                     for stream, device in found]
        _free(buffer, found)
    except BufferError:
        return _later
    except Exception as e:
        if not _gone(e):
            if not told:
                _warn(e)
            return _refused
    mine.clear()
    return _later


def _warn(e):
    try:
        warnings.warn("a buffer stays in use, as it cannot be told whether a device is done with it: "
                      f"{e}", RuntimeWarning)
    except Exception:
        # Somebody has made it an error, and nobody is there to have it.
        pass


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
