"""The only definition of the version; setup, `gpuflow.__version__` and the CLI read it."""

__version__ = "0.1.0"
