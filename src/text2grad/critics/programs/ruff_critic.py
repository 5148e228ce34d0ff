"""ruff as a critic: the messages of the linter as feedback, and their positions as spans.

ruff reads a program and never runs it. Comments that silence ruff (`# noqa`) are ignored, since a policy would learn to
write them. A message without a position, such as an unexpected end of file, is feedback without a span.
"""

import json
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from text2grad.critics.programs.program_text import Program, judged_program
from text2grad.errors import ConfigError
from text2grad.types import Critique, Example, Span

TIMEOUT_S = 30.0


@dataclass
class RuffCritic:
    """Judges the Python code of responses by ruff's rules.

    Attributes:
        select: rules or prefixes of rules; by default the rules for errors and likely bugs, none for style.
        clean_outcome: outcome of a response without messages; None sets no outcome.
        faulty_outcome: outcome of any other response.

    Raises:
        ConfigError: if ruff is not installed.

    Example:
        >>> critique = RuffCritic()([Example("")], ["x = y + 1"])[0]
        >>> critique.feedback, critique.spans
        ('F821 Undefined name `y`: "y"', (Span(start=4, end=5, label='negative'),))
    """

    select: Sequence[str] = ("E9", "F", "B")
    clean_outcome: float | None = None
    faulty_outcome: float | None = None
    _command: list[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find ruff, beside this Python or else on the PATH, and let it refuse unknown rules."""
        rules = self.select
        if isinstance(rules, str):
            raise ConfigError(f"select must be a list of rules, got the text {rules!r}. Write [{rules!r}]")
        path = shutil.which("ruff", path=sysconfig.get_path("scripts")) or shutil.which("ruff")
        if path is None:
            raise ConfigError("RuffCritic needs ruff: pip install ruff")
        self._command = [path, "check", "--isolated", "--no-cache", "--ignore-noqa", "--output-format", "json"]
        self._command += [*(["--select", ",".join(rules)] if rules else []), "--stdin-filename", "response.py", "-"]
        self._check("")

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response."""
        programs = map(judged_program, examples, responses)
        return [self._critique(program, said=response) for program, response in zip(programs, responses, strict=True)]

    def _critique(self, program: Program, *, said: str) -> Critique:
        if said.strip() and not program.text.strip():
            return Critique("The response ends within its reasoning.", (), self.faulty_outcome)
        messages = self._check(program.text)
        if not messages:
            return Critique("ruff finds nothing to say.", (), self.clean_outcome)
        lines, spans = list[str](), set[Span]()
        mark = program.text.startswith("\ufeff")  # a byte order mark, which ruff leaves out of the first row
        for message in messages:
            places = (message[name] for name in ("location", "end_location"))
            start, end = (program.at(at["row"], at["column"] + (mark and at["row"] == 1)) for at in places)
            lines.append(f"{message['code']} {message['message']}")
            if span := program.span(start, end):
                lines[-1] += f": {program.quote(span)}"
                spans.add(span)
        return Critique("\n".join(lines), tuple(sorted(spans)), self.faulty_outcome)

    def _check(self, program: str) -> list[dict[str, Any]]:
        """Return ruff's messages about a program."""
        text = program.encode("utf-8", "replace")
        done = subprocess.run(self._command, input=text, capture_output=True, timeout=TIMEOUT_S, check=False)
        if done.returncode not in (0, 1):
            errors = " ".join(done.stderr.decode("utf-8", "replace").split())
            raise ConfigError(f"ruff fails: {errors}")
        messages: list[dict[str, Any]] = json.loads(done.stdout)
        return messages
