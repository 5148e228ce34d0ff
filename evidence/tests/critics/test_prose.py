"""proselint's messages and a list of one's own become spans of the response; its rules can be chosen."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from evidence.critics.prose import ProseCritic
from text2grad.errors import ConfigError, is_installed
from text2grad.types import Example, Span

needs_proselint = pytest.mark.skipif(
    not is_installed("proselint"), reason='proselint is not installed: pip install -e ".[dev]"'
)


def judged(response: str, **options: Any) -> tuple[str, list[tuple[str, str]]]:
    [critique] = ProseCritic(**options)([Example("")], [response])
    return critique.feedback, [(response[span.start : span.end], span.label[:3]) for span in critique.spans]


@needs_proselint
def test_messages_have_exact_places_and_clean_sentences_are_praised() -> None:
    response = "We utilize it. It is small. At the end of the day it works. And"
    feedback, spans = judged(response, rules=["cliches"], avoid={"utilize": "Say: use."})
    assert feedback == (
        'avoid: "utilize": Say: use.\n'
        "cliches.misc.garner: \"At the end of the day\": 'At the end of the day' is a cliché"
    )
    assert spans == [("utilize", "neg"), ("It is small.", "pos"), ("At the end of the day", "neg")]
    assert judged(response, rules=["cliches"], praise=False)[1] == [("At the end of the day", "neg")]


@needs_proselint
def test_rules_are_chosen_by_rule_or_family() -> None:
    response = 'A very unique "plan".'
    assert judged(response, praise=False)[1] == [("very", "neg"), ("very unique", "neg")]
    assert judged(response, praise=False, ignore=["weasel_words"])[1] == [("very unique", "neg")]
    assert judged(response, praise=False, rules=["weasel_words.very"])[1] == [("very", "neg")]
    assert judged(response, praise=False, rules=["typography"])[1] == [('"plan"', "neg")]  # off unless named


@needs_proselint
def test_quoted_text_is_left_alone_as_proselint_does() -> None:
    assert judged('He said "a very tall tree" to me.', praise=False) == ("Nothing to say about the style.", [])


@needs_proselint
def test_avoided_phrases_are_whole_words_in_any_case_and_spacing() -> None:
    spans = judged("In order  to win, REorder to. IN ORDER\nTO", rules=["archaism"], avoid={"in order to": "Say: to."})[
        1
    ]
    assert spans == [("In order  to", "neg"), ("IN ORDER\nTO", "neg")]
    assert judged("", avoid={"x": ""}) == ("Nothing to say about the style.", [])


@needs_proselint
def test_avoided_phrases_are_found_in_any_script_and_behind_words() -> None:
    def found(response: str, *phrases: str) -> list[str]:
        return [text for text, _ in judged(response, rules=["archaism"], avoid=dict.fromkeys(phrases, "No."))[1]]

    assert found("वह दीपिका की बात है", "का", "की") == ["की"]  # not in a word behind a vowel sign
    assert found("它非常好", "非常") == ["非常"]  # no spaces between words
    assert found("So nice!! It—he", "!!", "—", "it") == ["!!", "It", "—"]
    assert found("bar ba ba", "ba ba") == ["ba ba"]


@needs_proselint
@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.text(st.sampled_from("very unique. \n\"'…ab?!the"), max_size=60))
def test_spans_lie_in_any_response(response: str) -> None:
    [critique] = CRITIC[0]([Example("")], [response])
    assert all(0 <= span.start < span.end <= len(response) for span in critique.spans)
    positive = [span for span in critique.spans if span.label == "positive"]
    assert not any(
        one.start < other.end and other.start < one.end
        for one in positive
        for other in critique.spans
        if other != one and isinstance(other, Span)
    )


CRITIC = [ProseCritic()] if is_installed("proselint") else []


@needs_proselint
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"rules": ["cliche"]},
            "rules: proselint has no rule 'cliche'. Did you mean \"cliches\"? Families of rules: anno",
        ),
        ({"ignore": "cliches"}, "ignore must be a list of rules, got the text 'cliches'. Write ['cliches']"),
        ({"avoid": ["utilize"]}, "avoid must map phrases to messages, such as"),
        ({"avoid": {" ": "?"}}, "avoid has an empty phrase, which would be found everywhere; remove it"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        ProseCritic(**options)
    assert str(error.value).startswith(words)


def test_without_proselint_the_line_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "proselint", None)
    with pytest.raises(ConfigError, match=r'ProseCritic needs proselint, .* pip install -e "\.\[dev\]"'):
        ProseCritic()
