"""Responses → the ids of the reward model's prompts, in which a response is text and nothing else.

A tokenizer reads the text of a special token, such as `<|im_end|>`, as this token. A policy that spells one would end
its own response in the reward model's prompt and write the critique itself; so special tokens within the response, or
within the message to a model with a chat template, are encoded as the characters that they are. A tokenizer without
character offsets (in Python alone) keeps them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from text2grad.align import Range, encode
from text2grad.models import chat_texts, encode_prompts, plain_ids
from text2grad.reward_models.writing import critique_questions
from text2grad.types import CritiqueForm, Example, PromptFormat

_MESSAGE = "\ue0fd\ue0fc"  # private-use characters, which stand for the message in a chat template


def critique_prompts(
    tokenizer: Any,
    examples: Sequence[Example],
    responses: Sequence[str],
    prompt_format: PromptFormat,
    form: CritiqueForm = "spans",
) -> list[list[int]]:
    """Return the ids of the reward model's prompt for each response."""
    questions = critique_questions(examples, responses, prompt_format, form)
    if not questions:
        return []
    in_chat, asked = prompt_format == "chat", list(map(Example, questions))
    if in_chat:
        prompts = [list(ids) for ids in encode_prompts(tokenizer, asked, prompt_format="chat")]
    else:
        prompts = plain_ids(tokenizer, questions)
    special = _special_tokens(tokenizer)
    is_special = re.compile("|".join(map(re.escape, special.values())))
    for row, text in enumerate(questions if in_chat else responses):
        if special and tokenizer.is_fast and is_special.search(text):
            if in_chat:
                whole, around = chat_texts(tokenizer, [asked[row], Example(_MESSAGE)])
                before, _, after = around.partition(_MESSAGE)
                within = (len(before), len(whole) - len(after))
            else:
                whole, start = questions[row], len(examples[row].prompt_text)
                within = (start, start + len(text))
            prompts[row] = _as_text(tokenizer, special, whole, within, add_special_tokens=not in_chat)
    return prompts


def _as_text(
    tokenizer: Any, special: Mapping[int, str], text: str, within: Range, *, add_special_tokens: bool
) -> list[int]:
    """Return the ids of a text with the special tokens in a range replaced by the ids of their characters."""
    encoded = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True, verbose=False)
    ids: list[int] = plain_ids(tokenizer, [text])[0] if add_special_tokens else encoded["input_ids"]
    found: list[int] = []
    for token, (start, end) in zip(ids, encoded["offset_mapping"], strict=False):  # without tokens behind the text
        is_text = token in special and within[0] <= start < end <= within[1]
        found += encode(tokenizer, text[start:end]) if is_text else [token]
    return found


def _special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return id → text of the tokens that are not text."""
    return {number: token.content for number, token in tokenizer.added_tokens_decoder.items() if token.special}
