"""Prompts → token ids; the ids that end a response, and the id that pads a batch."""

import copy
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.errors import ConfigError, DataError, ModelError
from text2grad.files import read_text
from text2grad.models.chat_template import LostToolsError, prompt_text, turn_end
from text2grad.models.pretrained import context_of, vocabulary_of
from text2grad.types import Example, Message, PromptFormat


def with_chat_template(tokenizer: Any, recipe: Recipe) -> Any:
    """Return a tokenizer with the chat template of a recipe, itself where the recipe has none.

    Variables are set at the top of the template, unless a row sets them: so the policy's saved tokenizer has them, too.

    Raises:
        ConfigError: if a name is no variable of templates.
        DataError: if the file of a template cannot be read.
    """
    template, variables = recipe.rollout.chat_template, recipe.rollout.chat_template_kwargs
    if not template and not variables:
        return tokenizer
    if template and not re.search(r"{[{%]", template):
        template = read_text(Path(template))
    own, head = template or tokenizer.chat_template or {}, ""
    for name, value in variables.items():
        if not name.isidentifier() or name in ("messages", "tools", "documents", "add_generation_prompt") or not own:
            raise ConfigError(f"rollout.chat_template_kwargs: {name!r} is no variable of a template; remove it")
        spelled = "none" if value is None else json.dumps(value, ensure_ascii=False)
        head += f"{{%- if {name} is not defined %}}{{%- set {name} = {spelled} %}}{{%- endif %}}"
    texts = {
        name: head + text.removeprefix(head) for name, text in (own if isinstance(own, dict) else {"": own}).items()
    }
    changed = copy.copy(tokenizer)
    changed.chat_template = texts.get("", texts)
    return changed


def encode_prompts(
    tokenizer: Any, examples: Sequence[Example], *, prompt_format: str = "auto"
) -> list[tuple[int, ...]]:
    """Return the token ids of each prompt.

    Args:
        tokenizer: the policy's.
        examples: the task instances.
        prompt_format: "plain" encodes the text as it stands, messages joined by blank lines; "chat" applies the chat
            template, with the generation prompt; "auto" is chat where the tokenizer has a template.

    Raises:
        DataError: if there are no examples, or a prompt is empty or refused by the chat template.
        LostToolsError: if the format leaves out calls of tools, or results, of a prompt.
        ModelError: if messages need a chat template and the tokenizer has none.
    """
    if not examples:
        raise DataError("there are no prompts: the list of examples is empty")
    prompts = ((f"example {row}", example.prompt) for row, example in enumerate(examples))
    if format_of(tokenizer, prompt_format, prompts) == "chat":
        texts = [prompt_text(tokenizer, example, f"example {row}") for row, example in enumerate(examples)]
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    else:
        for row, prompt in enumerate(example.prompt for example in examples):
            if not isinstance(prompt, str) and any(m.get("tool_calls") or m.get("function_call") for m in prompt):
                raise LostToolsError(
                    f"example {row} calls a tool, which plain text has no place for; take a chat model"
                )
        encoded = plain_ids(tokenizer, [e.joined_text for e in examples])
    for row, (ids, example) in enumerate(zip(encoded, examples, strict=True)):
        if not ids:
            raise DataError(
                f"example {row} has no prompt token (prompt {example.prompt_text!r}): nothing would predict its first "
                "response token. Give it some text, or a tokenizer that adds a beginning-of-sequence token."
            )
    return [tuple(ids) for ids in encoded]


