"""Handwritten kernels, CUDA C and Numba, for what the compiler does not generate well.

Empty so far: every kernel that gpuflow runs today is generated. README.md states what a kernel
has to bring to be put here.
"""
