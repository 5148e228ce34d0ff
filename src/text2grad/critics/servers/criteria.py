r"""Criteria of a rubric → what the judge is asked, and its answer → spans with the criterion as their category.

Each criterion has its own reason, quotes and verdict in the answer:

    {"criteria": {"tone": {"reason": "...", "good_spans": ["..."], "poor_spans": ["..."], "verdict": "met"}, ...}}

The quotes of each are found for themselves, so that two criteria may quote the same words. The weight of a criterion is
the weight of its spans, |δ| of their tokens. Reasons and verdicts are the critique in words. An answer without
"criteria" is read as any other critique; its spans have no category.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from text2grad.feedback import (
    CutObject,
    Match,
    critique_from_text,
    locate_critique,
    parse_critique_object,
    read_objects,
    without_reasoning,
)
from text2grad.types import Critique, Span, Status

VERDICTS = ("met", "partly", "not met")
SPANS = ("good_spans", "poor_spans")
_OF_QUOTES = ("quote", "span", "text", "turn", "start", "end", "reason", "severity")


class Criterion(NamedTuple):
    """One question of a rubric.

    Attributes:
        name: the category of its spans, unique in the rubric.
        ask: what the judge is asked.
        weight: |δ| of the tokens of its spans.
    """

    name: str
    ask: str
    weight: float = 1.0


def listed(criteria: Sequence[Criterion]) -> list[str]:
    """Return what the judge is asked, one line for each criterion."""
    return [f'"{each.name}"' + (f": {each.ask}" if each.ask != each.name else "") for each in criteria]


def form_of(criteria: Sequence[Criterion], spans: str, *, reasoning: bool) -> str:
    """Return the keys of the answer with what stands in each.

    Args:
        criteria: of the rubric.
        spans: the two lists of quotes as the form shows them.
        reasoning: whether a reason comes before the quotes.
    """
    reason = '"reason": "what is good, what is poor, where, and why", ' * reasoning
    quotes = " ".join(spans.split())
    verdict = f'"verdict": "{" | ".join(VERDICTS)}"'
    rows = [f"    {json.dumps(each.name, ensure_ascii=False)}: {{{reason}{quotes}, {verdict}}}" for each in criteria]
    return '  "criteria": {\n' + ",\n".join(rows) + "\n  }"


def schema_of(criteria: Sequence[Criterion], quotes: Mapping[str, Any], *, reasoning: bool) -> dict[str, Any]:
    """Return the JSON schema of the value of "criteria"; `quotes` is that of a list of quotes."""
    parts: dict[str, Any] = {"reason": {"type": "string"}} if reasoning else {}
    parts |= {**dict.fromkeys(SPANS, quotes), "verdict": {"type": "string", "enum": [*VERDICTS]}}
    whole = {"type": "object", "properties": parts, "required": [*parts], "additionalProperties": False}
    names = [each.name for each in criteria]
    return {
        "type": "object",
        "properties": dict.fromkeys(names, whole),
        "required": names,
        "additionalProperties": False,
    }


def critique_by_criterion(
    text: str, response: str, criteria: Sequence[Criterion], *, match: Match = "exact"
) -> Critique:
    """Return the critique in the text of an answer.

    Args:
        text: of the answer, also in prose, in fences, after thoughts, or cut off.
        response: what is judged.
        criteria: of the rubric; others that the answer names are left out.
        match: how quotes are found.

    Example:
        >>> answer = '{"criteria": {"facts": {"reason": "It is Nice.", "poor_spans": ["Lyon"], "verdict": "not met"}}}'
        >>> critique = critique_by_criterion(answer, "I live in Lyon.", [Criterion("facts", "Is it true?", 0.5)])
        >>> critique.feedback, critique.spans[0].category, critique.spans[0].weight
        ('facts (not met): It is Nice.', 'facts', 0.5)
    """
    whole = critique_from_text(text, response, match=match)
    given = next(_answers(without_reasoning(text), criteria), None)
    if given is None:
        return whole
    words, spans, unmatched = list[str](), list[Span](), list[str]()
    for criterion in criteria:
        judged = given.get(criterion.name.casefold(), {})
        reason = reason if isinstance(reason := judged.get("reason"), str) else ""
        verdict = f" ({judged['verdict']})" if judged.get("verdict") in VERDICTS else ""
        words += [f"{criterion.name}{verdict}: {reason}".rstrip(": ")] if reason or verdict else []
        quotes = {name: _quotes(judged, name) for name in SPANS}
        located = locate_critique(parse_critique_object(quotes), response, match=match)
        weight = criterion.weight if criterion.weight != 1 else None
        about: dict[str, Any] = {"category": criterion.name, "weight": weight}
        spans += [replace(span, **about, reason=span.reason or reason or None) for span in located.spans]
        unmatched += located.unmatched
    status: Status = "ok" if whole.status == "ok" else "repaired"
    return Critique("\n".join(words), tuple(sorted(spans)), status=status, unmatched=tuple(unmatched))


def _answers(text: str, criteria: Sequence[Criterion]) -> Iterator[dict[str, Mapping[str, Any]]]:
    """Yield what the objects of a text say of criteria, by their names in small letters; no cut ones."""
    names = {criterion.name.casefold() for criterion in criteria}
    for reading in chain(read_objects(text), read_objects(text, lenient_ends=True)):
        said = reading.value.get("criteria", reading.value)
        if isinstance(said, list):  # of objects that name their criterion
            said = {str(each.get("name", "")): each for each in said if isinstance(each, Mapping)}
        pairs = said.items() if isinstance(said, Mapping) else ()
        whole = {name.casefold(): each for name, each in pairs if isinstance(each, Mapping)}
        given = {name: each for name, each in whole.items() if not isinstance(each, CutObject)}
        if names & given.keys():
            yield given


def _quotes(judged: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list of quotes, without what a model has no word in, such as the weight of a quote and its rater."""
    given = judged.get(name) or []
    return [
        {key: value for key, value in quote.items() if key.casefold() in _OF_QUOTES}
        if isinstance(quote, dict)
        else quote
        for quote in (given if isinstance(given, list) else [given])
    ]
