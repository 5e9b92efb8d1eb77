"""Lets the tests of ops import the helpers beside them: samples and sweep."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
