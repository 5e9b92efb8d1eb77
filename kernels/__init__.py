"""Handwritten kernels, for what the compiler does not generate well: see README.md."""
