"""Feedback of every source -> annotations: one reader per source, by name.

`registry` names them; `text2grad import` is the same from the command line, and `docs/feedback.md` has a command for
each.
"""
