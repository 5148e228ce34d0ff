"""Word labels written under constraint: one for each word, in whole JSON, whatever the model says."""

import json
import random
from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
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
    written,
)
from marked_texts import marked
from text2grad.align import encode
from text2grad.errors import ModelError
from text2grad.reward_models.decoding.constrained import ConstrainedChoice, ConstrainedCritique, ConstrainedLabels
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.skeleton import START
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import (
    LABEL_FORMS,
    OPENING,
    WITH_OUTCOME,
    critique_from_labels,
    critique_target,
)
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique, Example, Span
from tokenizers_made_here import made

FORMS = ["dense", "scores", "tagged_words", "tagged_sentences", "numbered_sentences"]
EACH = pytest.mark.parametrize("form", FORMS)


@EACH
@pytest.mark.parametrize("name", WRITERS)
def test_random_logits_write_a_label_for_each_word(name: str, form: Any) -> None:
    tokenizer, rng, generator, kinds = made(name), random.Random(name), np.random.default_rng(0), set()
    for number, response in enumerate(texts(rng, 30)):
        write_feedback = number % 2 == 0
        critique = begin(tokenizer, response, room=10**6, write_feedback=write_feedback, form=form)
        assert isinstance(critique, ConstrainedLabels)
        least = int(critique.skeleton.cost[START] + critique.labels.cost[0])
        room = least + rng.choice([0, 1, 30])
        critique = begin(tokenizer, response, room=room, write_feedback=write_feedback, form=form)
        assert babble(critique, generator, marks=3.0) <= room
        keys = ["textual_feedback", LABEL_FORMS[form].key, *(["outcome"] if form in WITH_OUTCOME else [])]
        assert list(json.loads(critique.text)) == keys
        found = critique_from_labels(critique.text, response, LABEL_FORMS[form])
        assert found.status == "ok"
        kinds |= {span.label for span in found.spans}
    assert kinds == {"positive", "negative"}


@pytest.mark.parametrize("response", ["", " ", "a", "a b", "é😀", 'a"\\ b'])
def test_every_labelling_can_be_written_and_nothing_else(response: str) -> None:
    for form in FORMS:
        known = LABEL_FORMS[form]
        parts = {OPENING + known.opening, *known.around(response), "x", "null}", "-1", "}"} - {""}
        tokenizer = spelled_by([*sorted(parts), *known.signs, '"', " +"])  # one token spans a blank and a label
        words = [response[start:end] for start, end in known.split(response)]
        if form == "numbered_sentences":
            words = [str(number) for number, _ in enumerate(words, start=1)]
        language = set()
        for labels in product([0, 1, -1], repeat=len(words)):
            value: Any = [[word, label] for word, label in zip(words, labels, strict=True)]
            if form == "dense":
                value = " ".join("0+-"[label] for label in labels)
            if form.startswith(("tagged", "numbered")):
                value = " ".join(f"{word} {'=+-'[label]}" for word, label in zip(words, labels, strict=True))
            record = {"textual_feedback": "", known.key: value}
            records = [{**record, "outcome": one} for one in (None, -1)] if known.outcome else [record]
            language |= {json.dumps(one, ensure_ascii=False) for one in records}
        assert set(reachable(begin(tokenizer, response, write_feedback=False, form=form), 99)) == language


