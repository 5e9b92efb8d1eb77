"""``python -m gpuflow.as_jax script.py args``, or ``-m module args``: run it on gpuflow.

Tests: tests/test_as_jax.py.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from gpuflow.as_jax import install

USAGE = "usage: python -m gpuflow.as_jax (script.py | -m module) [arguments]"


def main(arguments: list[str]) -> int:
    """Run a script or a module as ``python`` would, with ``jax`` meaning gpuflow.

    Args:
        arguments: the command line after ``-m gpuflow.as_jax``.

    Returns:
        2 if there is nothing to run, else 0; exceptions of the script propagate.
    """
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    install()
    sys.argv = rest
    if as_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return 0
    if not Path(rest[0]).exists():
        print(
            f"[as_jax] the script must exist; got {rest[0]!r}. Fix: give the path of a file, or "
            "-m module.",
            file=sys.stderr,
        )
        return 2
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(rest[0]).resolve().parent)
    runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
