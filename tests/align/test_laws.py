"""Laws of alignment, over tokenizers of every kind and over ids that no text encodes to."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from text2grad.align.delta import pseudo_rewards, span_tokens
from text2grad.align.offsets import Range, token_offsets
from text2grad.types import Span
from tokenizers_made_here import CORPUS, FAMILIES, STORIES, made, parameters

BYTE_LEVEL = ("gpt2", "llama3")
LETTERS = sorted({*"".join(CORPUS), *"\u0301\u200f\u2028\x00🏽𝒄ﬃİ"})
TEXT = st.one_of(st.text(st.sampled_from(LETTERS), max_size=20), st.sampled_from(CORPUS), st.text(max_size=10))
LABELS = st.sampled_from(["positive", "negative"])
law = settings(
    deadline=None,
    derandomize=True,
    max_examples=35,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=parameters([*FAMILIES, *([] if STORIES.exists() else ["stories260k"])]))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    if request.param not in FAMILIES:
        pytest.skip("the small policy stories260k is not beside this checkout, in shared/models")
    return made(request.param)


def sampled(data: st.DataObject, tokenizer: Any) -> list[int]:
    """Draw a response: the ids of a text, ids at random, or both, with special tokens anywhere."""
    any_id = st.integers(0, len(tokenizer) - 1)
    byte_ids = sorted(i for token, i in tokenizer.get_vocab().items() if re.fullmatch("<0x..>|[^ -~]", token))
    special = st.sampled_from(sorted(tokenizer.all_special_ids))
    text_ids = tokenizer(data.draw(TEXT), add_special_tokens=False)["input_ids"]
    some = st.one_of(any_id, st.sampled_from(byte_ids or [0]), special)
    ids = data.draw(st.lists(some, max_size=15))
    at = data.draw(st.integers(0, len(text_ids)))
    kind = data.draw(st.sampled_from(["text", "random", "both", "specials around"]))
    if kind == "specials around":
        return [tokenizer.bos_token_id, *text_ids, tokenizer.eos_token_id, tokenizer.eos_token_id]
    return {"text": text_ids, "random": ids, "both": text_ids[:at] + ids + text_ids[at:]}[kind]


def drawn_spans(data: st.DataObject, length: int, most: int = 5) -> list[Span]:
    """Draw spans of a text of this length."""
    edges = st.tuples(st.integers(0, length), st.integers(0, length)).map(sorted)
    pairs = data.draw(st.lists(st.tuples(edges, LABELS), max_size=most))
    return [Span(start, end, label) for (start, end), label in pairs]


def response(data: st.DataObject, tokenizer: Any) -> tuple[list[int], str, list[Range]]:
    """Draw ids, with their text and ranges."""
    ids = sampled(data, tokenizer)
    return ids, tokenizer.decode(ids, skip_special_tokens=True), token_offsets(tokenizer, ids)


@law
@given(data=st.data())
def test_the_ranges_tile_the_text(tokenizer: Any, data: st.DataObject) -> None:
    ids, text, offsets = response(data, tokenizer)
    assert len(offsets) == len(ids)
    reached, last_start = 0, 0
    for start, end in offsets:
        assert start <= end
        if start == end:
            assert start == reached
        else:
            assert last_start <= start <= reached <= end
            last_start = start
        reached = end
    assert reached == len(text)


@law
@given(data=st.data())
def test_tokens_meet_only_inside_a_character(tokenizer: Any, data: st.DataObject) -> None:
    _, _, offsets = response(data, tokenizer)
    solid = [pair for pair in offsets if pair[0] < pair[1]]
    for (_, end), (start, _) in pairwise(solid):
        assert end - start in (0, 1)


@law
@given(data=st.data())
def test_the_ranges_agree_with_a_slow_oracle(tokenizer: Any, data: st.DataObject) -> None:
    ids, _, offsets = response(data, tokenizer)
    visible = [k for k, i in enumerate(ids) if i not in tokenizer.all_special_ids]
    found = [offsets[k] for k in visible]
    kept = [ids[k] for k in visible]
    if tokenizer in map(made, BYTE_LEVEL):
        assert found == by_bytes(tokenizer, kept)
    elif not tokenizer.clean_up_tokenization_spaces:  # where text vanishes behind, prefixes tell nothing
        assert found == by_runs(tokenizer, kept)


def by_bytes(tokenizer: Any, ids: list[int]) -> list[Range]:
    """Oracle: byte b is in the last character of the text of the first b + 1 bytes."""
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    parts = []
    for token in tokenizer.convert_ids_to_tokens(ids):
        spelled = all(letter in letters for letter in token)
        parts.append(bytes(letters[letter] for letter in token) if spelled else token.encode())
    data, at, found = b"".join(parts), 0, []
    for part in parts:
        characters = [characters_of(data[: b + 1]) - 1 for b in range(at, at + len(part))]
        at += len(part)
        here = characters_of(data[:at])
        found.append((characters[0], characters[-1] + 1) if characters else (here, here))
    return found


def characters_of(data: bytes) -> int:
    return len(data.decode("utf-8", "replace"))


def by_runs(tokenizer: Any, ids: list[int]) -> list[Range]:
    """Oracle: decoded prefixes between runs of byte tokens, and byte by byte inside such a run."""
    byte = [re.fullmatch("<0x(..)>", token) for token in tokenizer.convert_ids_to_tokens(ids)]
    found: list[Range] = []
    while len(found) < len(ids):
        first = stop = len(found)
        before = len(tokenizer.decode(ids[:first]))
        while stop < len(ids) and byte[stop]:
            stop += 1
        if stop == first:
            found.append((before, len(tokenizer.decode(ids[: first + 1]))))
            continue
        end = len(tokenizer.decode(ids[:stop]))
        found += [(max(0, end - n), max(0, end - n + 1)) for n in from_the_end(byte[first:stop])]
    return found


def from_the_end(run: list[Any]) -> list[int]:
    """Return how many characters before the end of its run each byte lies."""
    data = bytes(int(match[1], 16) for match in run)
    try:
        total = len(data.decode())
    except UnicodeDecodeError:
        return [len(data) - b for b in range(len(data))]
    return [total - characters_of(data[: b + 1]) + 1 for b in range(len(data))]


@law
@given(text=TEXT)
def test_on_ids_that_a_text_encodes_to_the_ranges_are_the_tokenizers_own(tokenizer: Any, text: str) -> None:
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    ids = encoded["input_ids"]
    if tokenizer.decode(ids, skip_special_tokens=True) != text:
        return
    tokens = tokenizer.convert_ids_to_tokens(ids)
    for token, ours, theirs in zip(tokens, token_offsets(tokenizer, ids), encoded["offset_mapping"], strict=True):
        if tokenizer in map(made, BYTE_LEVEL):
            assert ours == theirs
        elif re.fullmatch("<0x..>", token):  # Unigram gives all bytes of unknown characters one range
            assert theirs[0] <= ours[0] < ours[1] <= theirs[1]
        elif ours[0] == ours[1]:  # the space that encoding put in front and decoding took away
            assert token == "▁"
        else:  # WordPiece leaves the space before a word out
            assert ours[1] == theirs[1]
            assert text[ours[0] : theirs[0]].strip() == ""


@law
@given(data=st.data())
def test_special_tokens_change_nothing_for_the_others(tokenizer: Any, data: st.DataObject) -> None:
    ids, text, offsets = response(data, tokenizer)
    special = set(tokenizer.all_special_ids)
    kept = [i for i in ids if i not in special]
    assert [pair for i, pair in zip(ids, offsets, strict=True) if i not in special] == token_offsets(tokenizer, kept)
    delta = pseudo_rewards(tokenizer, ids, [Span(0, len(text), "positive")])
    assert not any(d for i, d in zip(ids, delta, strict=True) if i in special)


@law
@given(data=st.data())
def test_every_span_survives_from_characters_to_tokens_and_back(tokenizer: Any, data: st.DataObject) -> None:
    _, text, offsets = response(data, tokenizer)
    for span in drawn_spans(data, len(text)):
        (touched,) = span_tokens(offsets, [span])
        (inside,) = span_tokens(offsets, [span], mode="contract")
        (exact,) = span_tokens(offsets, [span], mode="strict")
        characters = set(range(span.start, span.end))
        assert covered(offsets, touched) >= characters
        assert covered(offsets, inside) <= characters
        assert exact == [] or covered(offsets, exact) == characters
        assert set(inside) <= set(touched)


def covered(offsets: list[Range], tokens: list[int]) -> set[int]:
    return {character for k in tokens for character in range(*offsets[k])}


@law
@given(data=st.data())
def test_a_span_means_the_tokens_whose_characters_say_so(tokenizer: Any, data: st.DataObject) -> None:
    _, text, offsets = response(data, tokenizer)
    solid = [k for k, (start, end) in enumerate(offsets) if start < end]
    for span in drawn_spans(data, len(text)):
        characters = set(range(span.start, span.end))
        touched = [k for k in solid if covered(offsets, [k]) & characters]
        inside = [k for k in solid if covered(offsets, [k]) <= characters]
        assert span_tokens(offsets, [span]) == [touched]
        assert span_tokens(offsets, [span], mode="contract") == [inside]
        assert span_tokens(offsets, [span], mode="strict") == [touched if touched == inside else []]


@law
@given(data=st.data(), overlap=st.sampled_from(["cancel", "negative_wins", "last_wins"]))
def test_delta_is_what_each_token_is_told_one_by_one(tokenizer: Any, data: st.DataObject, overlap: Any) -> None:
    ids, text, offsets = response(data, tokenizer)
    spans = drawn_spans(data, len(text))
    delta = pseudo_rewards(tokenizer, ids, spans, overlap=overlap)
    for k, (start, end) in enumerate(offsets):
        told = [s.label for s in spans if max(s.start, start) < min(s.end, end)]
        if overlap == "cancel":
            expected = ("positive" in told) - ("negative" in told)
        elif overlap == "negative_wins":
            expected = -1 if "negative" in told else int("positive" in told)
        else:
            expected = {"positive": 1, "negative": -1}[told[-1]] if told else 0
        assert delta[k] == expected


@law
@given(data=st.data(), overlap=st.sampled_from(["cancel", "last_wins"]), mass=st.sampled_from(["token", "span"]))
def test_mirrored_labels_negate_delta(tokenizer: Any, data: st.DataObject, overlap: Any, mass: Any) -> None:
    ids, text, _ = response(data, tokenizer)
    spans = drawn_spans(data, len(text))
    mirrored = [Span(s.start, s.end, "negative" if s.label == "positive" else "positive") for s in spans]
    choices = {"overlap": overlap, "span_mass": mass, "weighting": "linear_decay"}
    delta = pseudo_rewards(tokenizer, ids, spans, **choices)
    assert pseudo_rewards(tokenizer, ids, mirrored, **choices) == [-d for d in delta]
    assert all(-1 <= d <= 1 for d in delta)


@law
@given(data=st.data(), overlap=st.sampled_from(["cancel", "negative_wins"]))
def test_the_order_of_spans_matters_only_where_the_last_wins(tokenizer: Any, data: st.DataObject, overlap: Any) -> None:
    ids, text, _ = response(data, tokenizer)
    spans = drawn_spans(data, len(text))
    shuffled = data.draw(st.permutations(spans))
    choices = {"overlap": overlap, "weighting": "linear_decay", "span_mass": "span"}
    assert pseudo_rewards(tokenizer, ids, spans, **choices) == pseudo_rewards(tokenizer, ids, shuffled, **choices)


@law
@given(data=st.data(), weighting=st.sampled_from(["uniform", "linear_decay"]))
def test_a_span_has_the_mass_it_is_given(tokenizer: Any, data: st.DataObject, weighting: Any) -> None:
    ids, text, offsets = response(data, tokenizer)
    start = data.draw(st.integers(0, len(text)))
    span = Span(start, data.draw(st.integers(start, len(text))), "negative")
    per_token = pseudo_rewards(tokenizer, ids, [span], weighting=weighting)
    shared = pseudo_rewards(tokenizer, ids, [span], weighting=weighting, span_mass="span", offsets=offsets)
    by_length = pseudo_rewards(tokenizer, ids, [span], weighting=weighting, span_mass="response")
    assert sum(shared) == pytest.approx(-1.0 if span.start < span.end else 0.0)
    assert by_length == pytest.approx([d / len(ids) for d in per_token])


@law
@given(data=st.data())
def test_a_weighting_of_your_own_sees_the_text_of_its_span_once(tokenizer: Any, data: st.DataObject) -> None:
    ids, text, offsets = response(data, tokenizer)
    seen = []
    spans = drawn_spans(data, len(text), most=2)
    pseudo_rewards(tokenizer, ids, spans, weighting=lambda texts: seen.append("".join(texts)) or [1.0] * len(texts))
    meant = [tokens for tokens in span_tokens(offsets, spans) if tokens]
    assert seen == [text[offsets[tokens[0]][0] : offsets[tokens[-1]][1]] for tokens in meant]


@law
@given(data=st.data())
def test_what_was_learned_of_a_tokenizer_before_changes_nothing(tokenizer: Any, data: st.DataObject) -> None:
    from text2grad.align.offsets import _TABLES

    ids, _, offsets = response(data, tokenizer)
    _TABLES.clear()
    assert token_offsets(tokenizer, ids) == offsets
