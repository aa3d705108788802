# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The parts of bench-cuda: what is run for each, by turns, and how the figures are called."""

import glob
import importlib.util
import json
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
# Of them, where it is to be quick; and of sizes that take seconds.
QUICK = ("binpool, warm memory", "by hand, warm memory", "binpool, thp", "cuMemHostAlloc")
QUICK_SLOW = ("binpool, warm memory", "by hand, warm memory", "cuMemHostAlloc")
SLOW = 4 * GIB
# In Python; the first is what ratios are to.
FRAMEWORKS = [("binpool.torch, thp", "binpool.torch"), ("PyTorch", "torch"),
              ("binpool.cupy, thp", "binpool.cupy"), ("CuPy", "cupy")]
# What much memory comes in, in ready.c and neighbour.c.
PIECES = 16


def missing(session, kind, warm, size):
    """Why there is no such memory of that size; "": there is."""
    if (warm or "hugetlb" in kind) and session.huge.free() < max(size, EXTENT):
        return session.huge.too_few()
    if not warm and "hugetlb" not in kind and session.available() < size + size // 8:
        return "too little memory"
    return ""


# ---- Allocating -----------------------------------------------------------------------------


def alloc(part):
    session, sizes = part.session, part.session.options.sizes

    def single(size, label, kind, warm):
        def turn():
            what = f"{label}, {human(size)}"
            why = missing(session, kind, warm, size)
            if why:
                part.omit(what, why)
                return
            part.add(human(size), label,
                     part.run(what, [session.program, "alloc", kind, str(size)],
                              warm=[max(size, EXTENT)] if warm else ()))
        return turn

    def framework(label, name, some):
        def turn():
            figures = part.run(label, [sys.executable, os.path.join(HERE, "frameworks.py"), name,
                                       *map(str, some)], session.python())
            for key, values in figures.items():
                figure, _, size = key.partition(".")
                part.add(f"{human(int(size))}, in Python" if size else "", label,
                         {figure: values})
        return turn

    def peers(some):
        return [p for p in PINNED if not part.quick or p[0] in some]

    small, large = ([s for s in sizes if (s >= SLOW) == slow] for slow in (False, True))
    part.rounds(2 if part.quick else 3, [single(s, *p) for s in small for p in peers(QUICK)])
    part.rounds(1, [framework(*f, small if part.quick else sizes) for f in FRAMEWORKS])
    part.rounds(1 if part.quick else 2, [single(s, *p) for s in large for p in peers(QUICK_SLOW)])
    if part.quick:
        part.omit("some kinds of memory, and the largest size of frameworks", "it is to be quick")
    part.note("Each in a process of its own, but for PyTorch and CuPy, whose import takes seconds: "
              "there one process allocates all sizes, each for the first time.")
    contexts = [ms for figures in part.rows.values()
                for values in figures.get("context_ms", {}).values() for ms in values]
    if contexts:
        part.note(f"Before that a context is made, or a framework imported, in {min(contexts):.0f} "
                  f"to {max(contexts):.0f} ms; what a pool is made in, and known to the driver, "
                  "counts.")


ALLOC_TITLES = {
    "first_ms": "first pinned memory of a process",
    "first_written_ms": "first, and a byte written in each page",
    "again_us": "taken and given back again",
}


# ---- Copies ----------------------------------------------------------------------------------


def copy(part):
    names = {"pool-hugetlb": "binpool, hugetlb", "pool-thp": "binpool, thp",
             "host": "cuMemHostAlloc", "pageable": "pageable"}
    size = min(256 * MIB, part.session.options.large)
    for kind in list(names):
        why = missing(part.session, kind, False, size)
        if why:
            part.omit(names.pop(kind), why)
    figures = part.run("copies", [part.session.program, "copy", "3" if part.quick else "9",
                                  str(size), *names])
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


