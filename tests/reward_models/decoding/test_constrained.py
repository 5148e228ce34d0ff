"""A critique written under constraint is whole, and its quotes stand in the response, whatever the model says."""

import json
import random
import string
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
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
    end_of,
    grammar_accepts,
    llguidance_tokenizer,
    reachable,
    skeleton,
    spelled_by,
    texts,
    written,
)
from conversations import FAIR
from text2grad.errors import ModelError
from text2grad.feedback.spans import critique_from_text, locate_spans
from text2grad.reward_models.decoding.constrained import ConstrainedCritique, skeleton_of, valid_choice
from text2grad.reward_models.decoding.grammar import critique_grammar
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.skeleton import END, START
from text2grad.reward_models.format import CritiqueFormat, read_critique
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.writing import CLOSING, GOOD, OPENING, POOR, QUOTE, SYMBOLS, TURN
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Conversation, Example, Turn
from tokenizers_made_here import STORIES, made, of_tokens, parameters

ALL = {*string.ascii_letters, *'{}[]:,_ ".\\'}


# Whatever a model says.


@pytest.mark.parametrize("name", parameters([*WRITERS, "words"]))
def test_random_logits_write_whole_json_with_quotes_that_are_all_found(name: str) -> None:
    tokenizer = word_tokenizer(SAID[:3], SYMBOLS) if name == "words" else made(name)
    rng, generator, quotes = random.Random(name), np.random.default_rng(0), 0
    least = int(skeleton(tokenizer).cost[START])
    for response in texts(rng, 60):
        room = least + rng.randrange(90)
        critique = begin(tokenizer, response, room=room)
        assert babble(critique, generator, marks=rng.choice([0.0, 3.0])) <= room
        said = json.loads(critique.text)
        assert list(said) == ["textual_feedback", "good_spans", "poor_spans"]
        found = critique_from_text(critique.text, response, occurrences="first")
        assert (found.status, found.unmatched) == ("ok", ())
        quotes += len(said["good_spans"]) + len(said["poor_spans"])
    assert quotes > 30, "else the test shows little"


@pytest.mark.parametrize("name", parameters(WRITERS))
def test_what_it_says_it_wrote_is_what_the_tokenizer_decodes(name: str) -> None:
    tokenizer, generator = made(name), np.random.default_rng(1)
    for response in texts(random.Random(1), 20):
        critique, ids = begin(tokenizer, response, room=120), []
        take = critique.take
        critique.take = lambda token, take=take, ids=ids: take(token) and not ids.append(token)  # type: ignore[method-assign]
        babble(critique, generator, marks=2.0)
        assert tokenizer.decode(ids, skip_special_tokens=True) == critique.text


@pytest.mark.parametrize("longer", [r'k": "\"', '"", "good_spans"', r'x\", "good_spans"'])
def test_tokens_across_a_checked_quotation_mark_are_no_way_to_the_end(longer: str) -> None:
    tokenizer = spelled_by([*sorted(ALL), longer])
    least = int(skeleton(tokenizer).cost[START])
    for room in range(least, least + 4):
        for seed in range(5):
            critique = begin(tokenizer, "x", room=room, verbatim=True)
            assert babble_backslashes(critique, np.random.default_rng(seed)) <= room
            assert list(json.loads(critique.text)) == ["textual_feedback", "good_spans", "poor_spans"]


def babble_backslashes(critique: ConstrainedCritique, generator: np.random.Generator) -> int:
    """Let a model of random logits write it, which likes backslashes; return the tokens."""
    used, vocabulary = 0, critique.skeleton.vocabulary
    while critique.state is not None and critique.state.skeleton != END:
        scores = generator.normal(size=vocabulary.size).astype(np.float32)
        scores[[i for i, data in vocabulary.data.items() if b"\\" in data]] += 5
        assert any(critique.take(int(token)) for token in (-scores).argsort()), critique.text
        used += 1
    return used


class Noise:
    """Makes any model say something else each time: noise on its logits, and a liking for some ids."""

    def __init__(self, liked: Sequence[int]) -> None:
        self.liked, self.generator = list(liked), torch.Generator().manual_seed(0)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        noisy = logits + 4 * torch.randn(logits.shape, generator=self.generator)
        noisy[:, self.liked] += 4
        return noisy


def check_responses(count: int, monkeypatch: pytest.MonkeyPatch, *, trained: bool) -> None:
    """Let a model write on random responses, and read everything back."""
    from text2grad.models.pretrained import load_policy
    from text2grad.reward_models import generative

    tokenizer = made("stories260k" if trained else "llama3")
    model = load_policy(str(STORIES)) if trained else tiny_llama(tokenizer, seed=0, width=32, layers=1)
    critic = GenerativeRewardModel(model, tokenizer, CritiqueFormat(max_new_tokens=120))
    decode, noise = generative.decode, Noise(critic._skeleton("").vocabulary.spelled[b'"'])

    def noisy(model: Any, prompts: Any, choose: Any, **given: Any) -> Any:  # noise before the constraint
        return decode(model, prompts, lambda logits, *of_rows: choose(noise(logits), *of_rows), **given)

    monkeypatch.setattr(generative, "decode", noisy)
    responses = texts(random.Random(count), count)
    written = critic.write([Example("Judge: ")] * count, responses)
    quotes = 0
    for text, response in zip(written, responses, strict=True):
        found = critique_from_text(text, response, occurrences="first")
        assert (found.status, found.unmatched) == ("ok", ())
        quotes += sum(map(len, list(json.loads(text).values())[1:]))
    assert quotes > count / 2


MODELS = [False, pytest.param(True, marks=pytest.mark.skipif(not STORIES.exists(), reason=f"no {STORIES}"))]


