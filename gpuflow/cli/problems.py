"""What the subcommands share: an error that ends the command, and the loader of extras."""

from __future__ import annotations

import importlib
from types import ModuleType


class CommandError(Exception):
    """Ends a command with one line on stderr and exit status 2."""


def require(module: str, extra: str) -> ModuleType:
    """Imports a module of an optional extra.

    Raises:
        CommandError: it is not installed; the message names the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise CommandError(
            f'{package} must be installed; got: {error}. Fix: pip install "gpuflow[{extra}]"'
        ) from error
