# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""Builds the extension, for the stable ABI where there is one, and takes the library along.

In the tree nothing is written beside the sources: what setuptools makes goes to build/python.
Without a compiler the package does with ctypes alone.
"""

import os
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
IN_TREE = os.path.exists(os.path.join(TREE, "libpool", "include", "binpool.h"))
BUILD = os.path.join(TREE, os.environ.get("BUILD", "build"))
LIBRARIES = ["libbinpool.so.0", "libbinpool-opencl.so.0", "libbinpool-cuda.so.0"]

# The buffer protocol is in it since 3.11; free-threaded Pythons have none.
STABLE = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")


class Build(build_ext):
    """As usual, and beside the extension the libraries of this tree."""

    def run(self):
        super().run()
        if not IN_TREE:
            return
        # Whoever has built them already gets them as they are.
        if subprocess.call(["make", "-s", "-C", TREE, f"BUILD={BUILD}", "lib"], stdout=sys.stderr):
            print("binpool: libbinpool cannot be built here; an installed one will be used",
                  file=sys.stderr)
            return
        package = os.path.join(HERE if self.inplace else self.build_lib, "binpool")
        os.makedirs(package, exist_ok=True)
        for name in LIBRARIES:
            path = os.path.join(BUILD, "lib", name)
            if os.path.exists(path):
                shutil.copy(path, package)


OPTIONS = {}
if STABLE:
    OPTIONS["bdist_wheel"] = {"py_limited_api": "cp311"}
if IN_TREE:
    BASE = os.path.join(BUILD, "python", "setuptools")
    os.makedirs(BASE, exist_ok=True)
    OPTIONS["build"] = {"build_base": BASE}
    OPTIONS["egg_info"] = {"egg_base": os.path.relpath(BASE, HERE)}

setup(
    cmdclass={"build_ext": Build},
    options=OPTIONS,
    ext_modules=[Extension(
        "binpool._native",
        sources=["src/module.c", "src/pool.c", "src/buffer.c", "src/orphan.c"],
        depends=["src/native.h"],
        include_dirs=[os.path.join("..", "include")] if IN_TREE else [],
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if STABLE else [],
        py_limited_api=STABLE,
        extra_compile_args=["-std=gnu11", "-O2", "-fvisibility=hidden"],
        libraries=["dl"],
        optional=True,
    )],
)
