"""Critics that are programs: unit tests and the linter ruff."""
