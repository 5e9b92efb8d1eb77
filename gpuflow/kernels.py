"""Handwritten kernels; in a checkout they are in ``kernels/``, next to this package.

An installation has them as the folder ``gpuflow/kernels``, which Python then takes instead of this
file (setup.py), so ``import gpuflow.kernels.attention`` is right in both.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[1] / "kernels")]
