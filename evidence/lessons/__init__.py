"""Measures of the ready lessons, which share no rule with the critics of the lessons."""
