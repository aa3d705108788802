# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""From the library's errnos and sentences to exceptions."""

import errno
import os
import threading

from ._library import lib

MEMORY = {errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.E2BIG}

# What a callback of this thread raised last, and the sentence that it left in the library.
_raised = threading.local()


def remember(exception, sentence):
    """A callback ends with an exception: the call that it belongs to may end with it too."""
    _raised.last = (exception, sentence)
    lib.set_last_error(sentence.encode(errors="replace")[:500])


def forget():
    _raised.last = None


def exception(err):
    """What a call that came back with err, a negative errno, raises on this thread.

    No memory, whatever the reason (ENOMEM, ENOSPC, EDQUOT, EFBIG, E2BIG): MemoryError. A wrong
    argument: ValueError. Something is still in use: BufferError. What a callback raised: that.
    Else OSError, or what Python makes of the errno. All have an errno.
    """
    sentence = lib.last_error().decode(errors="replace") or os.strerror(-err)
    cause, text = getattr(_raised, "last", None) or (None, None)
    forget()
    if cause and text[:400] not in sentence:
        cause = None
    if -err in MEMORY:
        e = MemoryError(sentence)
        e.__cause__ = cause
    elif cause:
        return cause
    elif err == -errno.EINVAL:
        e = ValueError(sentence)
    elif err == -errno.EBUSY:
        e = BufferError(sentence)
    else:
        return OSError(-err, sentence)
    e.errno = -err
    return e


def check(result):
    """The result of a call, unless it is a negative errno."""
    if result < 0:
        raise exception(result)
    return result
