"""Schedules that several targets share, and the interface of all schedules (``schedule.py``)."""