def test_the_least_number_of_tokens_by_hand() -> None:
    opening = OPENING + LABEL_FORMS["dense"].opening
    critique = begin(
        spelled_by([opening, "+", "-", "0", " ", " +", '"', "}"]), "a b c", write_feedback=False, form="dense"
    )
    assert isinstance(critique, ConstrainedLabels)
    assert critique.labels.cost[0] == 5  # a label, a blank with a label twice, the mark, the brace
    assert critique.skeleton.cost[START] == 1
    tight = begin(
        spelled_by([opening, "+", "-", "0", " ", " +", '"', "}"]), "a b c", room=6, write_feedback=False, form="dense"
    )
    ids = tight.skeleton.vocabulary.spelled
    assert tight.take(ids[opening.encode()][0])
    assert tight.take(ids[b"-"][0])
    assert not tight.take(ids[b" "][0]), "a blank alone costs a token more"
    assert tight.take(ids[b" +"][0])
    assert tight.take_best(np.zeros(tight.skeleton.vocabulary.size, np.float32)) == ids[b" +"][0]
    assert written(tight, '"}')


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
    first, *later = LABEL_FORMS[form].around(response)
    signs = [label or sign for sign, _ in zip(list(LABEL_FORMS[form].signs) * 9, later, strict=False)]
    text = OPENING + "So." + LABEL_FORMS[form].opening + first + "".join(map("".join, zip(signs, later, strict=True)))
    text += "-4.25}" if form in WITH_OUTCOME else ""
    text = text[:-1] if more == "cut" else text + more
    accepted = accepted or (label is not None and not later)  # without words there is no label that could be wrong
    assert accepts(begin(made("gpt2"), response, form=form), text) == accepted
    assert grammar_accepts(response, text, form=form) == accepted
    assert not grammar_accepts(response, text, form=form, write_feedback=False)


def test_the_grammar_leaves_room_for_the_labels() -> None:
    from text2grad.reward_models.decoding.grammar import critique_grammar

    # {"textual_feedback": " has 22 bytes, ", "word_labels": " 19, two labels 2, the blank 1, the end 2: 60 − 46.
    assert "text[max_tokens=14]: TEXT" in critique_grammar("a cat", form="dense", max_tokens=60)
    # '", "word_score_list": [' has 23 bytes, the labels at most 2 each, '["a", ' 6, '], ["cat", ' 11, ']]}' 3: 100 − 69
    assert "text[max_tokens=31]: TEXT" in critique_grammar("a cat", form="scores", max_tokens=100)
    # '", "word_tags": "' has 17 bytes, "a + cat +" 9, '", "outcome": ' 14, the longest number and "}" 11: 100 − 73
    assert "text[max_tokens=27]: TEXT" in critique_grammar("a cat", form="tagged_words", max_tokens=100)


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
    critic = GenerativeRewardModel(model, tokenizer, **how)
    found = critic(examples, responses)
    assert {one.status for one in found} == {"ok"}
    assert GenerativeRewardModel(model, tokenizer, rows_at_once=1, **how)(examples, responses) == found
    votes = GenerativeRewardModel(model, tokenizer, votes=3, **how)
    drawn = votes.draw(examples[:3], responses[:3])
    assert {one.status for own in drawn for one in own} == {"ok"}
    assert len({one.spans for one in drawn[1]}) > 1


def test_a_response_without_room_for_its_labels_is_not_judged() -> None:
    tokenizer = made("gpt2")
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    longer, shorter = "the cat sat on the mat " * 4, "the cat"
    labels = begin(tokenizer, longer, form="dense").labels  # type: ignore[attr-defined]
    least = int(skeleton(tokenizer, form="dense").cost[START] + labels.cost[0])
    for room, ok in ((least, "ok"), (least - 1, "unparsable")):
        critic = GenerativeRewardModel(model, tokenizer, form="dense", constrain=True, max_new_tokens=room)
        statuses = [one.status for one in critic([Example("Judge: ")] * 2, [longer, shorter])]
        assert statuses == [ok, "ok"]


def test_a_tokenizer_of_whole_words_cannot_spell_labels_of_other_words() -> None:
    tokenizer = word_tokenizer(SAID[:1], ["{", "}", '"'])
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    from text2grad.errors import ModelError

    with pytest.raises(ModelError, match="no tokens for the JSON of a critique"):
        GenerativeRewardModel(model, tokenizer, form="dense", constrain=True)


