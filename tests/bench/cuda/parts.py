# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The parts of bench-cuda: what is run for each, by turns, and how the figures are called."""

import os
import sys

from session import GIB, MIB, human

HERE = os.path.dirname(os.path.abspath(__file__))
# The least that a pool gets from its provider.
EXTENT = 4 * MIB

# Label, kind of memory, whether a parent keeps its pages warm. The first is what ratios are to.
PINNED = [
    ("binpool, warm memory", "pool-hugetlb", True),
    ("by hand, warm memory", "warm", True),
    ("binpool, hugetlb", "pool-hugetlb", False),
    ("by hand, hugetlb", "hugetlb", False),
    ("binpool, thp", "pool-thp", False),
    ("by hand, thp", "thp", False),
    ("cuMemHostAlloc", "host", False),
]
FRAMEWORKS = [("PyTorch", "torch"), ("CuPy", "cupy")]
# Of these each takes seconds and is there without pages kept warm: once, if it is to be quick.
SLOW = GIB * 4


def needs_pages(kind, warm):
    return warm or "hugetlb" in kind


def alloc(part):
    session, sizes = part.session, part.session.options.sizes

    def single(size, label, kind, warm):
        def turn():
            if needs_pages(kind, warm) and session.huge.free() < max(size, EXTENT):
                part.omit(f"{label}, {human(size)}", part.session.huge.too_few())
                return
            figures = part.run(f"{label}, {human(size)}",
                               [session.program, "alloc", kind, str(size)],
                               warm=[max(size, EXTENT)] if warm else ())
            part.add(human(size), label, figures)
        return turn

    def framework(label, name, some):
        def turn():
            figures = part.run(label, [sys.executable, os.path.join(HERE, "frameworks.py"), name,
                                       *map(str, some)])
            part.add("", label, {"context_ms": figures.pop("context_ms")}
                     if "context_ms" in figures else {})
            for key, values in figures.items():
                figure, _, size = key.partition(".")
                part.add(human(int(size)), label, {figure: values})
        return turn

    small, large = ([s for s in sizes if (s >= SLOW) == slow] for slow in (False, True))
    turns = [single(size, *peer) for size in small for peer in PINNED]
    turns += [framework(*peer, small) for peer in FRAMEWORKS]
    part.rounds(2 if part.quick else 5, turns)
    turns = [single(size, *peer) for size in large for peer in PINNED
             if not part.quick or peer[0] in ("binpool, warm memory", "by hand, warm memory",
                                              "cuMemHostAlloc")]
    if large and part.quick:
        part.omit(", ".join(map(human, large)), "of hugetlb and thp that are not warm, and of "
                  "frameworks, since it is to be quick")
    elif large:
        turns += [framework(*peer, large) for peer in FRAMEWORKS]
    part.rounds(1 if part.quick else 2, turns)
    part.note("Each in a process of its own, but for PyTorch and CuPy, whose import takes seconds: "
              "there one process allocates all sizes, each for the first time. "
              "The context is made before: context_ms in the file.")


ALLOC_TITLES = {
    "first_ms": "first pinned memory of a process",
    "first_written_ms": "the same, and a byte written in each page",
    "again_us": "taken and given back again",
}


def copy(part):
    kinds = ["pool-hugetlb", "pool-thp", "host", "pageable"]
    names = {"pool-hugetlb": "binpool, hugetlb", "pool-thp": "binpool, thp",
             "host": "cuMemHostAlloc", "pageable": "pageable"}
    if part.session.huge.free() < GIB:
        kinds.remove("pool-hugetlb")
        part.omit("binpool, hugetlb", part.session.huge.too_few())
    size = min(256 * MIB, part.session.options.large)
    figures = part.run("copies", [part.session.program, "copy", "3" if part.quick else "9",
                                  str(size), *kinds])
    for key, values in figures.items():
        figure, _, kind = key.partition(".")
        part.add(human(size), names[kind], {figure: values})
    part.note("Larger is better. Of several streams each copies its part of the memory.")


COPY_TITLES = {
    "h2d_1_GBps": "to the device, one stream",
    "h2d_4_GBps": "to the device, four streams",
    "d2h_1_GBps": "back, one stream",
    "d2h_4_GBps": "back, four streams",
    "first_h2d_ms": "the first copy of each to the device",
}

# Name, function, its titles, what it says, seconds it may take, and if it is to be quick.
PARTS = [
    ("alloc", alloc, ALLOC_TITLES, "Pinned memory: the first, and all further", 130, 50),
    ("copy", copy, COPY_TITLES, "Copies", 25, 12),
]
