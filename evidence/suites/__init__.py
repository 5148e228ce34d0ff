"""Suites beside those of text2grad; each registers itself: `text2grad evaluate --suite evidence.suites.MODULE:NAME`."""