@EACH
@pytest.mark.parametrize("name", WRITERS)
def test_a_token_is_fixed_where_one_text_is_valid_as_far_as_it_goes(name: str, form: Any) -> None:
    """Byte by byte: each byte of a fixed token is the only valid one there, and no such token is longer.

    No valid token is longer at all, but before a label, where tokens could go beyond it.
    """
    tokenizer, seen = made(name), set()
    for number, response in enumerate(texts(random.Random(name), 8)):
        write_feedback, outcome = number % 2 == 0, None if number % 3 else -4
        critique = begin(tokenizer, response, room=10**6, write_feedback=write_feedback, form=form)
        annotated = Critique("Yes." if write_feedback else "", (), outcome)
        target = critique_target(annotated, response, write_feedback=write_feedback, form=form).encode()
        free = _free(annotated, response, form, write_feedback=write_feedback)
        vocabulary, queue = critique.skeleton.vocabulary, list[int]()
        while (at := len(critique.written)) < len(target):
            fixed, texts_of = critique.fixed_token(), vocabulary.data if at else vocabulary.first
            valid = [texts_of[one] for one in np.flatnonzero(~critique._invalid()).tolist()]
            longest = max(map(len, valid))
            if fixed is not None:
                own = [len(one) for one in valid if target.startswith(one, at) and not any(free[at : at + len(one)])]
                assert texts_of[fixed] == target[at : at + max(own)]
                assert max(own) == longest or critique._text_before_label()  # type: ignore[attr-defined]
                queue = []
            else:
                before_labels = critique.state is not None and critique.state.skeleton not in critique._label
                assert free[at : at + longest].count(True) or before_labels  # the mask knows nothing of the response
                queue = queue or [*encode(tokenizer, target[at:].decode())]
            seen.add((fixed is not None, len(valid) > 1))
            if not critique.take(queue.pop(0) if fixed is None else fixed) or not target.startswith(critique.written):
                break  # SentencePiece begins every text with a space of its own
        else:
            assert critique.fixed_token() == critique.eos_ids[0]
    assert seen >= {(True, True), (False, True)}


def _free(critique: Critique, response: str, form: Any, *, write_feedback: bool) -> list[bool]:
    """Return for each byte of the target whether another byte is valid: of the feedback, a label or the outcome."""
    known, spelled = LABEL_FORMS[form], json.dumps(critique.feedback)[1:-1]
    first, *later = known.around(response)
    signs = {label: sign for sign, label in known.signs.items()}
    found = [False] * len(OPENING) + [True] * (len(spelled) + 1 if write_feedback else 0)  # and the mark that ends it
    found += [False] * (len((known.opening + first).encode()) - write_feedback)
    for label, part in zip(known.labels(response, critique.spans), later, strict=True):
        found += [True] * len(signs[label]) + [False] * len(part.encode())
    if form in WITH_OUTCOME:
        found += [True] * (1 if critique.outcome is None else 2) + [False] * 3 * (critique.outcome is None)
        found += [critique.outcome is not None]  # the brace: a number may go on
    return found


def copied(critique: ConstrainedCritique) -> ConstrainedCritique:
    """Copy a critique, without the automaton and the vocabulary, which are the same for all."""
    shared = (critique.skeleton, critique.skeleton.vocabulary)
    return deepcopy(critique, {id(one): one for one in shared})


@EACH
@pytest.mark.parametrize("draws", [True, False])
def test_fixed_text_is_spelled_by_the_longest_tokens_and_the_model_chooses_the_rest(form: Any, draws: bool) -> None:
    tokenizer, kinds = made(WRITERS[0]), {"fixed": 0, "best": 0, "drawn": 0}
    for seed in range(8):
        critique = begin(tokenizer, "in Lyon", room=200, write_feedback=False, form=form)
        choose = ConstrainedChoice([critique], [random.Random(seed)] if draws else [], spell_fixed=True)
        generator = torch.Generator().manual_seed(seed)
        while critique.state is not None:
            logits = torch.randn(1, critique.skeleton.vocabulary.size, generator=generator)
            fixed, twin = critique.fixed_token(), copied(critique)
            token, best = int(choose(logits, torch.tensor([0]), 0)), twin.take_best(logits[0].numpy())
            assert fixed in (None, token)
            kinds["fixed" if fixed is not None else "best" if token == best else "drawn"] += 1
    assert kinds["fixed"] > 8
    assert (kinds["drawn"] > 0) == draws