def plain_ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of texts that go on.

    Tokens that the tokenizer puts before a text, such as a beginning of sequence, are kept; tokens that it puts behind
    a text, such as an end of sequence, are left out.
    """
    encoded = [list(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]]
    for text, ids in zip(texts, encoded, strict=True):
        bare = list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        if bare:  # the tokenizer puts the same tokens around every text
            starts = range(len(ids) - len(bare), -1, -1)
            start = next((at for at in starts if ids[at : at + len(bare)] == bare), len(ids) - len(bare))
            behind = len(ids) - len(bare) - start
            return [own[: len(own) - behind] for own in encoded]
    return encoded


def format_of(
    tokenizer: Any, wanted: str = "auto", prompts: Iterable[tuple[str, str | Sequence[Message]]] = ()
) -> PromptFormat:
    """Return the format in which a model sees prompts: "auto" is chat where the tokenizer has a chat template.

    Args:
        tokenizer: the model's.
        wanted: "auto", "plain" or "chat".
        prompts: the place of each prompt, for the error's message, and the prompt.

    Raises:
        ModelError: if the tokenizer lacks the template that the format, or a prompt of messages, needs.
    """
    if getattr(tokenizer, "chat_template", None):
        return "plain" if wanted == "plain" else "chat"
    chats = [where for where, prompt in prompts if not isinstance(prompt, str)]
    if wanted == "chat" or (chats and wanted == "auto"):
        what = f"{chats[0]} is a chat" if chats else 'model.prompt_format = "chat"'
        raise ModelError(
            f"{what}, but the tokenizer of {getattr(tokenizer, 'name_or_path', '')!r} has no chat template; take a "
            'model that has one, or join messages as plain text with model.prompt_format = "plain"'
        )
    return "plain"


def fitting_prompts(
    model: Any, tokenizer: Any, examples: Sequence[Example], *, prompt_format: str, max_new_tokens: int, too_long: str
) -> tuple[list[Example], list[tuple[int, ...]]]:
    """Return the examples whose prompts leave room for a response in the model's context, and their prompts' ids.

    Args:
        model: the policy, or its config, which names the context length and the size of the vocabulary.
        tokenizer: the policy's.
        examples: the task instances.
        prompt_format: as in `encode_prompts`.
        max_new_tokens: the length limit of responses.
        too_long: "refuse" raises when a prompt is too long, "skip" leaves it out.

    Raises:
        DataError: if no prompt is left, or one is refused.
        ModelError: if a prompt holds a token that the model's embedding lacks.
    """
    context = context_of(model)
    room = context - max_new_tokens
    if room < 1:
        raise DataError(
            f"rollout.max_new_tokens = {max_new_tokens} leaves no room for a prompt in the model's context of {context}"
        )
    encoded = encode_prompts(tokenizer, examples, prompt_format=prompt_format)
    long = [row for row, ids in enumerate(encoded) if len(ids) > room]
    if long and too_long == "refuse":
        raise DataError(
            f"{len(long)} of {len(examples)} prompts have more than {room} tokens, the room that the model's context "
            f"leaves beside max_new_tokens; the first is example {long[0]} with {len(encoded[long[0]])} tokens "
            f"({examples[long[0]].prompt_text[:60]!r}). Shorten them, lower rollout.max_new_tokens, or leave them out "
            'with data.too_long = "skip".'
        )
    check_ids(model, encoded)
    kept = [row for row, ids in enumerate(encoded) if len(ids) <= room]
    if not kept:
        raise DataError(f"all {len(examples)} prompts are longer than {room} tokens; lower rollout.max_new_tokens")
    return [examples[row] for row in kept], [encoded[row] for row in kept]


def check_ids(model: Any, rows: Iterable[Sequence[int]]) -> None:
    """Refuse token ids that the embedding of a model, or of a config, does not have.

    Raises:
        ModelError: if there is one: the tokenizer has tokens that the model was not resized for.
    """
    vocabulary = vocabulary_of(model)
    beyond = next(((row, max(ids)) for row, ids in enumerate(rows) if ids and max(ids) >= vocabulary), None)
    if beyond:
        raise ModelError(
            f"row {beyond[0]} has the id {beyond[1]}, and the model's embedding has {vocabulary} rows; call "
            "model.resize_token_embeddings(len(tokenizer)) and save the model, or take the tokenizer that belongs to it"
        )


def answer_end(tokenizer: Any, prompt_format: str = "auto") -> list[int]:
    """Return the ids that end an answer, by the chat template or the tokenizer; none where neither names an end."""
    chat = format_of(tokenizer, prompt_format) == "chat"
    if chat and (end := turn_end(tokenizer).text):
        return list(tokenizer(end, add_special_tokens=False)["input_ids"])
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def stop_ids(
    model: Any, tokenizer: Any, override: Sequence[int] = (), *, prompt_format: str = "auto"
) -> tuple[int, ...]:
    """Return the ids that end a response: the override, or what generation config, tokenizer and chat template name.

    Raises:
        ModelError: if nothing names one.
    """
    configured = getattr(model.generation_config, "eos_token_id", None)
    configured = [configured] if isinstance(configured, int) else list(configured or ())
    ends = [*answer_end(tokenizer, "plain"), *answer_end(tokenizer, prompt_format)[-1:]]
    named = list(override) or [*configured, *ends]
    vocabulary = vocabulary_of(model)
    known = [token for token in named if token < vocabulary]
    if not known:
        why = "neither the tokenizer nor the model's generation config names an end-of-sequence token"
        if named:
            why = f"the end-of-sequence token {named[0]} lies beyond the model's embedding of {vocabulary} rows"
        way = " to ids that the model knows" if named else ""
        raise ModelError(f"{why}, so no response could ever end. Set rollout.eos_token_ids{way}.")
    return tuple(dict.fromkeys(known))


def padding_id(model: Any, tokenizer: Any, eos_ids: Sequence[int]) -> int:
    """Return a padding id that the embedding has; any will do, since masks come from lengths."""
    own, vocabulary = tokenizer.pad_token_id, vocabulary_of(model)
    return int(own if own is not None and own < vocabulary else eos_ids[0])
