# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What callers hand in, checked before ctypes or C would cut it: TypeError, ValueError, MemoryError."""

import operator


def one_of(what, choices, value, or_else=""):
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r} is no str: {', '.join(choices)}")
    if value not in choices:
        raise ValueError(f"{what} {value!r} is none of {', '.join(choices)}{or_else}")
    return choices[value]


def whole(what, number):
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{what} {number!r} is no whole number") from None


def within(what, least, most, number):
    number = whole(what, number)
    if not least <= number <= most:
        raise ValueError(f"{what} {number} is not within {least} and {most}")
    return number


def uint64(number, what="number"):
    """For ctypes, which takes what does not fit as something else."""
    number = whole(what, number)
    if number < 0:
        raise ValueError(f"{what} {number} is negative")
    if number >> 64:
        raise MemoryError(f"{what} {number}: no address space is that large")
    return number


def c_string(what, value):
    """A str for C, which would end it at its first null."""
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r} is no str")
    if "\0" in value:
        raise ValueError(f"{what} {value!r} has a null character")
    return value.encode()
