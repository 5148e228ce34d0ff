"""ruff as a critic: every message of the linter, and the exact place that it is about.

ruff reads a program and never runs it. Comments that silence it (`# noqa`) do not count: a policy would learn to write
them. What has no place, such as the end of a file that comes too early, stays in words.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from text2grad.critics.programs.program_text import Program, program_in
from text2grad.errors import ConfigError, CriticError
from text2grad.types import Critique, Example, Span

TIMEOUT_S = 30.0


@dataclass
class RuffCritic:
    """Judges the Python of responses by ruff's rules. Its critiques have no outcome unless one is given.

    Attributes:
        select: rules or prefixes of rules; at first those that find errors and likely bugs, none of style.
        ignore: rules that do not count.
        clean_outcome: outcome of a response without messages.
        faulty_outcome: outcome of any other.

    Raises:
        ConfigError: if ruff is not installed.

    Example:
        >>> critique = RuffCritic()([Example("")], ["x = y + 1"])[0]
        >>> critique.feedback, critique.spans
        ('F821 Undefined name `y`: "y"', (Span(start=4, end=5, label='negative'),))
    """

    select: Sequence[str] = ("E9", "F", "B")
    ignore: Sequence[str] = ()
    clean_outcome: float | None = None
    faulty_outcome: float | None = None
    _command: list[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find ruff, and have it refuse rules that it does not know."""
        for name, rules in (("select", self.select), ("ignore", self.ignore)):
            if isinstance(rules, str):
                raise ConfigError(f"{name} is a list of rules, got one text: {rules!r}. Write [{rules!r}]")
        self._command = [_ruff(), "check", "--isolated", "--no-cache", "--ignore-noqa", "--output-format", "json"]
        for option, rules in (("--select", self.select), ("--ignore", self.ignore)):
            self._command += [option, ",".join(rules)] if rules else []
        self._check("")

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response.

        Raises:
            CriticError: if ruff fails.
        """
        return [self._critique(program_in(response)) for response in responses]

    def _critique(self, program: Program) -> Critique:
        messages = self._check(program.text)
        if not messages:
            return Critique("ruff finds nothing to say.", (), self.clean_outcome)
        lines: list[str] = []
        spans: set[Span] = set()
        for message in messages:
            start, end = (program.at(message[at]["row"], message[at]["column"]) for at in ("location", "end_location"))
            span = program.span(start, end)
            quote = "" if span is None else f": {json.dumps(program.text[start:end].strip(), ensure_ascii=False)}"
            lines.append(f"{message['code']} {message['message']}{quote}")
            spans |= set() if span is None else {span}
        return Critique("\n".join(lines), tuple(sorted(spans)), self.faulty_outcome)

    def _check(self, program: str) -> list[dict[str, Any]]:
        """Return ruff's messages on a program."""
        try:
            done = subprocess.run(
                [*self._command, "--stdin-filename", "response.py", "-"],
                input=program.encode("utf-8", "replace"),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CriticError(f"ruff did not answer within {TIMEOUT_S:g} seconds") from error
        if done.returncode > 1:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())
            raise ConfigError(f"ruff refuses: {said}")
        messages: list[dict[str, Any]] = json.loads(done.stdout)
        return messages


def _ruff() -> str:
    """Return the path of ruff: that of this Python's packages, or the one on the path."""
    try:
        from ruff import find_ruff_bin

        return str(Path(find_ruff_bin()))
    except (ImportError, FileNotFoundError):
        found = shutil.which("ruff")
    if found is None:
        raise ConfigError("RuffCritic needs ruff: pip install ruff")
    return found
