"""Scripts here that generate a file write it, or compare it with ``--check``."""

from __future__ import annotations

import sys
from pathlib import Path


def write_or_check(output: Path, text: str) -> int:
    """Write ``text``, or with ``--check`` in the command line give 1 where the file differs."""
    if "--check" in sys.argv[1:]:
        return int(output.read_text(encoding="utf-8") != text)
    output.write_text(text, encoding="utf-8")
    return 0
