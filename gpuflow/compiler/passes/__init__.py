"""Jaxpr passes before fusion. ``program.py`` has inlining, simplification, CSE and DCE."""
