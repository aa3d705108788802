# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Buffers whose last user goes while a device may still be at work on them."""

import collections
import errno
import sys

from ._share import query

# Those that could not be given back yet, as a graph was being captured, and who gives them.
_later = collections.deque()


def rest(buffer, give, ending=sys.is_finalizing):
    """Has give(buffer) free it; what could not be freed before is tried again.

    give drops the buffer, or frees it on a stream; what that refuses for now, as a graph is being
    captured, is kept until this or again() is called next. OSError (ENODEV) from it: there is no
    context, so nothing is at work. Raises nothing but an interrupt: it is called where something
    ends. When all does nobody asks for memory any more, and a driver is told of its end, which
    waits for the device.
    """
    if ending():
        return
    _later.append((buffer, give))
    again()


def again():
    """Tries once more to free what could not be."""
    for _ in range(len(_later)):
        try:
            buffer, give = _later.popleft()
        except IndexError:
            return
        try:
            give(buffer)
        except ValueError:
            # He who used it has released it himself, or its stream is gone.
            pass
        except BaseException as e:
            if getattr(e, "errno", None) != errno.ENODEV:
                _later.append((buffer, give))
            # An interrupt is the caller's, but the memory is no less in flight.
            if not isinstance(e, Exception):
                raise


def registered(buffer):
    """Whether a driver knows its memory. What none knows it copies before it answers."""
    return query(buffer)["registrations"] != 0
