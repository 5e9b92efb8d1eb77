"""The command `gpuflow`: `demo`, `bench`, `doctor`, `launch` and `smi`.

Tests: tests/cli/test_cli_commands.py, tests/cli/test_launch.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gpuflow.base.config import config
from gpuflow.cli import bench, demo, doctor, launch, smi
from gpuflow.cli.problems import CommandError, Parser
from gpuflow.targets.cuda.codegen.toolchain import CudaToolchainError
from gpuflow.version import __version__

# Exit status of a command that Ctrl-C ended: 128 + SIGINT.
INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands; each sets `run`, a function of the parsed arguments."""
    parser = Parser(prog="gpuflow", description="A GPU-first array framework.")
    parser.add_argument("--version", action="version", version=f"gpuflow {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (demo, bench, doctor, launch, smi):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand, or prints the help without one; returns the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    if config.problems and options.run is not doctor.run:  # doctor reports them among others
        print("\n".join(config.problems), file=sys.stderr)
        return 2
    try:
        return options.run(options)
    except (CommandError, CudaToolchainError) as error:
        print(f"gpuflow {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"gpuflow {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
