"""Lets the tests of checkpoints import the programs beside them, and those of groups."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "parallel")]
