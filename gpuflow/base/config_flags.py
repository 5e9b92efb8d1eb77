"""Settings as command-line flags of absl, and all of them as a dict.

Tests: tests/test_config_flags.py.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import Any


class FlagsAndValues:
    """Methods of the config object that programs for JAX call.

    Subclasses define ``update``, ``read``, and ``names``.
    """

    _parsed_flags = False

    def names(self) -> dict[str, str]:
        """All settings: from their names in JAX to their own names."""
        raise NotImplementedError

    def choices_of(self, short: str) -> Iterable[Any]:
        """The allowed values of a setting; empty if any value is allowed."""
        raise NotImplementedError

    def update(self, name: str, value: Any) -> None:
        """Set a process-wide setting."""
        raise NotImplementedError

    def read(self, name: str) -> Any:
        """The value of a setting in this thread."""
        return getattr(self, name)

    _read = read

    @property
    def values(self) -> dict[str, Any]:
        """The values of all settings by their names in JAX, such as ``jax_enable_x64``."""
        return {name: self.read(short) for name, short in self.names().items()}

    @property
    def x64_enabled(self) -> bool:
        """Whether 64-bit dtypes are enabled in this thread."""
        return self.read("enable_x64")

    def config_with_absl(self) -> None:
        """Define a flag of absl for each setting, such as ``--jax_enable_x64``.

        Call it before ``app.run(main)``, which parses the command line: the flags on it are set
        before ``main`` runs.

        Raises:
            ImportError: if absl is not installed.
        """
        app, flags = _absl()
        for name, short in self.names().items():
            _define(flags, name, self.read(short), list(self.choices_of(short)))
        app.call_after_init(lambda: self.complete_absl_config(flags))

    def complete_absl_config(self, absl_flags: Any) -> None:
        """Apply the flags of a parsed command line.

        Args:
            absl_flags: the module ``absl.flags``.
        """
        for name, short in self.names().items():
            if name in absl_flags.FLAGS and absl_flags.FLAGS[name].present:
                self.update(short, absl_flags.FLAGS[name].value)

    def parse_flags_with_absl(self) -> None:
        """Apply flags ``--jax_...`` in ``sys.argv`` up to an argument ``--``.

        Calling it again does nothing. Programs with ``app.run`` call ``config_with_absl``.

        Raises:
            ImportError: if absl is not installed.
        """
        if self._parsed_flags:
            return
        before = itertools.takewhile(lambda argument: argument != "--", sys.argv)
        ours = [argument for argument in before if argument.startswith("--jax")]
        _, flags = _absl()
        self.config_with_absl()
        flags.FLAGS(["", *ours], known_only=True)
        self.complete_absl_config(flags)
        self._parsed_flags = True


def _absl() -> tuple[Any, Any]:
    try:
        from absl import app, flags
    except ImportError as error:
        raise ImportError(
            "[config] settings as flags need absl; got an environment without it. "
            "Fix: pip install absl-py."
        ) from error
    return app, flags


def _define(flags: Any, name: str, value: Any, choices: list[Any]) -> None:
    """One flag, of the type of its value."""
    text = "The setting of this name; see docs/settings.md."
    if isinstance(value, bool):
        flags.DEFINE_bool(name, value, text)
    elif isinstance(value, int):
        flags.DEFINE_integer(name, value, text)
    elif isinstance(value, float):
        flags.DEFINE_float(name, value, text)
    elif choices:
        flags.DEFINE_enum(name, value, choices, text)
    else:
        flags.DEFINE_string(name, value if isinstance(value, str) else None, text)