@pytest.mark.parametrize("trained", MODELS, ids=["untrained", "stories260k"])
def test_every_critique_of_a_model_that_knows_nothing_of_critiques_is_read_in_full(
    trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_responses(32, monkeypatch, trained=trained)


@pytest.mark.slow
@pytest.mark.parametrize("trained", MODELS, ids=["untrained", "stories260k"])
def test_every_one_of_a_thousand_critiques_is_read_in_full(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_responses(1_000, monkeypatch, trained=trained)


# Against a brute-force oracle.


def language(response: str, room: int, *, one_list: bool = False) -> set[str]:
    """Every critique without words of at most `room` tokens of MARKS and letters, from the rules of `locate_spans`."""
    pieces = {response[i:j] for i in range(len(response)) for j in range(i + 1, len(response) + 1)}
    lists = [list(some) for n in range(room // 2) for some in product(sorted(pieces), repeat=n) if cost(some) <= room]
    return {
        json.dumps({"textual_feedback": "", "good_spans": good, "poor_spans": poor}, ensure_ascii=False)
        for good in lists
        for poor in lists
        if not locate_spans(response, good, poor).unmatched
        and 3 + cost(good) + cost(poor) <= room
        and not (one_list and set(good) & set(poor))
    }


def cost(quotes: Sequence[str]) -> int:
    """Number of tokens of a list, with its inner marks."""
    return len(quotes) + 1 + sum(map(len, quotes)) if quotes else 0


MARKS = [OPENING + GOOD, POOR, CLOSING, '"', '", "']


@pytest.mark.parametrize("response", ["", " ", "a", "aa", "aba", "a b", ' "a', "\n\\", "é😀", "a a"])
def test_every_substring_can_be_written_and_nothing_else(response: str) -> None:
    letters = {json.dumps(c, ensure_ascii=False)[1:-1] for c in response} | {"x", "\\", "n"}
    tokenizer = spelled_by([*MARKS, *sorted(letters)])
    room = 9  # two quotes of one letter, in one list or in two
    assert set(reachable(begin(tokenizer, response, write_feedback=False), room)) == language(response, room)


def test_one_list_leaves_exactly_what_it_allows() -> None:
    response, room = "a b", 9
    tokenizer = spelled_by([*MARKS, "a", " ", "b"])
    texts = set(reachable(begin(tokenizer, response, write_feedback=False, one_list=True), room))
    assert texts == language(response, room, one_list=True)
    assert language(response, room) - texts, "something is forbidden"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("cat concat", {"cat", "cat ", "cat concat", " concat", "concat"}),
        ("cat cats", {"cat", "cat ", "cat cats", " cats", "cats"}),  # one of the two places of "cat" is enough
    ],
)
def test_whole_words_begin_and_end_where_words_do(response: str, expected: set[str]) -> None:
    tokenizer = spelled_by([*MARKS, *"catons ", "con", "cat"])
    found = set(reachable(begin(tokenizer, response, write_feedback=False, whole_words=True), 10))
    assert {quote for text in found for quote in json.loads(text)["good_spans"]} == expected


FEEDBACK = 'Of "cat" and ‘dog’ the \'con\' is wrong, “a concat” too; `at`, "owl'


@pytest.mark.parametrize(
    ("good", "poor", "allowed"),
    [
        (["cat"], ["con"], True),
        (["a concat", "at"], [], True),
        (["a con"], [], False),  # of the response, in words that are quoted, yet not between marks
        (["cats"], [], False),
        (["c"], [], False),
        (["dog"], [], False),  # these marks are none that it knows
        (["owl"], [], False),  # an open mark, and nothing of the response
        (["cat", "cat"], [], True),  # it occurs twice
        (["cat", "con", "at"], ["at"], True),
    ],
)
def test_quotes_that_must_occur_in_the_feedback_stand_between_its_quotation_marks(
    good: list[str], poor: list[str], allowed: bool
) -> None:
    text = json.dumps({"textual_feedback": FEEDBACK, "good_spans": good, "poor_spans": poor}, ensure_ascii=False)
    tokenizer, response = spelled_by(sorted({*text, *ALL})), "a cat, a concat, cat"
    assert written(begin(tokenizer, response, quoted_in_feedback=True), text) == allowed
    assert written(begin(tokenizer, response), text) == (not locate_spans(response, good, poor).unmatched)


def allowed(response: str, said: str, good: list[str], poor: list[str], **limits: Any) -> bool:
    text = json.dumps({"textual_feedback": said, "good_spans": good, "poor_spans": poor}, ensure_ascii=False)
    return written(begin(spelled_by(sorted({*text, *ALL})), response, **limits), text)


def test_marks_within_a_quote_do_not_end_it() -> None:
    response = 'he "owns" a cat'
    assert allowed(response, f'Wrong: "{response}".', [], [response], quoted_in_feedback=True)
    assert allowed(response, f'Wrong: "{response}".', [], ["owns"], quoted_in_feedback=True)
    assert not allowed(response, f'Wrong: "{response}".', [], ["he"], quoted_in_feedback=True)


@pytest.mark.parametrize(("before", "supports"), [(49, True), (50, False)])
def test_the_first_hundred_marks_of_a_kind_support_quotes(before: int, supports: bool) -> None:
    said = "'b' " * before + "'cat'"  # two marks each, and marks 99 and 100, or 101 and 102
    assert allowed("a cat", said, ["cat"], [], quoted_in_feedback=True) == supports


@pytest.mark.parametrize("good", [["cat"], ["cat", "cat"]])
def test_what_is_listed_as_good_is_not_listed_as_poor_in_one_list(good: list[str]) -> None:
    assert allowed("cat cat cat", "", good, ["cat"])
    assert not allowed("cat cat cat", "", good, ["cat"], one_list=True)
    assert allowed("cat cat cat", "", good, ["cat c"], one_list=True)


def test_words_that_quote_nothing_of_the_response_support_empty_lists_alone() -> None:
    tokenizer, response = spelled_by(sorted(ALL)), "a cat"
    for said in ("The cat is a cat.", 'The "dog" is a cat.'):
        critique = begin(tokenizer, response, quoted_in_feedback=True)
        opening = json.dumps({"textual_feedback": said, "good_spans": []}, ensure_ascii=False).removesuffix("]}")
        assert written(critique, opening)
        scores = np.zeros(critique.skeleton.vocabulary.size, np.float32)
        scores[critique.skeleton.vocabulary.spelled[b'"'][0]] = 9.0
        critique.take_from(scores)
        assert critique.text == f"{opening}]"


@pytest.mark.parametrize("limits", [{}, {"verbatim": True}], ids=str)
@pytest.mark.parametrize("begun", ["", "cat"])
def test_a_token_that_was_refused_supports_nothing_and_forbids_nothing(begun: str, limits: dict[str, bool]) -> None:
    ends = f'", "good_spans": ["{begun}'  # the end of the words and the beginning of a quote
    tokenizer, response = spelled_by([*sorted(ALL), ends]), "a cat"
    critique = begin(tokenizer, response, quoted_in_feedback=True, **limits)
    assert written(critique, '{"textual_feedback": "The ')
    (token,) = critique.skeleton.vocabulary.spelled[ends.encode()]
    assert not critique.take(token)
    assert written(critique, '\\"cat\\"')
    assert critique.take(token)


def test_the_end_of_the_words_is_refused_where_it_is_half_written() -> None:
    ends = '", "good_spans": ['
    tokenizer = spelled_by([*sorted(ALL), ends])
    critique = begin(tokenizer, "a cat", quoted_in_feedback=True)
    assert written(critique, '{"textual_feedback": "\\"cat\\"", "good_spans')
    assert not critique.take(critique.skeleton.vocabulary.spelled[ends.encode()][0])
    assert written(critique, '": ["cat"')


@pytest.mark.parametrize(
    ("said", "allowed"),
    [
        ('"cat" and "a c" are pieces, but not dog or "".', True),
        ("It's a 'dog', says “who”.", True),  # marks of other kinds are none
        ('"cat', False),  # never closed
        ('"dog" is not there', False),
        ('"cats"', False),
        ('"cat" is "dog"', False),
        ('the "\n" is a line', True),
        ('the "\\n" is none', False),
        ('"é" is a character of two bytes', True),
    ],
)
def test_verbatim_words_hold_pieces_of_the_response_between_marks(said: str, allowed: bool) -> None:
    text = json.dumps({"textual_feedback": said, "good_spans": [], "poor_spans": []}, ensure_ascii=False)
    tokenizer = spelled_by(sorted({*text, *ALL}))
    assert written(begin(tokenizer, "a cat\né", verbatim=True), text) == allowed
    assert written(begin(tokenizer, "a cat\né"), text)


def test_an_escape_within_a_quote_of_verbatim_words_comes_whole_or_not_at_all() -> None:
    tokenizer, opened = spelled_by(sorted({*ALL, *"0E9", "\\u0000"})), OPENING + '\\"a'
    for token, allowed in ((b"\\u0000", True), (b"u", False)):
        critique = begin(tokenizer, "a\0b", verbatim=True)
        assert written(critique, opened + ("" if allowed else "\\"))
        assert critique.take(critique.skeleton.vocabulary.spelled[token][0]) == allowed
    assert written(begin(tokenizer, "a\0b", verbatim=True), OPENING + '\\u00E9 \\"a')
    assert not written(begin(tokenizer, "a\0b", verbatim=True), OPENING + '\\u00E9 \\"c'), "heard after an escape"


def test_a_mark_of_verbatim_words_is_begun_where_its_second_half_has_room() -> None:
    for tokens, token in ((sorted(ALL), b"\\"), ([*sorted(ALL), '\\"'], b"t")):  # a half of a mark; before one token
        tokenizer = spelled_by(tokens)
        least = int(skeleton(tokenizer).cost[skeleton(tokenizer).text])
        for room in (least + 1, least + 2):  # the token, one for the mark, and what ends the critique
            critique = begin(tokenizer, "a cat", verbatim=True)
            assert written(critique, OPENING + '\\"ca')
            critique.room = room
            assert critique.take(critique.skeleton.vocabulary.spelled[token][0]) == (room == least + 2)


def pieces_alone(said: str, response: str) -> bool:
    """Oracle: every second part between marks is a piece of the response, and the last mark closes."""
    parts = said.split('"')
    return len(parts) % 2 == 1 and all(part in response for part in parts[1::2])


@settings(max_examples=100, deadline=None)
@given(
    response=st.text('ab "\n\\é', max_size=6),
    tokens=st.sets(st.text('ab "\\né', min_size=1, max_size=4), max_size=8),
    said=st.text('ab"\n\\é', max_size=8),
    seed=st.integers(0, 99),
)
def test_verbatim_words_are_accepted_however_they_are_cut_into_tokens_if_and_only_if_they_quote_pieces(
    response: str, tokens: set[str], said: str, seed: int
) -> None:
    text = json.dumps({"textual_feedback": said, "good_spans": [], "poor_spans": []}, ensure_ascii=False)
    tokenizer = spelled_by(sorted({*text, *ALL, *'ab "\\né', *tokens, '\\"', " \\"}))
    critique, rest, rng = begin(tokenizer, response, verbatim=True), text.encode(), random.Random(seed)
    spelled = critique.skeleton.vocabulary.spelled
    while rest:
        data = rng.choice([data for data in spelled if rest.startswith(data)])
        if not critique.take(spelled[data][0]):
            break
        rest = rest[len(data) :]
    assert (not rest) == pieces_alone(said, response)


@pytest.mark.parametrize("name", parameters([*WRITERS, "words"]))
def test_verbatim_words_of_random_logits_misquote_nothing_and_end_in_time(name: str) -> None:
    rng, generator, quoted = random.Random(name), np.random.default_rng(0), 0
    for response in texts(rng, 8):
        tokenizer = word_tokenizer([response, *ALL], SYMBOLS) if name == "words" else made(name)
        vocabulary, room = skeleton(tokenizer).vocabulary, int(skeleton(tokenizer).cost[START]) + rng.randrange(20, 60)
        critique = begin(tokenizer, response, room=room, verbatim=True)
        ends = [i for i, data in vocabulary.data.items() if data.startswith(b'"')]
        backslash, mark = (vocabulary.spelled[data][0] for data in (b"\\", b'"'))
        while critique.state is not None and critique.room:
            if not (rng.random() < 0.3 and critique.take(backslash) and critique.take(mark)):
                scores = generator.normal(size=vocabulary.size).astype(np.float32)
                scores[ends] -= 3
                critique.take_from(scores)
        said = json.loads(critique.text)["textual_feedback"]
        assert pieces_alone(said, response)
        quoted += sum(map(bool, said.split('"')[1::2]))
    assert quoted > 2, "else the test shows little"


def test_a_verbatim_quote_is_begun_only_where_its_character_and_its_mark_have_room_to_follow() -> None:
    tokenizer = made("gpt2")
    for room in range(9):
        least = int(skeleton(tokenizer).cost[skeleton(tokenizer).text])
        critique = begin(tokenizer, "é", room=len(OPENING) + 2 + least + room, verbatim=True)
        spelled = critique.skeleton.vocabulary.spelled
        if not written(critique, OPENING + '\\"'):
            continue
        critique.room = least + room
        # the first byte of é, then the second one, a backslash and a mark, unless one token is both
        marks = 1 if b'\\"' in spelled else 2
        assert critique.take(spelled["é".encode()[:1]][0]) == (room >= 2 + marks)


@settings(max_examples=60, deadline=None)
@given(
    response=st.text('ab "\n\\é', max_size=6),
    tokens=st.sets(st.text('ab "\\né,]', min_size=1, max_size=4), max_size=8),
    quotes=st.lists(st.tuples(st.booleans(), st.text('ab "\n\\é', min_size=1, max_size=3)), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_critique_is_accepted_however_it_is_cut_into_tokens_if_and_only_if_its_quotes_are_found(
    response: str, tokens: set[str], quotes: list[tuple[bool, str]], seed: int
) -> None:
    alphabet = sorted({*"".join(MARKS), *'ab "\\né,]', *tokens, *MARKS, ' ["', '], "', '"]}'})
    tokenizer = spelled_by(alphabet)
    good, poor = ([quote for is_good, quote in quotes if is_good is kind] for kind in (True, False))
    text = json.dumps({"textual_feedback": "", "good_spans": good, "poor_spans": poor}, ensure_ascii=False)
    critique, rest, rng = begin(tokenizer, response, write_feedback=False), text.encode(), random.Random(seed)
    spelled, accepted = critique.skeleton.vocabulary.spelled, True
    while rest and accepted:
        token = rng.choice([data for data in spelled if rest.startswith(data)])
        accepted, rest = critique.take(spelled[token][0]), rest[len(token) :]
    assert accepted == (not locate_spans(response, good, poor).unmatched)
    if accepted:
        assert critique.text == text
        assert critique.state is not None
        assert critique.state.skeleton == END


@settings(max_examples=60, deadline=None)
@given(
    room=st.integers(0, 60), seed=st.integers(0, 10**6), name=st.sampled_from(["gpt2", "llama2"]), said=st.booleans()
)
def test_the_best_allowed_token_is_the_arg_max_of_the_masked_logits(
    room: int, seed: int, name: str, said: bool
) -> None:
    tokenizer, generator = made(name), np.random.default_rng(seed)
    room += int(skeleton(tokenizer).cost[START])
    critique = begin(tokenizer, random.Random(seed).choice(SAID), room=room, verbatim=said)
    if said:
        written(critique, OPENING + '\\"')
    for _ in range(25):
        if critique.state is None or not critique.room:
            return
        scores = generator.normal(size=critique.skeleton.vocabulary.size).astype(np.float32)
        scores[generator.integers(len(scores), size=9)] = -np.inf
        if critique.state.skeleton == END:
            allowed = [end_of(tokenizer)]
        else:
            tried = range(len(scores))
            allowed = [i for i in tried if critique.step(critique.state, i, critique.room - 1) is not None]
        assert critique.take_from(scores) == max(allowed, key=lambda i: (scores[i], -i))


# The words of a critique.


VALID = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=100, deadline=None)
@given(feedback=VALID, ascii_only=st.booleans(), name=st.sampled_from(["gpt2", "llama2"]))
def test_the_words_may_be_any_text_in_any_escapes_of_json(feedback: str, ascii_only: bool, name: str) -> None:
    critique = begin(made(name), "")
    inner = json.dumps(feedback, ensure_ascii=ascii_only)[1:-1].replace("/", "\\/")
    text = OPENING + inner + GOOD + POOR + CLOSING
    spelled = critique.skeleton.vocabulary.spelled
    assert all(critique.take(spelled[bytes([byte])][0]) for byte in text.encode())
    assert critique.text == text
    assert json.loads(critique.text)["textual_feedback"] == feedback


@pytest.mark.parametrize(
    "inner",
    [b"\n", b"\x1f", b"\\x", b"\\u12g", b"\\'", b"\x80", b"\xc0", b"\xe0\x80", b"\xed\xa0", b"\xf5", b"\xe2a"],
)
def test_the_words_are_no_control_characters_no_unknown_escapes_and_no_broken_utf8(inner: bytes) -> None:
    critique = begin(made("gpt2"), "")
    spelled = critique.skeleton.vocabulary.spelled
    before = [critique.take(spelled[bytes([byte])][0]) for byte in OPENING.encode() + inner]
    assert before[:-1] == [True] * (len(before) - 1)
    assert not before[-1]


def test_the_words_are_every_character_and_no_surrogate() -> None:
    automaton = skeleton(made("gpt2"))
    for code in range(0x20, 0x110000):
        if code % 64 in (0, 63) and chr(code) not in '"\\':  # the last byte goes from 0x80 to 0xBF
            state = automaton.text
            for byte in chr(code).encode("utf-8", "surrogatepass"):
                state = int(automaton.table[state, byte])
            assert (state == automaton.text) == (not 0xD800 <= code < 0xE000), hex(code)


def test_without_words_the_critique_has_none() -> None:
    tokenizer = spelled_by([OPENING, GOOD, POOR, CLOSING, "a", '"'])
    silent = begin(tokenizer, "a", write_feedback=False)
    spelled = {data.decode(): ids[0] for data, ids in silent.skeleton.vocabulary.spelled.items()}
    assert silent.take(spelled[OPENING])
    assert not silent.take(spelled["a"])
    wordy = begin(tokenizer, "a")
    assert wordy.take(spelled[OPENING])
    assert wordy.take(spelled["a"])


# Length.


@pytest.mark.parametrize(("room", "taken"), [(7, True), (6, False)])
def test_another_quote_is_begun_only_if_it_can_be_opened_and_ended_in_time(room: int, taken: bool) -> None:
    # After the comma come a space, a mark, a letter, a mark, POOR and CLOSING: 7 tokens with the comma.
    tokenizer = spelled_by([OPENING + GOOD, POOR, CLOSING, "a", '"', ",", " "])
    critique = begin(tokenizer, "aa", write_feedback=False)
    ids = critique.skeleton.vocabulary.spelled
    assert all(critique.take(ids[token][0]) for token in ((OPENING + GOOD).encode(), b'"', b"a", b'"'))
    critique.room = room
    assert critique.take(ids[b","][0]) == taken


@pytest.mark.parametrize("token", ['", "', '", "a', '", "a"'])
def test_a_list_that_is_full_is_gone_on_with_by_no_token(token: str) -> None:
    tokenizer = spelled_by([OPENING + GOOD, POOR, CLOSING, "a", '"', token])
    for most in (1, 2):
        critique = begin(tokenizer, "a" * most, write_feedback=False)
        ids = critique.skeleton.vocabulary.spelled
        assert all(critique.take(ids[part][0]) for part in ((OPENING + GOOD).encode(), b'"', b"a"))
        assert critique.take(ids[token.encode()][0]) == (most == 2)


def test_a_critique_may_use_every_token_and_never_one_more() -> None:
    # OPENING, six letters, GOOD, POOR, CLOSING: 10 tokens. With a seventh letter there would be no room to close.
    tokenizer = spelled_by([OPENING, GOOD, POOR, CLOSING, "a", '"'])
    critique = begin(tokenizer, "b", room=10)
    ids = critique.skeleton.vocabulary.spelled
    scores = np.zeros(len(tokenizer), np.float32)
    scores[ids[b"a"][0]] = 1
    written = [critique.take_from(scores) for _ in range(10)]
    assert tokenizer.decode(written) == f"{OPENING}aaaaaa{GOOD}{POOR}{CLOSING}" == critique.text


def test_a_quote_is_begun_only_if_it_can_be_ended_in_time() -> None:
    # 4 tokens close an empty critique; a quote is three more: a mark, a letter, a mark.
    tokenizer = spelled_by([OPENING, GOOD, POOR, CLOSING, "a", '"'])
    scores = np.zeros(len(tokenizer), np.float32)
    for room, expected in ((6, []), (7, ["a"])):
        critique = begin(tokenizer, "a", room=room)
        ids = critique.skeleton.vocabulary.spelled
        for wanted in (OPENING, GOOD):
            assert critique.take(ids[wanted.encode()][0])
        scores[ids[b'"'][0]] = 1
        while critique.state is not None and critique.room:
            critique.take_from(scores)
        assert json.loads(critique.text)["good_spans"] == expected


def test_a_quote_that_no_token_could_go_on_with_is_not_begun() -> None:
    # The response goes on with " z", which has no token: a quote of the space alone could never end.
    tokenizer = spelled_by([OPENING + GOOD, POOR, CLOSING, "a", " ", '"'])
    critique = begin(tokenizer, "a z", write_feedback=False)
    ids = {data.decode(): found[0] for data, found in critique.skeleton.vocabulary.spelled.items()}
    assert all(critique.take(ids[token]) for token in (OPENING + GOOD, '"'))
    assert not critique.take(ids[" "])
    assert all(critique.take(ids[token]) for token in ("a", " ", '"', POOR, CLOSING))
    assert critique.text.endswith('"good_spans": ["a "], "poor_spans": []}')


def test_a_room_too_small_for_an_empty_critique_is_refused() -> None:
    tokenizer = word_tokenizer(["a cat"], SYMBOLS)
    model = tiny_llama(tokenizer, seed=0, width=16, layers=1)
    with pytest.raises(ModelError) as caught:
        GenerativeRewardModel(model, tokenizer, CritiqueFormat(max_new_tokens=3))
    assert str(caught.value) == (
        "max_new_tokens = 3 is too short for a critique: an empty critique has 4 tokens with this tokenizer. Raise it, "
        "or switch constrained decoding off with constrain = False."
    )
    assert (
        GenerativeRewardModel(model, tokenizer, CritiqueFormat(max_new_tokens=4))([Example("")], ["a cat"])[0].status
        == "ok"
    )
    GenerativeRewardModel(model, tokenizer, CritiqueFormat(max_new_tokens=3, constrain=False))


def test_a_tokenizer_that_cannot_write_json_is_refused() -> None:
    with pytest.raises(ModelError) as caught:
        skeleton(made("bert"))
    assert str(caught.value) == (
        "the tokenizer has, or tells, no tokens for the JSON of a critique, so constrained decoding is impossible. Use "
        "another tokenizer, or switch it off: CritiqueFormat(constrain=False), in a recipe "
        "critic.constrain = false."
    )


# Rows.


def test_ids_that_the_model_has_and_the_tokenizer_lacks_are_never_written() -> None:
    tokenizer = made("gpt2")
    wide = skeleton_of(tokenizer, CritiqueFormat(), size=len(tokenizer) + 7, eos_ids=[2])
    critique = ConstrainedCritique(wide, "a", eos_ids=[2], room=99, limits=QuoteLimits())
    scores = np.arange(len(tokenizer) + 7, dtype=np.float32)
    assert critique.take_from(scores) < len(tokenizer)


def test_a_finished_critique_ends_with_the_likeliest_of_several_end_ids() -> None:
    tokenizer = spelled_by([OPENING + GOOD, POOR, CLOSING, "a", '"'])
    ends = (end_of(tokenizer), len(tokenizer))  # `stop_ids` gives a tuple
    own = skeleton_of(tokenizer, CritiqueFormat(write_feedback=False), size=len(tokenizer) + 1, eos_ids=ends)
    critique = ConstrainedCritique(own, "a", eos_ids=ends, room=99, limits=QuoteLimits())
    for text in (OPENING + GOOD, POOR, CLOSING):
        assert critique.take(own.vocabulary.spelled[text.encode()][0])
    scores = np.zeros(len(tokenizer) + 1, np.float32)
    scores[0], scores[-1] = 9.0, 1.0  # a token of text is the likeliest, and not valid here
    assert critique.take_from(scores) == len(tokenizer)


def test_a_finished_row_leaves_the_others_alone() -> None:
    tokenizer = spelled_by([OPENING + GOOD, POOR, CLOSING, "a", '"'])
    rows = [begin(tokenizer, "a", write_feedback=False) for _ in range(2)]
    ids = {data.decode(): found[0] for data, found in rows[0].skeleton.vocabulary.spelled.items()}
    for token in (OPENING + GOOD, POOR, CLOSING):
        assert rows[0].take(ids[token])
    choose = valid_choice(rows)
    likes_letters, likes_marks = torch.zeros(2, len(tokenizer)), torch.zeros(2, len(tokenizer))
    likes_letters[:, ids["a"]] = likes_marks[:, ids['"']] = 1
    chosen = [choose(logits, torch.arange(2), 0).tolist() for logits in (likes_letters, likes_marks)]
    assert chosen == [[end_of(tokenizer), ids[OPENING + GOOD]], [ids['"'], ids['"']]]
    assert (rows[0].text, rows[0].state) == (OPENING + GOOD + POOR + CLOSING, None)


def test_a_token_that_leads_anywhere_is_written_where_it_scores_best() -> None:
    # An escape of which four digits are missing, the end of the words with the beginning of a quote, a whole quote.
    tokens = [OPENING, "\\", "u", "0", f'{GOOD}"a', '", "a"', POOR, CLOSING, "a", '"', GOOD]
    critique = begin(spelled_by(tokens), "aa")
    ids = critique.skeleton.vocabulary.spelled
    for token in [OPENING, "\\", "u", *"0000", f'{GOOD}"a', '", "a"', POOR, CLOSING]:
        scores = np.zeros(critique.skeleton.vocabulary.size, np.float32)
        scores[ids[token.encode()]] = 1
        assert critique.take_from(scores) == ids[token.encode()][0]
    assert json.loads(critique.text) == {"textual_feedback": "\0", "good_spans": ["a", "a"], "poor_spans": []}


def test_the_space_that_sentencepiece_leaves_out_of_the_first_token_is_not_written() -> None:
    first = f" {OPENING}"
    tokens = [token.replace(" ", "▁") for token in (first, GOOD, *MARKS, "\\", "a", "c", "d")]
    tokenizer, _ = of_tokens("llama", [*tokens, {"special": "</s>"}])
    tokenizer.eos_token = "</s>"
    critique = begin(tokenizer, "a", verbatim=True)
    assert critique.take(critique.skeleton.vocabulary.spelled[first.encode()][0])
    assert critique.text == OPENING
    assert written(critique, 'c\\"a\\"')
    assert not written(critique, '\\"d'), "the words are heard from their first letter on"


def test_any_number_is_better_than_none() -> None:
    critique = begin(spelled_by([OPENING, GOOD, POOR, CLOSING, "a", '"']), "a")
    ids, scores = critique.skeleton.vocabulary.spelled, np.full(critique.skeleton.vocabulary.size, np.nan, np.float32)
    assert critique.take_from(scores) == ids[OPENING.encode()][0]
    scores[ids[b"a"][0]] = -1
    assert critique.take_from(scores) == ids[b"a"][0]


def test_scores_that_are_no_numbers_break_no_critique() -> None:
    critique = begin(spelled_by([OPENING + GOOD, POOR, CLOSING, "a", '"']), "a", write_feedback=False)
    choose, size = valid_choice([critique]), critique.skeleton.vocabulary.size
    for _ in range(4):
        choose(torch.full((1, size), torch.nan), torch.zeros(1, dtype=torch.long), 0)
    assert critique.text.startswith(OPENING + GOOD)
    for _ in range(4):
        choose(torch.full((1, size), -torch.inf), torch.zeros(1, dtype=torch.long), 0)
    assert critique.text.startswith(OPENING + GOOD)


# For servers.


@pytest.mark.parametrize(
    ("response", "good", "limits", "accepted"),
    [
        ("a cat", ["ca", "t"], {}, True),
        ("a cat", ["ca"], {"whole_words": True}, False),
        ("a cat", ["a", "cat"], {}, True),
        ("a\fb\vc\x1dd", ["a\fb\vc\x1dd"], {}, True),
        (" é ", [" é"], {}, True),
        ("a ", [" "], {}, False),
        (" \t", [], {}, True),
        (" \t", ["\t"], {}, False),
    ],
    ids=str,
)
def test_the_grammar_for_servers_by_hand(
    response: str, good: list[str], limits: dict[str, Any], accepted: bool
) -> None:
    text = json.dumps({"textual_feedback": "", "good_spans": good, "poor_spans": []}, ensure_ascii=False)
    assert grammar_accepts(response, text, write_feedback=False, **limits) == accepted
    assert accepts(begin(made("gpt2"), response, write_feedback=False, **limits), text) == accepted


@settings(max_examples=150, deadline=None)
@given(
    response=st.text('ab "\n\té\u3000東😀\\', max_size=6),
    quotes=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(1, 6)), max_size=4),
    feedback=VALID,
    stray=st.sampled_from(["", "", "", "b", " ", "\n"]),
    write_feedback=st.booleans(),
    limits=st.sampled_from([QuoteLimits(), QuoteLimits(whole_words=True)]),
)
def test_the_grammar_for_servers_is_the_same_language_but_for_how_often_a_quote_is_listed(
    response: str,
    quotes: list[tuple[bool, int, int]],
    feedback: str,
    stray: str,
    write_feedback: bool,
    limits: QuoteLimits,
) -> None:
    cut = [(is_good, response[start : start + length] + stray) for is_good, start, length in quotes]
    good, poor = ([quote for is_good, quote in cut if is_good is kind] for kind in (True, False))
    record = {"textual_feedback": feedback, "good_spans": good, "poor_spans": poor}
    text = json.dumps(record, ensure_ascii=False)
    ours = accepts(begin(made("gpt2"), response, write_feedback=write_feedback, **asdict(limits)), text)
    each_once = all(not locate_spans(response, [quote], []).unmatched for quote in [*good, *poor])
    counted = each_once and bool(locate_spans(response, good, poor).unmatched)
    theirs = grammar_accepts(response, text, write_feedback=write_feedback, limits=limits)
    assert theirs == ours or (theirs and counted)
    if not limits.whole_words and (not feedback or write_feedback) and limits == QuoteLimits():
        assert theirs == each_once


@pytest.mark.parametrize(("max_tokens", "words"), [(None, 99), (64, 4), (61, 1), (10, 1)])
def test_the_grammar_ends_the_words_where_the_json_still_has_room(max_tokens: int | None, words: int) -> None:
    # The JSON around an empty critique has 60 bytes: {"textual_feedback": " 22, ", "good_spans": [ 18, ], ... 18, ]} 2.
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance_tokenizer()
    opening, word = (tokenizer.tokenize_bytes(text.encode()) for text in (OPENING, "q"))
    assert (len(OPENING + GOOD + POOR + CLOSING), len(word)) == (60, 1)
    grammar = llguidance.LLMatcher.grammar_from_lark(critique_grammar("a cat", max_tokens=max_tokens))
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert matcher.try_consume_tokens([*opening, *word * 99]) - len(opening) == words


def held_to_the_grammar(response: str, room: int, generator: np.random.Generator, **settings: Any) -> str:
    """Let a model of random logits write what the grammar allows, as a server does, until its length limit."""
    llguidance = pytest.importorskip("llguidance")
    grammar = critique_grammar(response, CritiqueFormat(**settings), max_tokens=room)
    matcher = llguidance.LLMatcher(llguidance_tokenizer(), llguidance.LLMatcher.grammar_from_lark(grammar))
    tokenizer, ids = made("gpt2"), []
    while len(ids) < room and not matcher.is_stopped():
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[: len(tokenizer)]
        ids.append(int(generator.choice(np.flatnonzero(bits))))
        assert matcher.consume_token(ids[-1])
    return str(tokenizer.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("write_feedback", [True, False])
def test_whatever_a_model_writes_under_the_grammar_is_read(write_feedback: bool) -> None:
    generator, ends = np.random.default_rng(0), set()
    for response in texts(random.Random(0), 12):
        found = critique_from_text(
            held_to_the_grammar(response, 90, generator, write_feedback=write_feedback), response
        )
        ends.add(found.status)
    assert ends <= {"ok", "repaired"}


# Conversations.


def critique_of(good: Sequence[Any], poor: Sequence[Any]) -> str:
    """The critique without words that lists quotes as (turn, quote)."""
    named = ([{"turn": turn, "quote": quote} for turn, quote in quotes] for quotes in (good, poor))
    return json.dumps(dict(zip(["textual_feedback", "good_spans", "poor_spans"], ["", *named], strict=True)))


@pytest.mark.parametrize(
    ("good", "poor", "limits", "allowed"),
    [
        ([(1, "Lyon")], [(3, "Lyon")], {}, True),  # the same words in two turns
        ([(1, "Lyon."), (3, "Lyon on")], [], {}, True),
        ([(3, "Lyon.")], [], {}, False),
        ([(1, ".In")], [], {}, False),  # over the end of turn 1
        ([(2, "Friday")], [], {}, False),  # of a tool
        ([(0, "fair")], [], {}, False),  # of a person
        ([(13, "Lyon")], [], {}, False),
        ([(3, "Monday")], [(3, "Monday")], {}, True),  # it stands twice there
        ([(1, "Lyon"), (1, "Lyon")], [], {}, False),  # and this once
        ([(1, "Lyon")], [(3, "Lyon")], {"one_list": True}, True),
        ([(3, "Monday")], [(3, "Monday")], {"one_list": True}, False),
        ([(3, "Mon")], [], {"whole_words": True}, False),
        ([], [], {}, True),
    ],
)
def test_a_quote_of_a_conversation_names_a_turn_of_the_policy_that_holds_it(
    good: list[Any], poor: list[Any], limits: dict[str, Any], allowed: bool
) -> None:
    text = critique_of(good, poor)
    assert accepts(begin(made("gpt2"), FAIR, write_feedback=False, **limits), text) == allowed
    labelled = [{"turn": turn, "quote": quote, "label": "good"} for turn, quote in good]
    text = json.dumps({"textual_feedback": "", "spans": labelled, "outcome": None})
    if not poor:
        how = {"form": "labelled_spans", "write_feedback": False, **limits}
        assert accepts(begin(made("gpt2"), FAIR, **how), text) == allowed


def test_quotes_of_every_turn_that_must_occur_in_the_feedback_stand_between_its_marks() -> None:
    for turn, quote, allowed in ((3, "Monday", True), (3, "Lyon", False), (1, "Look", True), (1, "up", False)):
        entry = {"turn": turn, "quote": quote}
        text = json.dumps({"textual_feedback": 'No "Monday". "Look"!', "good_spans": [], "poor_spans": [entry]})
        assert accepts(begin(made("gpt2"), FAIR, quoted_in_feedback=True), text) == allowed


@pytest.mark.parametrize("form", ["spans", "labelled_spans"])
def test_the_grammar_of_a_conversation_has_the_quotes_of_each_turn(form: str) -> None:
    for turn, quote in product((0, 1, 2, 3), ("Lyon", "Lyon.", "Lyon on", "Friday", " ", "Mon")):
        entry = {"turn": turn, "quote": quote}
        text = critique_of([], [(turn, quote)])
        if form == "labelled_spans":
            text = json.dumps({"textual_feedback": "", "spans": [entry | {"label": "poor"}] * 2, "outcome": -1})
        allowed = turn in (1, 3) and quote.strip() != "" and quote in FAIR.turns[turn].text
        assert grammar_accepts(FAIR, text, form=form, write_feedback=False) == allowed, text
    blank = Conversation([Turn("assistant", text, sampled=True) for text in (" ", "", "a")])
    assert not grammar_accepts(blank, critique_of([(0, " ")], []), write_feedback=False)
    assert grammar_accepts(blank, critique_of([(2, "a"), (2, "a")], []), write_feedback=False)
    assert grammar_accepts(Conversation([Turn("tool", "a")]), critique_of([], []), write_feedback=False)


def test_every_substring_of_a_turn_can_be_written_with_its_number_and_nothing_else() -> None:
    spoken = Conversation([Turn("assistant", "ab", True), Turn("tool", "ba"), Turn("assistant", "b", True)])
    tokenizer = spelled_by([OPENING + GOOD, POOR, CLOSING, TURN, "0", "1", "2", QUOTE, '"}', '"}, {"turn": ', *"abx"])
    room = 13  # 3 around the lists; a list of n quotes has 1 token, and each 3 beside its letters: 3 + 5 + 5
    pieces = [(0, "a"), (0, "b"), (0, "ab"), (2, "b")]
    lists = [list(some) for n in range(3) for some in product(pieces, repeat=n)]
    spent = [sum(3 + len(quote) for _, quote in some) + bool(some) for some in lists]
    expected = {
        critique_of(good, poor)
        for (good, tokens), (poor, more) in product(zip(lists, spent, strict=True), repeat=2)
        if 3 + tokens + more <= room and not critique_from_text(critique_of(good, poor), spoken).unmatched
    }
    assert set(reachable(begin(tokenizer, spoken, write_feedback=False), room)) == expected
    assert len(expected) > 20


PARTS = ['": 1', '1, "', ', "quote": "a', 'e": "', 'a"}', '"}, {"turn": 3', '{"turn": 1, "quote": "', ' 3, "quote": "b']


@settings(max_examples=60, deadline=None)
@given(
    said=st.tuples(*[st.text('ab "\\é', max_size=4)] * 2),
    tokens=st.sets(st.sampled_from(PARTS)),
    quotes=st.lists(
        st.tuples(st.booleans(), st.sampled_from([1, 3, 3, 2]), st.text('ab "é', min_size=1, max_size=2)), max_size=3
    ),
    seed=st.integers(0, 99),
)
def test_quotes_with_turns_are_accepted_however_they_are_cut_into_tokens_if_and_only_if_they_are_found(
    said: tuple[str, str], tokens: set[str], quotes: list[tuple[bool, int, str]], seed: int
) -> None:
    asked, told = Turn("user", "ab"), Turn("tool", 'a b"é')
    spoken = Conversation([asked, Turn("assistant", said[0], True), told, Turn("assistant", said[1], True)])
    good, poor = ([{"turn": t, "quote": q} for is_good, t, q in quotes if is_good is kind] for kind in (True, False))
    text = json.dumps({"textual_feedback": "", "good_spans": good, "poor_spans": poor}, ensure_ascii=False)
    tokenizer = spelled_by([*sorted(ALL | {*"123é"}), *sorted(tokens)])
    critique, rest, rng = begin(tokenizer, spoken, write_feedback=False), text.encode(), random.Random(seed)
    spelled, accepted = critique.skeleton.vocabulary.spelled, True
    while rest and accepted:
        token = rng.choice([data for data in spelled if rest.startswith(data)])
        accepted, rest = critique.take(spelled[token][0]), rest[len(token) :]
    assert accepted == (not critique_from_text(text, spoken, occurrences="first").unmatched)


@pytest.mark.parametrize("name", ["gpt2", "llama3", "made here"])
def test_the_best_token_of_a_quote_with_a_turn_is_the_arg_max_of_the_masked_logits(name: str) -> None:
    own = spelled_by([*sorted(ALL | {*"123"}), ' "', 'ote": "', '"In', ' "L', ': "Lo'])
    tokenizer, generator = own if name == "made here" else made(name), np.random.default_rng(0)
    for begun in ("", "1", '3, "quo', '3, "quote":', '1, "quote": "', '3, "quote": "In Ly'):
        for room in (30, 60):
            critique = begin(tokenizer, FAIR, write_feedback=False)
            assert written(critique, OPENING + GOOD + TURN + begun)
            critique.room = room
            assert critique.state is not None
            ids = range(critique.skeleton.vocabulary.size)
            allowed = [i for i in ids if critique.step(critique.state, i, room - 1) is not None]
            for scores in generator.normal(size=(8, len(ids))).astype(np.float32):
                best = max(allowed, key=lambda i, scores=scores: (scores[i], -i))
                assert copy(critique).take_from(scores) == best


@pytest.mark.parametrize("form", ["spans", "labelled_spans"])
@pytest.mark.parametrize("limits", [{}, {"one_list": True, "whole_words": True}, {"quoted_in_feedback": True}], ids=str)
def test_random_logits_quote_turns_of_the_policy_alone_and_end_in_time(form: str, limits: dict[str, Any]) -> None:
    rng, generator, quotes = random.Random(0), np.random.default_rng(0), 0
    for name in ("gpt2", "llama3"):
        for _ in range(12):
            room = int(skeleton(made(name), form=form).cost[START]) + rng.randrange(120)
            critique = begin(made(name), FAIR, room=room, form=form, write_feedback=bool(limits), **limits)
            assert babble(critique, generator, marks=3.0) <= room
            found = read_critique(critique.text, FAIR, CritiqueFormat(form, write_feedback=bool(limits)))
            assert (found.status, found.unmatched) == ("ok", ())
            assert all(span.turn in (1, 3) for span in found.spans)
            quotes += len(found.spans)
    assert quotes > 5 or "quoted_in_feedback" in limits, "else the test shows little"


def test_a_reward_model_writes_quotes_with_turns_of_conversations_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from text2grad.reward_models import generative

    tokenizer, format = made("llama3"), CritiqueFormat(max_new_tokens=120, write_feedback=False)
    model = tiny_llama(tokenizer, seed=0, width=32, layers=1)
    critic = GenerativeRewardModel(model, tokenizer, format)
    data = critic._skeleton("").vocabulary.data
    decode, noise = generative.decode, Noise([i for i, piece in data.items() if piece[:1] in b'"{'])

    def noisy(model: Any, prompts: Any, choose: Any, **given: Any) -> Any:
        return decode(model, prompts, lambda logits, *of_rows: choose(noise(logits), *of_rows), **given)

    monkeypatch.setattr(generative, "decode", noisy)
    answers = [Turn("assistant", f"In Lyon on day {day}.", sampled=True) for day in range(12)]
    spoken: list[str] = [Conversation([*FAIR.turns[:3], answer]) for answer in answers]
    written = critic.write([Example("When?")] * 24, [*spoken, *map(str, spoken)])
    entries = [[*json.loads(text)["good_spans"], *json.loads(text)["poor_spans"]] for text in written]
    kinds = [{type(entry) for some in part for entry in some} for part in (entries[:12], entries[12:])]
    assert kinds == [{dict}, {str}]
