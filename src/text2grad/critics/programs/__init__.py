"""Critics that judge programs by running or reading them: unit tests and ruff.

unit_tests      the outcome of unit tests, and the expressions that fail them
failing_lines   the lines of a program that only failing tests run
ruff_critic     the messages of the linter ruff
program_text    the program in a response, and the characters of its lines and expressions

May import `errors`, `types` and the rest of `critics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
