"""The suites of `text2grad evaluate`, one kind in each module."""
