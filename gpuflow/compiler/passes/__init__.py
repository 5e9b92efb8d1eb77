"""Jaxpr passes before fusion. ``program.py`` has inlining, simplification, CSE and DCE.

A pass is a function from a Jaxpr to a new one; ``compiler/pipeline.py`` has their order.
"""
