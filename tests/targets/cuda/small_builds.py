"""Builds of nothing, for tests of the processes that build kernels."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from gpuflow.compiler.cache.kernel_cache import CacheEntry


class SmallBuild(NamedTuple):
    """A build that says which process did it, and fails there or, by Ctrl-C, here.

    Here it waits until another process has begun one, if it has the path of a file for that.
    """

    key: str
    parent: int
    fails: str = ""
    begun_elsewhere: str = ""

    def entry(self):
        """An entry."""
        if os.getpid() == self.parent:
            if self.fails == "interrupt":
                raise KeyboardInterrupt
            deadline = time.monotonic() + 60
            while self.begun_elsewhere and not Path(self.begun_elsewhere).exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            return self._made()
        if self.begun_elsewhere:
            Path(self.begun_elsewhere).touch()
        if self.fails == "error":
            raise ValueError("as planned")
        if self.fails == "end":
            os._exit(3)
        if self.fails == "print":
            print("what a compiler prints")
        return self._made()

    def _made(self):
        return CacheEntry(b"code", "bin", "", self.key, metadata={"process": os.getpid()})