def test_without_it_the_model_spells_fixed_text_as_it_likes() -> None:
    """It likes short tokens."""
    tokenizer, others = made(WRITERS[0]), 0
    critique = begin(tokenizer, "in Lyon", room=200, write_feedback=False, form="dense")
    vocabulary, choose = critique.skeleton.vocabulary, ConstrainedChoice([critique])
    logits = torch.tensor([[-float(len(vocabulary.data.get(one, b""))) for one in range(vocabulary.size)]])
    while critique.state is not None:
        fixed = critique.fixed_token()
        others += int(choose(logits, torch.tensor([0]), 0)) != fixed and fixed is not None
    assert others > 3


@EACH
def test_a_critique_is_spelled_as_it_is_decoded(form: Any) -> None:
    """A model that likes the choices of a target writes its tokens."""
    tokenizer = made(WRITERS[0])
    model = GenerativeRewardModel(tiny_llama(tokenizer, seed=0), tokenizer, form=form, learned="choices")
    critique = Critique('Say "yes".', (Span(0, 2, "negative"),), -4)
    target = critique_target(critique, "in Lyon, or so", form=form)
    ids, choices = model.spelled("in Lyon, or so", target)
    assert tokenizer.decode(ids) == target
    assert 2 < sum(choices) < len(choices)
    constrained = begin(tokenizer, "in Lyon, or so", form=form)
    choose = ConstrainedChoice([constrained], spell_fixed=True)
    for token in ids:
        liked = torch.zeros(1, constrained.skeleton.vocabulary.size)
        liked[0, token] = 1.0
        assert int(choose(liked, torch.tensor([0]), 0)) == token
    assert constrained.text == target


@pytest.mark.parametrize("name", ["gpt2", "llama3", "gemma"])
def test_any_annotation_is_spelled_whole(name: str) -> None:
    """Also where feedback begins within a usual token or has characters of several tokens, and whatever it quotes."""
    tokenizer = made(name)
    limits = QuoteLimits(verbatim=True)
    model = GenerativeRewardModel(
        tiny_llama(tokenizer, seed=0), tokenizer, form="tagged_words", learned="choices", limits=limits
    )
    for number, response in enumerate(texts(random.Random(name), 12)):
        critique = Critique(f'{SAID[number % 4][number:]} "no such words"', (Span(0, 2, "negative"),), number / 8)
        target = critique_target(critique, response, form="tagged_words")
        ids, choices = model.spelled(response, target)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == target
        assert 0 < sum(choices) < len(choices)


def test_a_critique_that_the_constraint_refuses_is_not_spelled() -> None:
    tokenizer = made(WRITERS[0])
    model = GenerativeRewardModel(tiny_llama(tokenizer, seed=0), tokenizer, form="dense", learned="choices")
    with pytest.raises(ModelError, match=r'learned = "choices": behind .* the constraint refuses'):
        model.spelled("in Lyon", critique_target(Critique("Yes."), "to Lyon or not", form="dense"))