def disk(part):
    session = part.session
    size = min(GIB if part.quick else 2 * GIB, session.options.large)
    path = os.path.join(session.options.folder, f"bench-cuda.{os.getpid()}")
    ways = [("binpool and io_uring", "pool"), ("pread and two pinned buffers", "ring"),
            ("read, pageable", "plain")]

    def single(how, label, way):
        def turn():
            part.add(f"{human(size)} {how}", label,
                     part.run(label, [session.program, "disk", way, path, how]))
        return turn

    def cached():
        with open(path, "rb", buffering=0) as file:
            while file.read(MIB):
                pass
    os.makedirs(session.options.folder, exist_ok=True)
    try:
        part.run("a file to read", [session.program, "file", path, str(size)])
        if part.failures or part.omitted:
            return
        turns = [single("direct", *w) for w in ways]
        turns += [cached] + [single("cached", *w) for w in ways]
        part.rounds(2 if part.quick else 3, turns)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    part.note("Larger is better; rings and buffers are made within the time. \"direct\": nothing "
              "of the file is in the page cache, and all but the last go past it. Data is "
              "looked at afterwards.")


DISK_TITLES = {
    "rate_GBps": "from a file to the device",
    "GiB_cpu_ms": "CPU time for each GiB of it",
}


# ---- Buffers that a stream is at work on -----------------------------------------------------


def judge(part, label, figures, right):
    """Data has to be right, or with a control to be wrong, and buffers have to have come again."""
    if "wrong_n" not in figures:
        return
    copies, again, wrong = (int(figures[k][0]) for k in ("rounds_n", "reused_n", "wrong_n"))
    part.note(f"{label}: {copies} copies, {again} from a buffer that had been another's, "
              f"{wrong} of them wrong")
    if right and wrong:
        part.fail(label, f"{wrong} of {copies} copies were wrong")
    if not right and not wrong:
        part.fail(label, "the control found nothing wrong, so the others prove nothing")
    if not again:
        part.fail(label, "no buffer came again")


def torture(text):
    """What the proof with the shim prints, as figures."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    if not lines:
        return {}, []
    answer = json.loads(lines[-1])
    return {"rounds_n": [answer["rounds"]], "reused_n": [answer["same_address"]],
            "wrong_n": [answer["wrong"]], "each_us": [answer["us_each"]]}, []


def runtime_missing():
    """Why no program here calls CUDA's runtime by Python; "": one can."""
    if not importlib.util.find_spec("numpy"):
        return "numpy is not installed here"
    folders = [os.path.join(p, "nvidia", "**") for p in sys.path] + ["/usr/local/cuda*/lib64"]
    if not any(glob.glob(os.path.join(f, "libcudart.so.*"), recursive=True) for f in folders):
        return "CUDA's runtime is not installed here"
    return ""


def reuse(part):
    session = part.session
    for label, how, rounds, right in (
            ("binpool_free_on_cuda_stream", "stream", 100000, True),
            ("by hand, a ring of events", "ring", 100000, True),
            ("control: freed without regard to the stream", "now", 10000, False)):
        figures = part.run(label, [session.program, "reuse", how,
                                   str(2048 if part.tiny else rounds)])
        judge(part, label, figures, right)
        if right:
            part.add("64 KiB", label, {"each_us": figures.get("each_us", [])})
    why = runtime_missing()
    proof = os.path.join(session.tree, "tests", "preload", "pytorch")
    for label, how, right in (("shim: cudaFreeHost under a copy", "wait", True),
                              ("shim, control: at once", "immediate", False)):
        if why:
            part.omit(label, why)
            continue
        environment = {"LD_PRELOAD": session.shim, "BINPOOL_OPTS": "provider=thp",
                       "BINPOOL_PRELOAD_FREE": how}
        figures = part.run(label, [sys.executable, proof, "--child", "torture"], environment,
                           parser=torture)
        judge(part, label, figures, right)
        if right:
            part.add("64 KiB, by the runtime", label, {"each_us": figures.get("each_us", [])})


REUSE_TITLES = {"each_us": "taken, filled, copied, given up"}


# ---- Threads ---------------------------------------------------------------------------------


def mimalloc(session):
    found = [f for folder in (os.path.join(session.build, "lib"), "/usr/lib/*", "/usr/local/lib")
             for f in glob.glob(os.path.join(folder, "libmimalloc.so*"))]
    return found[0] if found else None


