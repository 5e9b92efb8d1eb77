"""The kernel cache on disk. Its code is executed, so read ``folder.py`` before changing it."""
