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
            if found:
                cuda.free_on_streams(buffer, *zip(*found))
        except ValueError:
            # He who used it has released it himself, or its stream is gone.
            pass
        except BaseException as e:
            if getattr(e, "errno", None) != errno.ENODEV:
                _later.append((buffer, streams, found))
            # An interrupt is the caller's, but the memory is no less in flight.
            if not isinstance(e, Exception):
                raise