def threads(part):
    session = part.session
    count, ms = 4 if part.tiny else 16, 20 if part.tiny else 300 if part.quick else 1000
    peers = [("binpool", "pool-thp", None), ("cuMemHostAlloc", "host", None),
             ("malloc, not pinned", "pageable", None)]
    if mimalloc(session):
        peers.append(("mimalloc, not pinned", "pageable", mimalloc(session)))
    else:
        part.omit("mimalloc", "it is not installed here")

    def single(label, kind, preload):
        def turn():
            part.add(f"{count} threads", label, part.run(
                label, [session.program, "threads", kind, str(count), str(ms)],
                {"LD_PRELOAD": preload} if preload else {}))
        return turn
    part.rounds(2 if part.quick else 3, [single(*p) for p in peers])


THREADS_TITLES = {"pair_us": "64 KiB to 4 MiB taken and given back"}


# ---- Much memory -----------------------------------------------------------------------------


def background(part):
    session, large = part.session, part.session.options.large
    fast = [("binpool in background, warm memory", "pool-hugetlb", "background", True),
            ("binpool, warm memory", "pool-hugetlb", "foreground", True),
            ("by hand, warm memory", "warm", "foreground", True)]
    # How a program waits for its copies decides when the driver registers: each way once.
    slow = [("in background, cuStreamSynchronize", "pool-hugetlb", "background-synchronize", True),
            ("in background, cuMemcpyHtoD", "pool-hugetlb", "background-synchronous", True),
            ("binpool in background, thp", "pool-thp", "background", False),
            ("cuMemHostAlloc", "host", "foreground", False)]

    def single(label, kind, how, warm):
        def turn():
            why = missing(session, kind, warm, large)
            if why:
                part.omit(label, why)
                return
            part.add(f"{human(large)} in {PIECES}", label, part.run(
                label, [session.program, "ready", kind, str(large), how],
                warm=[max(large // PIECES, EXTENT)] * PIECES if warm else ()))
        return turn
    part.rounds(2 if part.quick else 3, [single(*p) for p in fast])
    part.rounds(1, [single(*p) for p in slow])


BACKGROUND_TITLES = {
    "first_copy_ms": "the first part is on the device",
    "usable_ms": "all is there to be written",
    "ready_ms": "all is pinned",
    "meanwhile_GBps": "the first part copied until then",
}


def neighbour(part):
    session, large = part.session, part.session.options.large
    # Those of several pieces get a file for each.
    whole, pieces = [large], [max(large // PIECES, EXTENT)] * PIECES
    rate, idle = large, 50 if part.tiny else 700
    fast = [("binpool", "pool-hugetlb", "parts", pieces),
            ("binpool in background", "pool-hugetlb", "background", pieces),
            (f"in background, {human(rate)}/s", "pool-hugetlb", f"background:{rate}", pieces),
            ("by hand, in one call", "warm", "whole", whole),
            (f"by hand, in {PIECES} calls", "warm", "parts", pieces)]
    thp = [("binpool, thp", "pool-thp", "parts", ()),
           ("binpool, thp, in background", "pool-thp", "background", ()),
           ("by hand, thp, in one call", "thp", "whole", ()),
           (f"by hand, thp, in {PIECES} calls", "thp", "parts", ())]
    slow = [("cuMemHostAlloc", "host", "parts", ())]
    calls = {"copy": "copy of 64 KiB", "ask": "cuMemGetInfo", "pin": "cuMemHostAlloc of 64 KiB"}

    def single(label, kind, how, warm):
        def turn():
            why = missing(session, kind, bool(warm), large)
            if why:
                part.omit(label, why)
                return
            figures = part.run(label, [session.program, "neighbour", kind, str(large), how,
                                       str(idle)], warm=warm)
            for key, values in figures.items():
                figure, _, call = key.partition(".")
                phase, _, name = figure.partition("_")
                if not call:
                    part.add(f"{human(large)}", label, {figure: values})
                elif phase == "idle":
                    part.add(calls[call], "idle", {name: values, "gone_" + name: values})
                else:
                    part.add(calls[call], label,
                             {("gone_" if phase == "unregister" else "") + name: values})
        return turn
    warm = session.huge.free() >= large
    part.rounds(1 if part.quick else 2, [single(*p) for p in (fast if warm else thp)])
    part.rounds(1, [single(*p) for p in slow])
    if not warm:
        part.omit("warm memory", session.huge.too_few())


NEIGHBOUR_TITLES = {
    "register_ms": "registered in",
    "unregister_ms": "unregistered in",
    "p99_us": "meanwhile, 99 % within",
    "worst_us": "meanwhile, worst",
    "gone_worst_us": "while it is unregistered, worst",
}

# ---- Unmodified PyTorch ------------------------------------------------------------------------


def proof_figures(text):
    """What the proof with the shim measures, without rates and what is not a number."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    answer = json.loads(lines[-1]) if lines else {}
    if answer and not answer["right"]:
        raise ValueError("data is wrong, or memory that should be pinned is not")
    return {k: [v] for k, v in answer.items() if k.endswith(("_ms", "_GBps"))}, []


def pytorch(part):
    session = part.session
    why = runtime_missing()
    if not why and not importlib.util.find_spec("torch"):
        why = "PyTorch is not installed here"
    if why:
        part.omit("all of it", why)
        return
    proof = os.path.join(session.tree, "tests", "preload", "pytorch")
    # What the first tensors take, and what the pool grows by after them.
    warm = [GIB] * 3 + [GIB // 2] * 3 + [GIB // 4]

    def single(label, preload, options, sizes):
        def turn():
            if sizes and session.huge.free() < sum(sizes):
                part.omit(label, session.huge.too_few())
                return
            environment = {"LD_PRELOAD": preload, "BINPOOL_OPTS": options,
                           "PYTHONWARNINGS": "ignore"} if preload else {"PYTHONWARNINGS": "ignore"}
            part.add("", label, part.run(label, [sys.executable, proof, "--child", "measure"],
                                         environment, warm=sizes, parser=proof_figures))
        return turn
    part.rounds(2, [single("without the shim", "", "", ()),
                    single("shim, warm memory", session.shim, "provider=hugetlb", warm),
                    single("shim, thp", session.shim, "provider=thp", ())])


PYTORCH_TITLES = {
    "first_1GiB_ms": "the first pinned GiB",
    "second_1GiB_ms": "the second",
    "loader0_first_ms": "first epoch of a DataLoader",
    "loader0_second_ms": "second epoch",
    "loader2_first_ms": "first epoch of one with two workers",
    "loader2_second_ms": "its second epoch",
    "h2d_GBps": "to the device",
}

# Name, function, its titles, what it says, seconds after which nothing is begun: all, and quick
# (0: left out then, unless it is asked for).
PARTS = [
    ("alloc", alloc, ALLOC_TITLES, "Pinned memory: the first, and all further", 115, 45),
    ("copy", copy, COPY_TITLES, "Copies", 20, 10),
    ("disk", disk, DISK_TITLES, "From a file to the device", 30, 12),
    ("reuse", reuse, REUSE_TITLES, "Buffers given up under a copy, and had again", 35, 25),
    ("threads", threads, THREADS_TITLES, "Threads", 15, 8),
    ("background", background, BACKGROUND_TITLES, "Much pinned memory, and when it is there",
     35, 20),
    ("neighbour", neighbour, NEIGHBOUR_TITLES,
     "What other processes feel while much memory is registered", 40, 25),
    ("pytorch", pytorch, PYTORCH_TITLES, "PyTorch as it is, with and without libbinpool-preload",
     35, 0),
]

# Part, row, figure, whose, the bound; or to whose figure the bound is a ratio, least.
GOALS = [
    ("alloc", "1 GiB", "first_ms", "binpool, warm memory", 25, None),
    ("copy", "256 MiB", "h2d_1_GBps", "binpool, hugetlb", 0.99, "cuMemHostAlloc"),
    ("copy", "256 MiB", "h2d_1_GBps", "binpool, thp", 0.99, "cuMemHostAlloc"),
]


def goals(result):
    """A sentence for each that was measured."""
    said = []
    for part, row, figure, whose, bound, other in GOALS:
        peers = result["parts"].get(part, {}).get("rows", {}).get(row, {}).get(figure, {})
        if whose not in peers or (other and other not in peers):
            continue
        value = peers[whose]["median"]
        if other:
            value /= peers[other]["median"]
        reached = value >= bound if other else value <= bound
        said.append(f"goal: {figure} of {whose}, {row}: {value:.3f}"
                    f"{' of ' + other + chr(39) + 's, at least ' if other else ', at most '}"
                    f"{bound}: {'reached' if reached else 'missed'}")
    return said
