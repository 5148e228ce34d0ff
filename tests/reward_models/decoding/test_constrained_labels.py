"""Word labels written under constraint: one for each word, in whole JSON, whatever the model says."""

import json
import random
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from constrained_writing import (
    SAID,
    WRITERS,
    accepts,
    babble,
    begin,
    grammar_accepts,
    reachable,
    skeleton,
    spelled_by,
    texts,
)
from marked_texts import marked
from text2grad.errors import ModelError
from text2grad.feedback import words_of
from text2grad.reward_models.decoding.constrained import ConstrainedCritique
from text2grad.reward_models.decoding.skeleton import START
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import (
    FORMS,
    OPENING,
    critique_from_labels,
    critique_target,
)
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example
from tokenizers_made_here import made, parameters

NAMES = ["tagged_words"]
EACH = pytest.mark.parametrize("form", NAMES)


@EACH
@pytest.mark.parametrize("name", parameters(WRITERS))
def test_random_logits_write_a_label_for_each_word(name: str, form: Any) -> None:
    tokenizer, rng, generator, kinds = made(name), random.Random(name), np.random.default_rng(0), set()
    for number, response in enumerate(texts(rng, 30)):
        write_feedback = number % 2 == 0
        critique = begin(tokenizer, response, room=10**6, write_feedback=write_feedback, form=form)
        assert critique.labels is not None
        least = int(critique.skeleton.cost[START] + critique.labels.cost[0])
        room = least + rng.choice([0, 1, 30])
        critique = begin(tokenizer, response, room=room, write_feedback=write_feedback, form=form)
        assert babble(critique, generator, marks=3.0) <= room
        keys = ["textual_feedback", FORMS[form].key, "outcome"]
        assert list(json.loads(critique.text)) == keys
        found = critique_from_labels(critique.text, response, FORMS[form])
        assert found.status == "ok"
        kinds |= {span.label for span in found.spans}
    assert kinds == {"positive", "negative"}


@pytest.mark.parametrize("response", ["", " ", "a", "a b", "é😀", 'a"\\ b'])
def test_every_labelling_can_be_written_and_nothing_else(response: str) -> None:
    for form in NAMES:
        known = FORMS[form]
        parts = {OPENING + known.opening, *known.around(response), "x", "null}", "-1", "}"} - {""}
        tokenizer = spelled_by([*sorted(parts), *known.signs, '"', " +"])  # one token spans a blank and a label
        words = [response[start:end] for start, end in words_of(response)]
        language = set()
        for labels in product([0, 1, -1], repeat=len(words)):
            value = " ".join(f"{word} {'=+-'[label]}" for word, label in zip(words, labels, strict=True))
            records = [{"textual_feedback": "", known.key: value, "outcome": outcome} for outcome in (None, -1)]
            language |= {json.dumps(one, ensure_ascii=False) for one in records}
        assert set(reachable(begin(tokenizer, response, write_feedback=False, form=form), 99)) == language


def test_the_least_number_of_tokens_by_hand() -> None:
    opening, end = OPENING + FORMS["tagged_words"].opening, '", "outcome": '
    tokens = [opening, "a ", " b ", "+", "-", "=", " ", "b", " +", end, *"0123456789", "null", "}", '"']

    def critique(room: int = 10**6) -> ConstrainedCritique:
        begun = begin(spelled_by(tokens), "a b", room=room, write_feedback=False, form="tagged_words")
        assert begun.labels is not None
        return begun

    assert critique().labels.cost[0] == 7  # a word and a label, twice; the end of the words; a digit, the brace
    assert critique().skeleton.cost[START] == 1
    tight = critique(room=8)
    ids = tight.skeleton.vocabulary.spelled
    assert all(tight.take(ids[data][0]) for data in (opening.encode(), b"a ", b"-"))
    assert not tight.take(ids[b" "][0]), "a blank alone costs a token more"
    assert tight.take(ids[b" b "][0])
    assert tight.take_from(np.zeros(tight.skeleton.vocabulary.size, np.float32)) in [
        ids[sign][0] for sign in (b"+", b"-", b"=")
    ]
    assert all(tight.take(ids[data][0]) for data in (end.encode(), b"7", b"}"))


@EACH
@given(
    case=marked(),
    feedback=st.text('ab "\n\té東😀\\', max_size=6),
    write_feedback=st.booleans(),
    outcome=st.none() | st.floats(-9999, 9999),
)
@settings(deadline=None, max_examples=60)
def test_every_target_of_training_can_be_written(
    form: Any, case: Any, feedback: str, write_feedback: bool, outcome: float | None
) -> None:
    response, spans = case
    said = Critique(feedback, spans, outcome=outcome)
    target = critique_target(said, response, form=form, write_feedback=write_feedback)
    assert accepts(begin(made("gpt2"), response, form=form, write_feedback=write_feedback), target)


