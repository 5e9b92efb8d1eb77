"""Shared by the subcommands: an error that ends the command, a loader of extras, seconds.

Tests: tests/cli/test_cli_commands.py.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
from types import ModuleType
from typing import NoReturn

from gpuflow.base.installation import pip_install


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with a command that works.

    Attributes:
        example: the command; by default the one that prints the help.
    """

    example: str | None = None

    def error(self, message: str) -> NoReturn:
        """Print the usage, the message and the fix; exit with status 2."""
        self.print_usage(sys.stderr)
        fix = self.example or f"{self.prog} --help"
        self.exit(2, f"{self.prog}: error: {message}. Fix: {fix}\n")


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
            f"{package} must be installed; got: {error}. Fix: {pip_install(extra)}"
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
