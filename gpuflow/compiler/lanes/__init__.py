"""Lane programs: loops with independent batch elements, as KernelIR statements of one kernel.

``loops.py`` is the pass, ``convert.py`` finds batch dimensions, ``evaluate.py`` emits the code. See
docs/design/0029-lanes.md.
"""
