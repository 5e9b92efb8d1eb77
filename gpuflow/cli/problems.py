"""Shared by the subcommands: an error that ends the command, a loader of extras, seconds."""

from __future__ import annotations

import argparse
import importlib
import math
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


def positive_seconds(text: str) -> float:
    """Parse a finite number of seconds above 0, for argparse.

    Raises:
        argparse.ArgumentTypeError: if the text is anything else; nan and inf are refused too.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"must be a finite number of seconds above 0; got {text}. Fix: 0.5"
        )
    return value