@EACH
@pytest.mark.parametrize("votes", [1, 5])
def test_fixed_text_is_read_at_once_and_critiques_stay_the_same(
    form: Any, votes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = made(WRITERS[0])
    network, reads = tiny_llama(tokenizer, seed=1), list[int]()
    settings: dict[str, Any] = {"form": form, "write_feedback": False, "votes": votes, "learned": "choices"}
    examples = [Example("Where?"), Example("Where and when is it?"), Example("Where?")]
    responses = ["in Lyon, or so. It rains. No!", "I am not sure", "in Lyon"]
    network.register_forward_pre_hook(lambda *_: reads.append(1))
    texts, used = [], []
    for one_by_one in (True, False):
        with monkeypatch.context() as patch:
            if one_by_one:
                patch.setattr(ConstrainedChoice, "ahead", lambda *_: ())
            model = GenerativeRewardModel(network, tokenizer, **settings)
            texts.append(model._drawn(examples, responses, votes if votes > 1 else 0))
        used.append((len(reads), model.tokens))
        reads.clear()
    assert texts[0] == texts[1]
    assert used[0][1] == used[1][1]
    assert all(critique.status == "ok" for one in model.draw(examples, responses) for critique in one)
    with monkeypatch.context() as patch:  # a model that learned whole critiques spells fixed text itself
        patch.setattr(ConstrainedChoice, "ahead", lambda *_: pytest.fail("its tokens are the model's"))
        GenerativeRewardModel(network, tokenizer, **{**settings, "learned": "critique"}).write(examples, responses)
    assert used[1][0] < (0.4 if form.endswith("_sentences") else 0.8) * used[0][0]


@pytest.mark.parametrize("form", [form for form in FORMS if form != "scores"])  # "-1" has no token of its own
@pytest.mark.parametrize("name", ["gpt2", "llama3"])
def test_each_label_is_chosen_among_one_token_per_sign(form: Any, name: str) -> None:
    """Even if the model prefers tokens that go on behind the label."""
    tokenizer, response = made(name), "in Lyon, or so. It rains."
    signs = [*LABEL_FORMS[form].signs]
    for seed in range(4):
        critique = begin(tokenizer, response, room=400, write_feedback=False, form=form)
        data = critique.skeleton.vocabulary.data
        choose, generator, seen = (
            ConstrainedChoice([critique], spell_fixed=True),
            torch.Generator().manual_seed(seed),
            0,
        )
        while critique.state is not None:
            labels, longer = critique.label_tokens(), [one for one, text in data.items() if len(text) > 2]
            logits = torch.randn(1, critique.skeleton.vocabulary.size, generator=generator)
            logits[0, longer] += 9.0
            token = int(choose(logits, torch.tensor([0]), 0))
            if labels:
                seen += 1
                assert token == labels[int(logits[0, labels].argmax())]
                assert [data[one].decode().lstrip(' "') for one in labels] == signs
        assert seen == len(LABEL_FORMS[form].split(response))
        assert critique_from_labels(critique.text, response, LABEL_FORMS[form]).status == "ok"


PRINTABLE = [chr(code) for code in range(32, 127)]


def spelled_up_to_label(tokenizer: Any, form: str) -> tuple[Any, list[bytes]]:
    """Begin a critique of "in", and spell it up to the first label; return it with the data of the last tokens."""
    critique, spelled = begin(tokenizer, "in", room=400, write_feedback=False, form=form), []
    while (token := critique.fixed_token()) is not None:
        assert critique.take(token)
        spelled.append(critique.skeleton.vocabulary.data[token])
    return critique, spelled[-2:]


def signs_of(form: str, before: str = "") -> list[bytes]:
    return [f"{before}{sign}".encode() for sign in LABEL_FORMS[form].signs]


def test_without_a_token_for_each_label_the_text_before_them_is_fixed() -> None:
    tokenizer = spelled_by([*PRINTABLE, "n =", " =", " -", "= ", "n "])  # no " +"
    critique, last = spelled_up_to_label(tokenizer, "tagged_words")
    assert last == [b"i", b"n "]  # "n =" goes beyond the text
    assert critique.text.endswith('"in ')
    assert [critique.skeleton.vocabulary.data[one] for one in critique.label_tokens()] == signs_of("tagged_words")


def test_a_token_of_each_label_may_hold_the_text_before_it() -> None:
    tokenizer = spelled_by([*PRINTABLE, *(f" {sign}" for sign in "=+-")])
    critique, last = spelled_up_to_label(tokenizer, "tagged_words")
    assert last == [b"i", b"n"]
    assert [critique.skeleton.vocabulary.data[one] for one in critique.label_tokens()] == signs_of("tagged_words", " ")


def test_a_token_of_each_label_may_begin_before_the_labels() -> None:
    tokenizer = spelled_by([*PRINTABLE, *(f'"{sign}' for sign in "0+-")])
    critique, _ = spelled_up_to_label(tokenizer, "dense")
    assert critique.text.endswith('"word_labels": ')
    assert [critique.skeleton.vocabulary.data[one] for one in critique.label_tokens()] == signs_of("dense", '"')


def test_tokens_that_go_on_behind_a_label_do_not_compete_with_it() -> None:
    tokenizer = spelled_by([*PRINTABLE, '0"', '0"}', '+"'])
    critique, _ = spelled_up_to_label(tokenizer, "dense")
    data, logits = critique.skeleton.vocabulary.data, torch.zeros(1, critique.skeleton.vocabulary.size)
    for one, text in data.items():
        logits[0, one] = {b'0"}': 9.0, b'0"': 8.0, b"+": 7.0, b"0": 6.0}.get(text, 0.0)
    drawn = {
        data[int(ConstrainedChoice([one], [random.Random(n)], spell_fixed=True)(logits, torch.tensor([0]), 0))]
        for n, one in enumerate(copied(critique) for _ in range(40))
    }
    assert drawn == {b"+", b"0"}  # e:1 likely; "-" has 0.0007
    assert data[int(ConstrainedChoice([critique], spell_fixed=True)(logits, torch.tensor([0]), 0))] == b"+"


def test_a_target_is_spelled_with_the_tokens_of_labels_that_are_decoded() -> None:
    """Its usual tokens go on behind the labels."""
    tokenizer = deepcopy(made("gpt2"))  # other tests share the tokenizer itself
    tokenizer.add_tokens(["=.", ' ="', '+"', '="'])
    model = GenerativeRewardModel(tiny_llama(tokenizer, seed=0), tokenizer, form="dense", learned="choices")
    target = critique_target(Critique("", (Span(0, 2, "positive"),), None), "in", form="dense")
    assert target.endswith('"+"}')
    assert '+"' in tokenizer.tokenize(target)
    ids, choices = model.spelled("in", target)
    assert [tokenizer.decode([one]) for one, chosen in zip(ids, choices, strict=True) if chosen][-1] == "+"


def test_no_text_is_fixed_before_a_label_where_none_is_left() -> None:
    critique = begin(spelled_by(PRINTABLE), "in", room=400, write_feedback=False, form="tagged_words")
    target = critique_target(Critique("", (), 12), "in", write_feedback=False, form="tagged_words")
    left = {target[:at]: at <= target.index("=") for at in range(1, len(target))}
    for text, before in left.items():
        assert critique.take(critique.skeleton.vocabulary.spelled[text[-1].encode()][0])
        assert isinstance(critique, ConstrainedLabels)
        assert (critique._text_before_label() is not None) == before
        assert bool(critique.label_tokens()) == (text.endswith("in "))


def test_fixed_text_ahead_ends_with_the_critique() -> None:
    critique, _ = spelled_up_to_label(spelled_by(PRINTABLE), "dense")
    choose = ConstrainedChoice([critique], spell_fixed=True)
    assert critique.take(critique.label_tokens()[0])
    ahead = list(choose.ahead(0))
    assert [critique.skeleton.vocabulary.data.get(one) for one in ahead] == [b'"', b"}", None]
    assert ahead[-1] == critique.eos_ids[0]
    assert list(choose.ahead(0)) == []


def test_near_the_limit_a_label_takes_the_tokens_that_are_left() -> None:
    """One token for label and end where two do not fit."""
    tokenizer = spelled_by([*PRINTABLE, '0"}', '+"}', '-"}'])
    least = begin(tokenizer, "in", write_feedback=False, form="dense")
    assert isinstance(least, ConstrainedLabels)
    signs = [sign.encode() for sign in LABEL_FORMS["dense"].signs]
    need = int(least.skeleton.cost[START] + least.labels.cost[0])
    for room, expected in ((need, []), (need + 2, signs)):
        critique = begin(tokenizer, "in", room=room, write_feedback=False, form="dense")
        while (token := critique.fixed_token()) is not None:
            assert critique.take(token)
        assert [critique.skeleton.vocabulary.data[one] for one in critique.label_tokens()] == expected
