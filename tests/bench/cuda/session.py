# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""What bench-cuda's parts stand on: programs with a time limit, figures of several rounds, tables
and the JSON file; memory that is kept warm, and huge pages."""

import ctypes
import glob
import json
import mmap
import os
import signal
import statistics
import subprocess
import threading
import time

IMPOSSIBLE = 77
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
UNITS = {"ms": "ms", "us": "us", "ns": "ns", "GBps": "GB/s", "GiB": "GiB"}
# What was begun in time may take so much longer.
GRACE = 20
THREADS = min(8, os.cpu_count() or 1)


def human(size):
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"


def bytes_of(text):
    """'64K', '16G' or a plain number."""
    factor = {"K": KIB, "M": MIB, "G": GIB}.get(text[-1:].upper(), 1)
    return int(text[:-1] if factor > 1 else text) * factor


def parse(text):
    """Figures {name: [values]} and comments of what a program printed; a line cut short, as of a
    program that was stopped, is left out."""
    figures, comments = {}, []
    for line in text.splitlines():
        if line.startswith("#"):
            comments.append(line[1:].strip())
            continue
        name, *values = line.split() or [""]
        try:
            values = [float(v) for v in values]
        except ValueError:
            continue
        if values:
            figures.setdefault(name, []).extend(values)
    return figures, comments


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "n": len(values), "values": values}


def number(value):
    """Four digits that tell something, and no more."""
    if value == 0:
        return "0"
    digits = 3
    while digits and abs(value) >= 10 ** (4 - digits):
        digits -= 1
    return f"{value:.{digits}f}"


# ---- Huge pages, and memory that is kept warm -----------------------------------------------

def huge_page():
    with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", encoding="ascii") as file:
        return int(file.read())


class HugePages:
    """So many bytes of huge pages while it lasts, as far as they can be had."""

    def __init__(self, wanted):
        self.before, self.problem, self.free_path = None, "", ""
        if not wanted:
            self.problem = "they were not to be reserved"
        try:
            self.page = huge_page()
            folder = f"/sys/kernel/mm/hugepages/hugepages-{self.page // KIB}kB/"
            self.path, self.free_path = folder + "nr_hugepages", folder + "free_hugepages"
            before = self.read(self.path)
            missing = max(0, -(-wanted // self.page) - self.read(self.free_path))
            if missing:
                with open(self.path, "w", encoding="ascii") as file:
                    file.write(str(before + missing))
                self.before = before
        except OSError as error:
            self.problem = str(error)

    @staticmethod
    def read(path):
        with open(path, encoding="ascii") as file:
            return int(file.read())

    def too_few(self):
        return "too few huge pages" + (f" ({self.problem})" if self.problem else "")

    def free(self):
        try:
            return self.read(self.free_path) * self.page
        except OSError:
            return 0

    def give_back(self):
        if self.before is not None:
            with open(self.path, "w", encoding="ascii") as file:
                file.write(str(self.before))
            self.before = None


class Warm:
    """Files of clean huge pages, which a child gets: what stands for the module's memory."""

    def __init__(self, sizes):
        self.fds, names = [], []
        hugetlb, sealing, shift = 4, 2, 26
        page = huge_page()
        try:
            for size in sizes:
                size = (size + page - 1) // page * page
                fd = os.memfd_create("binpool", hugetlb | sealing |
                                     (page.bit_length() - 1) << shift)
                self.fds.append(fd)
                os.ftruncate(fd, size)
                self.populate(fd, size, page)
                names.append(f"{fd}:{size}")
        except OSError:
            self.close()
            raise
        self.environment = {"BINPOOL_TEST_WARM": ",".join(names)}

    @staticmethod
    def populate(fd, size, page):
        """By several threads, which the kernel lets zero pages at once."""
        populate_write = 23
        libc = ctypes.CDLL(None, use_errno=True)
        errors = []
        with mmap.mmap(fd, size) as pages:
            first = ctypes.c_char.from_buffer(pages)
            at, part = ctypes.addressof(first), -(-size // THREADS // page) * page

            def some(offset):
                if libc.madvise(ctypes.c_void_p(at + offset),
                                ctypes.c_size_t(min(part, size - offset)), populate_write):
                    errors.append(ctypes.get_errno())
            threads = [threading.Thread(target=some, args=(o,)) for o in range(0, size, part)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            del first
        if errors:
            raise OSError(errors[0], os.strerror(errors[0]))

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []


# ---- Programs ---------------------------------------------------------------------------------

class Session:
    """One run of the benchmark: where things are, how long there is, what came out."""

    def __init__(self, tree, build, options):
        self.tree, self.build, self.options = tree, os.path.abspath(build), options
        self.program = os.path.join(self.build, "bench", "cuda")
        self.shim = os.path.join(self.build, "lib", "libbinpool-preload.so")
        self.warm_library = os.path.join(self.build, "tests", "preload", "warm.so")
        self.huge = None
        self.result = {"parts": {}, "machine": {}, "conditions": []}

    def python(self):
        """The environment in which binpool's package is found: the one that was installed below the
        build folder, or packed, or else the tree's, which has no extension."""
        folders = [os.path.join(self.build, "python"),
                   *glob.glob(os.path.join(self.build, "python/venv/lib/python3*/site-packages")),
                   os.path.join(self.tree, "libpool", "python")]
        folder = next(f for f in folders if os.path.exists(os.path.join(f, "binpool")))
        return {"BINPOOL_LIBRARY": os.path.join(self.build, "lib", "libbinpool.so.0"),
                "PYTHONPATH": ":".join(p for p in (folder, os.environ.get("PYTHONPATH")) if p)}

    def spawn(self, argv, limit, environment=None, fds=()):
        """(status, stdout, stderr); status None: it was stopped, and what it said till then."""
        env = dict(os.environ, **(environment or {}))
        libraries = [os.path.join(self.build, "lib"), env.get("LD_LIBRARY_PATH", "")]
        env["LD_LIBRARY_PATH"] = ":".join(p for p in libraries if p)
        with subprocess.Popen(argv, env=env, pass_fds=fds, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
            try:
                out, err = child.communicate(timeout=max(0.1, limit))
                return child.returncode, out, err
            except subprocess.TimeoutExpired:
                pass
            finally:
                # Its children, too.
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                out, err = child.communicate(timeout=5)
            except subprocess.TimeoutExpired as stuck:
                # In the driver, which does not let it go: it is left alone.
                out, err = (s.decode() if isinstance(s, bytes) else s or ""
                            for s in (stuck.stdout, stuck.stderr))
                for pipe in (child.stdout, child.stderr):
                    pipe.close()
                child.returncode = -signal.SIGKILL
            return None, out, err

    @staticmethod
    def available():
        """Bytes of memory that could be had."""
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * KIB
        return 0

    def save(self):
        path = self.options.json
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as out:
            json.dump(self.result, out, indent=1)
            out.write("\n")
        os.replace(path + ".new", path)

    def condition(self, sentence):
        print(sentence)
        self.result["conditions"].append(sentence)


class Part:
    """One part of the table: rows of figures by peer, what was left out, what failed."""

    def __init__(self, session, name, title, limit):
        self.session, self.name, self.title = session, name, title
        self.quick = session.options.quick
        self.tiny = session.options.tiny
        self.begin, self.limit = time.monotonic(), max(limit, 0)
        self.grace = min(GRACE, self.limit)
        self.rows, self.omitted, self.failures, self.notes = {}, {}, [], []

    def left(self):
        return self.limit - (time.monotonic() - self.begin)

    def omit(self, what, why):
        whats = self.omitted.setdefault(why, [])
        if what not in whats:
            whats.append(what)

    def fail(self, what, why):
        sentence = f"{what}: {why}"
        print(f"  FAILED {sentence}")
        self.failures.append(sentence)

    def note(self, sentence):
        if sentence not in self.notes:
            self.notes.append(sentence)

    def add(self, row, peer, figures):
        """Figures of a round."""
        for name, values in figures.items():
            if values:
                self.rows.setdefault(row, {}).setdefault(name, {}).setdefault(
                    peer, []).extend(values)

    def run(self, what, argv, environment=None, warm=(), parser=parse):
        """The figures of a program; what ends badly is told and kept, with what it said before."""
        keeper, environment = None, dict(environment or {})
        if self.left() <= 0:
            self.omit(what, f"the {self.limit:.0f} s of this part were over")
            return {}
        if warm:
            try:
                keeper = Warm(warm)
            except OSError as error:
                self.omit(what, f"no huge pages to keep warm ({error})")
                return {}
            environment.update(keeper.environment)
            environment["LD_PRELOAD"] = " ".join(
                [*environment.get("LD_PRELOAD", "").split(), self.session.warm_library])
        try:
            status, out, err = self.session.spawn(
                argv, self.left() + self.grace, environment, keeper.fds if keeper else ())
        except OSError as error:
            self.fail(what, str(error))
            return {}
        finally:
            if keeper:
                keeper.close()
        figures, comments = parser(out)
        said = " ".join(err.split()) or "it did not say why"
        for comment in comments:
            self.note(comment)
        if status is None:
            self.fail(what, f"stopped, {self.grace:.0f} s after the {self.limit:.0f} s of this "
                            "part were over")
        elif status == IMPOSSIBLE:
            self.omit(what, said)
        elif status:
            self.fail(what, f"status {status}: {said}")
        return figures

    def rounds(self, most, turns):
        """Calls each of @turns by turns, up to @most times, while there is time for all of them."""
        longest, most = 0, 1 if self.tiny else most
        for n in range(most):
            if n and self.left() < longest * 1.2:
                self.note(f"{n} of {most} rounds: for more there was no time")
                break
            start = time.monotonic()
            for turn in turns:
                turn()
            longest = max(longest, time.monotonic() - start)

    # ---- What came out -----------------------------------------------------------------------

    def report(self):
        return {
            "title": self.title, "seconds": round(time.monotonic() - self.begin, 1),
            "limit_s": self.limit, "omitted": self.omitted, "failures": self.failures,
            "notes": self.notes,
            "rows": {row: {figure: self.compared(peers) for figure, peers in figures.items()}
                     for row, figures in self.rows.items()},
        }

    @staticmethod
    def compared(peers):
        """Summaries by peer, with the ratio of medians to the first one."""
        done, first = {}, None
        for peer, values in peers.items():
            done[peer] = summary(values)
            first = done[peer]["median"] if first is None else first
            done[peer]["ratio"] = done[peer]["median"] / first if first else None
        return done

    def table(self, titles):
        """Prints figures that have a title, the others are in the file only."""
        report = self.report()
        print(f"\n{self.title}  ({report['seconds']:.0f} s)")
        for row, figures in report["rows"].items():
            for figure, peers in figures.items():
                if figure not in titles:
                    continue
                unit = UNITS.get(figure.rpartition("_")[2], "")
                head = f"{titles[figure]}{', ' + row if row else ''}"
                print(f"  {head:58}{'median ' + unit:>12}{'min':>10}{'max':>10}"
                      f"{'ratio':>9}{'n':>4}")
                for peer, s in peers.items():
                    ratio = "" if s["ratio"] is None else f"x{number(s['ratio'])}"
                    print(f"    {peer:56}{number(s['median']):>12}{number(s['min']):>10}"
                          f"{number(s['max']):>10}{ratio:>9}{s['n']:>4}")
        for sentence in self.notes:
            print(f"  {sentence}")
        for why, whats in self.omitted.items():
            print(f"  left out, {why}: {'; '.join(whats)}")
        for sentence in self.failures:
            print(f"  FAILED {sentence}")
        self.session.result["parts"][self.name] = report
        self.session.save()
