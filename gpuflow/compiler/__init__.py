"""Compiler: jaxprs to plans of kernels and library calls. It imports no platform and no array.

A program passes through ``lanes``, ``passes``, ``fusion``, ``lowering``, ``schedules`` and
``planning``. Start with ``pipeline.py``; ``target.py`` is the interface to platforms.
"""
