"""Programs that use random keys once or twice, for tests/random/test_key_reuse.py.

They stand in data/key_reuse.txt. Each is the body of a function of ``key``, over ``jax``,
``random``, ``lax`` and ``jnp``. JAX runs them for data/make_key_reuse.py: eagerly, and as a jitted
program.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "data" / "key_reuse.txt"


def programs() -> list[str]:
    """The bodies."""
    return [text.strip("\n") for text in PROGRAMS.read_text().split("\n--\n")]


def raises(package: Any, text: str, is_jitted: bool) -> str:
    """Whether a program is refused: "" where it runs, else the name of the error."""
    space = {
        "jax": package,
        "jnp": package.numpy,
        "lax": package.lax,
        "random": package.random,
    }
    exec("def program(key):\n" + textwrap.indent(text, "    "), space)
    function = package.jit(space["program"]) if is_jitted else space["program"]
    try:
        with package.debug_key_reuse(True):
            package.block_until_ready(function(package.random.key(0)))
    except Exception as error:
        return type(error).__name__
    return ""