@EACH
@pytest.mark.parametrize(
    ("label", "more", "accepted"), [(None, "", True), ("2", "", False), (None, " ", False), (None, "cut", False)]
)
@pytest.mark.parametrize("response", ["", "a cat", 'the "é" 😀\n\\n \x7f'])
def test_the_grammar_for_servers_is_the_same_language(
    form: Any, response: str, label: str | None, more: str, accepted: bool
) -> None:
    first, *later = FORMS[form].around(response)
    signs = [label or sign for sign, _ in zip(list(FORMS[form].signs) * 9, later, strict=False)]
    text = OPENING + "So." + FORMS[form].opening + first + "".join(map("".join, zip(signs, later, strict=True)))
    text += "-4.25}"
    text = text[:-1] if more == "cut" else text + more
    accepted = accepted or (label is not None and not later)  # without words there is no label that could be wrong
    assert accepts(begin(made("gpt2"), response, form=form), text) == accepted
    assert grammar_accepts(response, text, form=form) == accepted
    assert not grammar_accepts(response, text, form=form, write_feedback=False)


def test_the_grammar_leaves_room_for_the_labels() -> None:
    from text2grad.reward_models.decoding.grammar import critique_grammar

    # {"textual_feedback": " has 22 bytes,
    # '", "word_tags": "' has 17 bytes, "a + cat +" 9, '", "outcome": ' 14, the longest number and "}" 11: 100 − 73
    assert "text[max_tokens=27]: TEXT" in critique_grammar("a cat", CritiqueFormat("tagged_words"), max_tokens=100)


@pytest.mark.parametrize(
    ("number", "fits"),
    [(one, True) for one in ("null", "0", "-0", "-4", "12.5", "-999999.99", "0.25")]
    + [(one, False) for one in ("", "00", "01", "1.", "1.234", "1234567", "--1", "nul", "+1", "1e3", ".5")],
)
def test_an_outcome_is_null_or_a_short_number(number: str, fits: bool) -> None:
    text = f'{OPENING}", "word_tags": "a +", "outcome": {number}}}'
    assert accepts(begin(made("gpt2"), "a", form="tagged_words"), text) == fits
    assert grammar_accepts("a", text, form="tagged_words") == fits


@EACH
def test_an_untrained_model_labels_every_word_and_the_batch_changes_nothing(form: Any) -> None:
    tokenizer = made("llama3")
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    responses = [one[:40] for one in texts(random.Random(2), 4)]
    examples = [Example("Judge: " + "so " * number) for number in range(4)]
    how: dict[str, Any] = {"form": form, "constrain": True, "max_new_tokens": 300}
    critic = GenerativeRewardModel(model, tokenizer, CritiqueFormat(**how))
    found = critic(examples, responses)
    assert {one.status for one in found} == {"ok"}
    assert GenerativeRewardModel(model, tokenizer, CritiqueFormat(**how), rows_at_once=1)(examples, responses) == found
    votes = GenerativeRewardModel(model, tokenizer, CritiqueFormat(votes=3, **how))
    drawn = votes.draw(examples[:3], responses[:3])
    assert {one.status for own in drawn for one in own} == {"ok"}
    assert len({one.spans for one in drawn[1]}) > 1


def test_a_response_without_room_for_its_labels_is_not_judged() -> None:
    tokenizer = made("gpt2")
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    longer, shorter = "the cat sat on the mat " * 4, "the cat"
    labels = begin(tokenizer, longer, form="tagged_words").labels  # type: ignore[attr-defined]
    least = int(skeleton(tokenizer, form="tagged_words").cost[START] + labels.cost[0])
    for room, ok in ((least, "ok"), (least - 1, "unparsable")):
        critic = GenerativeRewardModel(model, tokenizer, CritiqueFormat("tagged_words", max_new_tokens=room))
        statuses = [one.status for one in critic([Example("Judge: ")] * 2, [longer, shorter])]
        assert statuses == [ok, "ok"]


def test_a_tokenizer_of_whole_words_cannot_spell_labels_of_other_words() -> None:
    tokenizer = word_tokenizer(SAID[:1], ["{", "}", '"'])
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)

    with pytest.raises(ModelError, match="no tokens for the JSON of a critique"):
        GenerativeRewardModel(model, tokenizer, CritiqueFormat("tagged_words"))
