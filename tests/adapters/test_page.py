# SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
"""The programs of libpool/ADAPTERS.md, as they stand there."""

import os
import re

from helpers import Case
from peers import peer

TREE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read(*names):
    with open(os.path.join(TREE, "libpool", *names), encoding="utf-8") as file:
        return file.read()


def blocks(section, language):
    """The programs below a heading."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", read("ADAPTERS.md"), re.M | re.S)[1]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


class Page(Case):
    def runs(self, section, package):
        peer(package)
        programs = blocks(section, "python")
        self.assertEqual(len(programs), 1)
        self.script("import gc, os\n" + programs[0], BINPOOL_OPTS="provider=thp",
                    PYOPENCL_COMPILER_OUTPUT="0")

    def test_pytorch(self):
        self.runs("PyTorch", "torch")

    def test_cupy(self):
        self.runs("CuPy", "cupy")

    def test_rmm(self):
        self.runs("RMM", "rmm")

    def test_pyopencl(self):
        self.runs("PyOpenCL", "pyopencl")

    def test_what_is_quoted_of_the_examples(self):
        for section, name in (("mimalloc", "mimalloc.c"), ("UMF", "umf.c")):
            quoted = blocks(section, "c")
            self.assertTrue(quoted)
            for lines in quoted:
                self.assertIn(lines, read("examples", name))
