"""Builds of nothing, for tests of the processes that build kernels."""

import os
import time
from typing import NamedTuple

from gpuflow.compiler.cache.kernel_cache import Entry


class SmallBuild(NamedTuple):
    """A build that says which process did it."""

    key: str
    parent: int
    fails: str = ""

    def entry(self):
        """An entry; in other processes than the parent it may fail."""
        is_elsewhere = os.getpid() != self.parent
        if is_elsewhere and self.fails == "error":
            raise ValueError("as planned")
        if is_elsewhere and self.fails == "end":
            os._exit(3)
        if is_elsewhere and self.fails == "print":
            print("what a compiler prints")
        if not is_elsewhere:
            time.sleep(0.05)  # so that the other process gets some
        return Entry(b"code", "bin", "", self.key, info={"process": os.getpid()})
