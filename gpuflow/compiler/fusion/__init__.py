"""Fusion: equations to groups, each of which one kernel or one library call computes.

``fuse.py`` merges, ``legality.py`` decides whether one kernel can compute a group, ``regions.py``
and ``space.py`` are the data structures. See docs/design/0024-fusion.md.
"""
