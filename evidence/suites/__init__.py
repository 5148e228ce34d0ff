"""Suites beside those of text2grad; each registers itself, for `--suite evidence.suites.MODULE:NAME`."""
