"""Write scipy_signatures.json: the parameters of jax.scipy.special and jax.scipy.stats.

Run it where JAX is installed; the tests read what it wrote.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from types import ModuleType

import jax
import jax.scipy.special
import jax.scipy.stats

_TARGET = Path(__file__).with_name("scipy_signatures.json")


def _parameters(function: object) -> list[str]:
    return [
        f"{'*' if p.kind is p.KEYWORD_ONLY else ''}{p.name}"
        + ("" if p.default is p.empty else f"={p.default!r}")
        for p in inspect.signature(function).parameters.values()
    ]


def _functions(module: ModuleType, prefix: str) -> dict[str, list[str]]:
    signatures = {}
    for name in sorted(dir(module)):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if isinstance(value, ModuleType):
            if value.__name__.startswith(module.__name__):
                signatures |= _functions(value, f"{prefix}.{name}")
        elif callable(value):
            signatures[f"{prefix}.{name}"] = _parameters(value)
    return signatures


def main() -> None:
    """Write the file."""
    signatures = {
        **_functions(jax.scipy.special, "special"),
        **_functions(jax.scipy.stats, "stats"),
    }
    stored = {"jax": jax.__version__, "functions": signatures}
    _TARGET.write_text(json.dumps(stored, indent=0) + "\n")


if __name__ == "__main__":
    main()
