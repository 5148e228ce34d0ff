"""The suites of `text2grad evaluate policy`, one kind in each module."""
