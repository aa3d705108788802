# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""That the package is what it says, and describes the library as its header does."""

import ctypes
import glob
import os
import re
import subprocess
import sys
import tempfile

import binpool
from binpool import _library
from helpers import Case

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INCLUDE = os.path.join(TREE, "libpool", "include")


class Package(Case):
    def test_structs_are_the_header_s(self):
        structs = {"options": _library.Options, "alloc_opts": _library.AllocOpts,
                   "buf": _library.Buf, "stats": _library.Stats, "extent": _library.Extent,
                   "allocator_ops": _library.AllocatorOps,
                   "registrar_ops": _library.RegistrarOps, "fence": _library.Fence,
                   "share": _library.Share, "ptr_info": _library.PtrInfo}
        lines, want = [], []
        for name, struct in structs.items():
            for field, _ in struct._fields_:
                of = f"struct binpool_{name}, {field}"
                lines.append(f'printf("%zu %zu\\n", offsetof({of}), '
                             f"sizeof(((struct binpool_{name} *)0)->{field}));")
                f = getattr(struct, field)
                want.append(f"{f.offset} {f.size}")
        # Of what is filled all is told: a later version's counter is missing here until it is added.
        for name in ("stats", "buf", "ptr_info"):
            lines.append(f'printf("%zu\\n", sizeof(struct binpool_{name}));')
            want.append(str(ctypes.sizeof(structs[name])))
        constants = {"BINPOOL_" + name: getattr(_library, name) for name in (
            "KIND_HOST", "POOL_VERBOSE", "POOL_STRICT_NODE", "POOL_LEAKS",
            "POOL_REAPER", "POOL_STRICT", "POOL_DEBUG", "REGISTRAR_OPTIONAL", "KIND_HANDLE", "BUF_ZEROED", "BUF_WAIT",
            "FENCE_EVENTFD", "FENCE_CALLBACK", "UNKNOWN", "CACHE_AUTO",
            "REPORT_TABLE", "REPORT_KEYS")}
        for kind in ("PROVIDER", "CLASSES"):
            for name, value in getattr(_library, kind + "S" * (kind == "PROVIDER")).items():
                constants[f"BINPOOL_{kind}_{name.upper()}"] = value
        for name, value in constants.items():
            lines.append(f'printf("%llu\\n", (unsigned long long){name});')
            want.append(str(value))
        with tempfile.TemporaryDirectory() as d:
            source, program = os.path.join(d, "s.c"), os.path.join(d, "s")
            with open(source, "w", encoding="utf-8") as f:
                f.write("#include <stdio.h>\n#include <binpool.h>\nint main(void) {\n"
                        + "\n".join(lines) + "\nreturn 0; }\n")
            subprocess.run([os.environ.get("CC", "cc"), "-I", INCLUDE, source,
                            "-o", program], check=True)
            got = subprocess.run([program], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout.split("\n")[:-1]
        self.assertEqual(got, want)

    def test_functions_are_the_header_s(self):
        """As many arguments, each an int, a number or a pointer where the header has one."""
        text = ""
        for path in glob.glob(os.path.join(INCLUDE, "*.h")):
            with open(path, encoding="utf-8") as f:
                text += re.sub(r"/\*.*?\*/", "", f.read(), flags=re.DOTALL)
        sizes = {"int": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8, "size_t": 8, "void": 0}

        def size_of(c):
            if "*" in c:
                return 8
            words = [w for w in c.replace("const", "").split() if w in sizes]
            return sizes[words[0]]

        def of_ctypes(t):
            return ctypes.sizeof(t) if t else 0

        for name, (result, *arguments) in _library.FUNCTIONS.items():
            m = re.search(r"^([\w *]+?)\bbinpool_" + name.rstrip("_") + r"\(([^;]*)\);", text, re.MULTILINE)
            self.assertTrue(m, f"no header has binpool_{name}")
            listed = [] if m.group(2).strip() == "void" else m.group(2).split(",")
            self.assertEqual([size_of(a) for a in listed], [of_ctypes(a) for a in arguments], name)
            self.assertEqual(size_of(m.group(1)), of_ctypes(result), name)

    def test_extension_is_for_the_stable_abi(self):
        folder = os.path.dirname(binpool.__file__)
        names = [os.path.basename(p) for p in glob.glob(os.path.join(folder, "_native*"))]
        self.assertEqual(names, ["_native.abi3.so"])
        libraries = sorted(os.path.basename(p) for p in glob.glob(os.path.join(folder, "lib*")))
        self.assertEqual(libraries, ["libbinpool-cuda.so.0", "libbinpool-opencl.so.0",
                                     "libbinpool.so.0"])

    def run_python(self, text, **environment):
        env = {k: v for k, v in os.environ.items() if not k.startswith("BINPOOL_")}
        done = subprocess.run([sys.executable, "-c", text], env={**env, **environment}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.stdout.strip().split("\n")[-1]

    def test_choice_of_backend(self):
        tell = "import binpool; print(binpool.backend, '-', binpool.backend_reason)"
        self.assertTrue(self.run_python(tell).startswith("native - "))
        self.assertTrue(self.run_python(tell, BINPOOL_PYTHON_BACKEND="ctypes").startswith(
            "ctypes - BINPOOL_PYTHON_BACKEND says so"))
        self.assertIn("native or ctypes", self.run_python(tell, BINPOOL_PYTHON_BACKEND="fast"))
        # Where the extension is missing it is said, and all works.
        missing = ("import sys; sys.modules['binpool._native'] = None; " + tell +
                   "; assert binpool.MemoryPool('x', 'thp')(10).size == 10")
        self.assertTrue(self.run_python(missing).startswith(
            "ctypes - the extension cannot be used"))
        self.assertIn("ImportError", self.run_python(missing, BINPOOL_PYTHON_BACKEND="native")
                      .replace("ModuleNotFoundError", "ImportError"))

    def test_choice_of_library(self):
        tell = "import binpool; print(binpool.backend_reason)"
        # Nothing is installed here, so that is the one that came along.
        self.assertIn("binpool/libbinpool.so.0", self.run_python(tell))
        path = os.environ["BINPOOL_LIBRARY"]
        self.assertTrue(self.run_python(tell, BINPOOL_LIBRARY=path).endswith(path))
        said = self.run_python(tell, BINPOOL_LIBRARY="/nowhere/libbinpool.so.0")
        self.assertIn("ImportError", said)
        self.assertIn("BINPOOL_LIBRARY", said)
        # Not any library will do.
        self.assertIn("undefined symbol", self.run_python(tell, BINPOOL_LIBRARY="libc.so.6"))

    def test_readmes(self):
        """Their programs run as they stand there."""
        for readme in ("README.md", "libpool/python/README.md"):
            with open(os.path.join(TREE, readme), encoding="utf-8") as f:
                program = "\n".join(re.findall(r"^```python\n(.*?)^```", f.read(),
                                               re.MULTILINE | re.DOTALL))
            self.assertIn("MemoryPool", program)
            self.script("os.environ['BINPOOL_OPTS'] = 'provider=thp'\n" + program)

    def test_beside_others(self):
        """Threads' memory of what is loaded late is short; another library has taken most of it."""
        with tempfile.TemporaryDirectory() as d:
            source, hog = os.path.join(d, "hog.c"), os.path.join(d, "hog.so")
            with open(source, "w", encoding="utf-8") as f:
                f.write('__thread char hog[1400] __attribute__((tls_model("initial-exec")));\n'
                        "char *get(void) { return hog; }\n")
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", hog],
                           check=True)
            said = self.run_python(f"import ctypes; ctypes.CDLL({hog!r}); import binpool; "
                                   "print(binpool.MemoryPool('x', 'thp')(10).size)",
                                   BINPOOL_LIBRARY=os.environ["BINPOOL_LIBRARY"])
        self.assertEqual(said, "10")

    def test_every_member_is_documented(self):
        for cls in (binpool.MemoryPool, binpool.PooledBuffer, binpool.MemoryPoolStatistics,
                    binpool.Share, binpool.Import, binpool.Registrar):
            for name in dir(cls):
                if not name.startswith("_") and name not in ("name", "mantissa_bits", "verbose",
                                                             "push_alloc", "push_free",
                                                             "push_return", "push_reuse"):
                    self.assertTrue(getattr(cls, name).__doc__, f"{cls.__name__}.{name}")
        for cls in (binpool.MemoryPool, binpool.PooledBuffer):
            self.assertTrue(cls.__doc__)
