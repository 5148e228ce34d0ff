"""Responses → the ids of prompts with them, the reward model's above all, in which a response is text and nothing else.

A tokenizer reads the text of a special token, such as `<|im_end|>`, as this token. A policy that spells one would end
its own response in the reward model's prompt and write the critique itself, or a further turn of a chat that is scored;
so special tokens within the response, or within messages in a chat template, are encoded as the characters that they
are. A prompt without a template keeps its special tokens, which the policy reads, too. A tokenizer without character
offsets (in Python alone) keeps all of them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from text2grad.align import Range
from text2grad.models import chat_texts, encode_prompts, plain_ids, templated
from text2grad.reward_models.writing import critique_prompt, critique_request, shown
from text2grad.types import CritiqueForm, Evidence, Example, PromptFormat

_MESSAGE = "\ue0fd\ue0fc"  # private-use characters, which stand for the message in a chat template


def critique_prompts(
    tokenizer: Any,
    examples: Sequence[Example],
    responses: Sequence[str],
    prompt_format: PromptFormat,
    form: CritiqueForm = "spans",
    *,
    evidence: Evidence = "none",
    prompt_words: int | None = None,
    marks: Sequence[str] = (),
) -> list[list[int]]:
    """Return the ids of the reward model's prompt for each response; `marks`: of each, of a probe (`marks`)."""
    pairs = list(zip(examples, responses, strict=True))
    if not pairs:
        return []
    ask = partial(critique_request, form=form) if prompt_format == "chat" else critique_prompt
    questions = [
        ask(*pair, evidence=evidence, prompt_words=prompt_words, marks=own)
        for pair, own in zip(pairs, marks or [""] * len(pairs), strict=True)
    ]
    starts = [len(shown(*pair, prompt_words=prompt_words).prompt) for pair in pairs]
    within = [[(start, len(question))] for start, question in zip(starts, questions, strict=True)]
    return [list(ids) for ids in encode_questions(tokenizer, questions, within, prompt_format=prompt_format)]


def encode_questions(
    tokenizer: Any, questions: Sequence[str], within: Sequence[Sequence[Range]], *, prompt_format: str
) -> list[tuple[int, ...]]:
    """Return the ids of prompts in which others' texts are text and nothing else.

    Args:
        tokenizer: of the model that reads the prompts.
        questions: the prompts.
        within: the characters [start, end) of others' texts in each, whose special tokens are text; in a chat template
            all special tokens of the prompt are.
        prompt_format: as in `encode_prompts`.
    """
    asked = list(map(Example, questions))
    prompts = encode_prompts(tokenizer, asked, prompt_format=prompt_format)
    special = _special_tokens(tokenizer)
    if not special or not tokenizer.is_fast:
        return prompts
    in_chat = bool(getattr(tokenizer, "chat_template", None)) and prompt_format != "plain"
    is_special = re.compile("|".join(map(re.escape, special.values())))
    for row, (question, ranges) in enumerate(zip(questions, within, strict=True)):
        whole = question
        places = [(0, len(question))] if in_chat else ranges
        if not any(is_special.search(question[start:end]) for start, end in places):
            continue
        if in_chat:
            whole, around = chat_texts(tokenizer, [asked[row], Example(_MESSAGE)])
            before, _, after = around.partition(_MESSAGE)
            places = [(len(before), len(whole) - len(after))]
        prompts[row] = tuple(_as_text(tokenizer, special, whole, places, add_special_tokens=not in_chat))
    return prompts


class Encoded(NamedTuple):
    """The ids of a text, and the characters [start, end) of each; no characters from a tokenizer in Python alone."""

    ids: list[int]
    offsets: list[Range]


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
    special = _special_tokens(tokenizer)
    rows = zip(texts, encoded["input_ids"], encoded["offset_mapping"], within, strict=True)
    return [
        _split(tokenizer, special, text, zip(ids, offsets, strict=True), ranges) for text, ids, offsets, ranges in rows
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
    """Return the tokens of chats in the chat template; `refusal` and `way_out` as in `templated`."""
    marked, unmark = _mark_specials(tokenizer, chats)
    texts = [unmark(templated(tokenizer, chat, refusal=refusal, way_out=way_out)) for chat in marked]
    return _encode_texts(
        tokenizer, [text for text, _ in texts], [ranges for _, ranges in texts], add_special_tokens=False
    )


def _mark_specials(tokenizer: Any, chats: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[list[Any], "_Unmark"]:
    """Return chats with a mark in place of each special token that a message spells, and the way back.

    A chat template may cut or change messages, so that their place in its text is not known; a mark is found again.
    """
    texts = sorted(_special_tokens(tokenizer).values(), key=len, reverse=True)
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


def _as_text(
    tokenizer: Any, special: Mapping[int, str], text: str, within: Sequence[Range], *, add_special_tokens: bool
) -> list[int]:
    """Return the ids of a text with the special tokens in some ranges replaced by the ids of their characters."""
    encoded = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, verbose=False)
    ids: list[int] = plain_ids(tokenizer, [text])[0] if add_special_tokens else encoded["input_ids"]
    tokens = zip(ids, encoded["offset_mapping"], strict=False)  # without tokens behind the text
    return _split(tokenizer, special, text, tokens, within).ids


def _split(
    tokenizer: Any,
    special: Mapping[int, str],
    text: str,
    tokens: Iterable[tuple[int, Range]],
    within: Sequence[Range],
) -> Encoded:
    """Return the tokens of a text with the special tokens in some ranges replaced by the tokens of their characters.

    A special token may take the white space around it, which is not asked about.
    """
    found = Encoded([], [])
    for token, (start, end) in tokens:
        own: Iterable[tuple[int, Range]] = [(token, (start, end))]
        if token in special and start < end:
            piece = text[start:end]
            first, last = end - len(piece.lstrip()), start + len(piece.rstrip())
            if any(low <= first and last <= high for low, high in within):
                parts = tokenizer(
                    piece,
                    add_special_tokens=False,
                    split_special_tokens=True,
                    return_offsets_mapping=True,
                    verbose=False,
                )
                places = [(start + low, start + high) for low, high in parts["offset_mapping"]]
                own = zip(parts["input_ids"], places, strict=True)
        for id_, place in own:
            found.ids.append(id_)
            found.offsets.append(place)
    return found


def _special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return id → text of the tokens that are not text."""
    return {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
