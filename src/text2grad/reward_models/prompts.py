"""Responses → the ids of prompts with them, the reward model's above all, in which a response is text and nothing else.

A tokenizer reads the text of a special token, such as `<|im_end|>`, as this token. A policy that spells one would end
its own response in the reward model's prompt and write the critique itself, or a further turn of a chat that is scored;
so special tokens within the response, or within messages in a chat template, are encoded as the characters that they
are. A prompt without a template keeps its special tokens, which the policy reads, too. A tokenizer in Python alone that
changes letters keeps all of them.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from text2grad.align import Range, added_tokens, encode, text_offsets
from text2grad.models import encode_prompts, format_of, plain_ids, prompt_text
from text2grad.reward_models.writing import critique_prompt, critique_request
from text2grad.types import Conversation, Example, PromptFormat

_MESSAGE = "\ue0fd\ue0fc"  # private-use characters, which stand for the message in a chat template


def critique_prompts(
    tokenizer: Any,
    examples: Sequence[Example],
    responses: Sequence[str],
    prompt_format: PromptFormat,
    form: str = "spans",
) -> list[list[int]]:
    """Return the ids of the reward model's prompt for each response."""
    pairs = list(zip(examples, responses, strict=True))
    if not pairs:
        return []
    ask = partial(critique_request, form=form) if prompt_format == "chat" else critique_prompt
    questions = [ask(*pair) for pair in pairs]
    own = [0 if isinstance(response, Conversation) else len(example.prompt_text) for example, response in pairs]
    within = [[(start, len(asked))] for start, asked in zip(own, questions, strict=True)]
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
    if not (special := special_tokens(tokenizer)):
        return prompts
    in_chat = format_of(tokenizer, prompt_format) == "chat"
    is_special = re.compile("|".join(map(re.escape, special.values())))
    for row, (question, ranges) in enumerate(zip(questions, within, strict=True)):
        whole = question
        places = [(0, len(question))] if in_chat else ranges
        if not any(is_special.search(question[start:end]) for start, end in places):
            continue
        if in_chat:
            whole, around = (prompt_text(tokenizer, each) for each in (asked[row], Example(_MESSAGE)))
            before, _, after = around.partition(_MESSAGE)
            places = [(len(before), len(whole) - len(after))]
        prompts[row] = tuple(_as_text(tokenizer, special, whole, places, add_special_tokens=not in_chat))
    return prompts


def _as_text(
    tokenizer: Any, special: Mapping[int, str], text: str, within: Sequence[Range], *, add_special_tokens: bool
) -> list[int]:
    """Return the ids of a text with the special tokens in some ranges replaced by the ids of their characters.

    A special token may take the white space around it, which is not asked about.
    """
    bare, places = text_offsets(tokenizer, text, split_special_tokens=False)
    before = plain_ids(tokenizer, [text])[0][: -len(bare) or None] if add_special_tokens else []
    if places is None:
        return [*before, *bare]
    replaced = before
    for token, (start, end) in zip(bare, places, strict=True):
        piece = text[start:end]
        first, last = end - len(piece.lstrip()), start + len(piece.rstrip())
        if token in special and piece and any(low <= first and last <= high for low, high in within):
            replaced += encode(tokenizer, piece)
        else:
            replaced.append(token)
    return replaced


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return id → text of the tokens that are not text."""
    return {number: token.content for number, token in added_tokens(tokenizer).items() if token.special}
