"""Lets the tests of these folders import each other's helper modules, as ``cuda_zoo``."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / room) for room in ("cpu", "cuda", "cuda_sim")]
