"""Prompts and responses → ids as classifiers read them, in which a response is text and nothing else.

Special tokens that a response, or a message in a chat template, spells are encoded as the characters that they are
(`text2grad.reward_models.prompts`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from text2grad.align.offsets import Range
from text2grad.errors import DataError
from text2grad.models.prompts import check_ids
from text2grad.reward_models.prompts import special_tokens
from text2grad.reward_models.writing import critique_prompt
from text2grad.types import Critique, Example


class Encoded(NamedTuple):
    """The ids of a text, and the characters [start, end) of each; no characters from a tokenizer in Python alone."""

    ids: list[int]
    offsets: list[Range]


def check_text_ids(model: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer that reads text as ids which the model's embedding does not have.

    Special tokens may lie beyond the embedding, as many tokens of padding do, until a row holds them (`check_ids`).

    Raises:
        ModelError: if there is such an id.
    """
    special = special_tokens(tokenizer)
    check_ids(model, [[number for number in tokenizer.get_vocab().values() if number not in special]])


def too_long(ids: Sequence[int], context: float) -> Critique:
    """Return the failed critique of a response that does not fit into the reward model's context."""
    return Critique(
        f"prompt and response have {len(ids)} tokens, more than the reward model's context of {context}",
        status="unparsable",
    )


def _split_specials(
    tokenizer: Any,
    special: Mapping[int, str],
    text: str,
    tokens: Iterable[tuple[int, Range]],
    within: Sequence[Range],
) -> Encoded:
    """Return the tokens of a text with the special tokens in some ranges replaced by the tokens of their characters.

    A special token may take the white space around it, which is not asked about.
    """
    encoded = Encoded([], [])
    for token, (start, end) in tokens:
        parts: Iterable[tuple[int, Range]] = [(token, (start, end))]
        piece = text[start:end]
        first, last = end - len(piece.lstrip()), start + len(piece.rstrip())
        if token in special and piece and any(low <= first and last <= high for low, high in within):
            spelled = tokenizer(
                piece, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
            )
            places = [(start + low, start + high) for low, high in spelled["offset_mapping"]]
            parts = zip(spelled["input_ids"], places, strict=True)
        for id_, place in parts:
            encoded.ids.append(id_)
            encoded.offsets.append(place)
    return encoded


def _encode_texts(
    tokenizer: Any, texts: Sequence[str], within: Sequence[Sequence[Range]], *, add_special_tokens: bool = True
) -> list[Encoded]:
    """Return the tokens of each text; special tokens that are spelled within its ranges are text."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts),
        add_special_tokens=add_special_tokens,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
    )
    if not tokenizer.is_fast:
        return [Encoded(list(ids), []) for ids in encoded["input_ids"]]
    special = special_tokens(tokenizer)
    rows = zip(texts, encoded["input_ids"], encoded["offset_mapping"], within, strict=True)
    return [
        _split_specials(tokenizer, special, text, zip(ids, offsets, strict=True), ranges)
        for text, ids, offsets, ranges in rows
    ]


def encode_responses(tokenizer: Any, examples: Sequence[Example], responses: Sequence[str]) -> list[Encoded]:
    """Return the tokens of each prompt with its response without a chat template (`critique_prompt`)."""
    pairs = list(zip(examples, responses, strict=True))
    starts = [len(example.prompt_text) for example in examples]
    within = [[(start, start + len(response))] for start, response in zip(starts, responses, strict=True)]
    return _encode_texts(tokenizer, [critique_prompt(*pair) for pair in pairs], within)


def encode_chats(
    tokenizer: Any, chats: Sequence[Sequence[Mapping[str, Any]]], *, refusal: str, way_out: str
) -> list[Encoded]:
    """Return the tokens of chats in the chat template; `refusal` begins and `way_out` ends the message of an error.

    Raises:
        DataError: if the template, a program of the model's authors, refuses a chat.
    """
    marked, unmark = _mark_specials(tokenizer, chats)
    texts = []
    for chat in marked:
        try:
            texts.append(unmark(str(tokenizer.apply_chat_template(chat, tokenize=False))))
        except Exception as error:
            roles = ", ".join(repr(message["role"]) for message in chat)
            raise DataError(f"{refusal} (roles {roles}): {error}. {way_out}") from error
    return _encode_texts(
        tokenizer, [text for text, _ in texts], [ranges for _, ranges in texts], add_special_tokens=False
    )


def _mark_specials(tokenizer: Any, chats: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[list[Any], "_Unmark"]:
    """Return chats with a mark in place of each special token that a message spells, and the way back.

    A chat template may cut or change messages, so that their place in its text is not known; a mark is found again.
    """
    texts = sorted(special_tokens(tokenizer).values(), key=len, reverse=True)
    contents = {character for chat in chats for message in chat for character in message["content"]}
    sign = next(one for one in map(chr, range(0xF0000, 0xFFFFE)) if one not in contents)  # private use
    spelled = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
    unmark = _Unmark(sign, [])

    def mark(found: re.Match[str]) -> str:
        unmark.spelled.append(found[0])
        return f"{sign}{len(unmark.spelled) - 1}{sign}"

    marked = [[{**message, "content": spelled.sub(mark, message["content"])} for message in chat] for chat in chats]
    return marked, unmark


class _Unmark(NamedTuple):
    """The way back from marks: the sign around the number of each, and the special tokens by number."""

    sign: str
    spelled: list[str]

    def __call__(self, text: str) -> tuple[str, list[Range]]:
        """Return a text with the special tokens in place of their marks, and their places."""
        whole, ranges = "", list[Range]()
        for number, part in enumerate(re.split(rf"{self.sign}(\d+){self.sign}", text)):
            piece = self.spelled[int(part)] if number % 2 else part
            if number % 2:
                ranges.append((len(whole), len(whole) + len(piece)))
            whole += piece
        return whole, ranges
