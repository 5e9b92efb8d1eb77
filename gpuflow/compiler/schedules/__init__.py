"""Schedules that several targets share, and the interface of all schedules (``schedule.py``).

Those of one target are in ``targets/*/codegen/schedules``, with the order in which they are tried.
"""
