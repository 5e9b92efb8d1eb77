"""What a module says when asked for a name that it does not have."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn


def missing_name(module: str, short: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """A module ``__getattr__`` that names close matches, or everything public.

    Args:
        module: the module's name.
        short: what users call it, such as ``jnp``.
        names: its names; private ones are not shown.
    """

    def __getattr__(name: str) -> Any:
        public = sorted(known for known in names if not known.startswith("_"))
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        close = difflib.get_close_matches(name, public, 3, 0.6)
        mend = " or ".join(f"{short}.{match}" for match in close) or f"one of {', '.join(public)}"
        raise AttributeError(
            f"[{module}] the name must be one that exists; got {name!r}. Fix: use {mend}."
        )

    return __getattr__
