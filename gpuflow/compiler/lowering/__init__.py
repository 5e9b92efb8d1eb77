"""Lowering: groups to KernelIR kernels, whose arguments are size expressions.

``lower.py`` is the entry. See docs/kernel_ir.md and docs/design/0025-symbols.md.
"""
