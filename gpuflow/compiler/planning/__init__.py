"""Planning: symbolic plans of programs, and plans that are bound to sizes.

``symbolic_program.py`` is the entry, ``plan.py`` the result. See
docs/design/0054-symbolic-plan.md.
"""
