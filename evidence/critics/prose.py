"""proselint as a critic of style: messages as feedback, their exact ranges as negative spans, and a list of one's own.

A response is plain text. Finished sentences in which nothing is marked are positive spans: otherwise the way out of all
marks would be to write less.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from text2grad.errors import ConfigError, require
from text2grad.feedback import inside_word
from text2grad.types import Critique, Example, Span

NOT_STYLE = ("annotations", "restricted", "typography")
"""Rules of proselint that are off unless `rules` names them: notes to oneself, basic English, and keyboards."""

_SENTENCE = re.compile(r"[^.!?\n]*\w[^.!?\n]*[.!?]+[\"”’')\]]*(?=\s|\Z)")
_PADDING = 1  # proselint's rules expect a line break before and after the text


class _Mark(NamedTuple):
    start: int
    end: int
    rule: str
    message: str


@dataclass
class ProseCritic:
    """Judges the style of responses by proselint's rules and by a list of phrases to avoid.

    Attributes:
        rules: names of rules or of their families, such as "cliches" or "weasel_words.very"; None for all that
            proselint switches on, without `NOT_STYLE`.
        ignore: names of rules or families to leave out.
        avoid: phrases → messages; whole words, in small or capital letters. Scripts without spaces have no such words.
        praise: mark finished sentences without a message as positive.

    Raises:
        ConfigError: if proselint is not installed, or it has no such rule.
    """

    rules: Sequence[str] | None = None
    ignore: Sequence[str] = ()
    avoid: Mapping[str, str] = field(default_factory=dict)
    praise: bool = True
    _checks: list[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Choose the rules, and refuse unknown names."""
        require("proselint", extra="dev", purpose="ProseCritic")
        from proselint.checks import __register__ as known
        from proselint.config import DEFAULT

        for name, chosen in (("rules", self.rules or ()), ("ignore", self.ignore)):
            if isinstance(chosen, str):
                raise ConfigError(f"{name} must be a list of rules, got the text {chosen!r}. Write [{chosen!r}]")
            for rule in chosen:
                _refuse_unknown(name, rule, known)
        if isinstance(self.avoid, str) or not isinstance(self.avoid, Mapping):
            raise ConfigError(
                f'avoid must map phrases to messages, such as {{"utilize": "Say: use."}}, got {self.avoid!r}'
            )
        if "" in {phrase.strip() for phrase in self.avoid}:
            raise ConfigError("avoid has an empty phrase, which would be found everywhere; remove it")
        usual = [name for name, is_on in DEFAULT["checks"].items() if is_on and name not in NOT_STYLE]
        wanted, left_out = usual if self.rules is None else self.rules, self.ignore
        self._checks = [one for one in known if _matches(one, wanted) and not _matches(one, left_out)]

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response."""
        return [self._critique(response) for response in responses]

    def _critique(self, response: str) -> Critique:
        marks = sorted({*self._linted(response), *self._avoided(response)})
        spans = {Span(mark.start, mark.end, "negative") for mark in marks}
        if self.praise:
            spans |= {
                Span(start, end, "positive")
                for start, end in _sentences(response)
                if not any(mark.start < end and start < mark.end for mark in marks)
            }
        lines = [
            f"{mark.rule}: {json.dumps(response[mark.start : mark.end], ensure_ascii=False)}: {mark.message}"
            for mark in marks
        ]
        return Critique("\n".join(lines) or "Nothing to say about the style.", tuple(sorted(spans)))

    def _linted(self, response: str) -> Iterator[_Mark]:
        """Yield proselint's messages; those about quoted text only where the rule asks for it, as proselint does."""
        from proselint.tools import LintFile

        if not response.strip():
            return
        file = LintFile("response", response)
        for check in self._checks:
            for found in check.check_with_flags(file.content):
                if not check.flags.allow_quotes and file.is_quoted_pos(found.span[0]):
                    continue
                start, end = (min(max(at - _PADDING, 0), len(response)) for at in found.span)
                text = response[start:end]
                start, end = start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())
                if start < end:
                    yield _Mark(start, end, found.check_path, found.message)

    def _avoided(self, response: str) -> Iterator[_Mark]:
        for phrase, message in self.avoid.items():
            words, place = re.compile(r"\s+".join(map(re.escape, phrase.split())), re.IGNORECASE), 0
            while found := words.search(response, place):
                start, end = found.span()
                whole = not (inside_word(response, start) or inside_word(response, end))
                if whole:
                    yield _Mark(start, end, "avoid", message)
                place = end if whole else start + 1


def _matches(check: Any, names: Sequence[str]) -> bool:
    return any(check.matches_partial(name) for name in names)


def _refuse_unknown(setting: str, rule: str, known: Sequence[Any]) -> None:
    if any(check.matches_partial(rule) for check in known):
        return
    paths = {check.path for check in known} | {check.path.partition(".")[0] for check in known}
    near = get_close_matches(rule, sorted(paths), n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    families = ", ".join(sorted({check.path.partition(".")[0] for check in known}))
    raise ConfigError(f"{setting}: proselint has no rule {rule!r}.{hint} Families of rules: {families}")


def _sentences(response: str) -> Iterator[tuple[int, int]]:
    for match in _SENTENCE.finditer(response):
        text = match.group()
        yield match.start() + len(text) - len(text.lstrip()), match.end()
