"""How far a prompt supports the words of a response: features of a probe for responses that must follow from a prompt.

    prompt, response        → log p(token | prompt, tokens before)
    empty prompt, response  → log p(token | tokens before)

A token that the prompt supports gains by it: the difference is the pointwise mutual information of prompt and token,
which is low where a summary says more than its source (arXiv 2210.13210). Beside it stands what needs no model: whether
the prompt holds a word, and its pairs with the words beside it. Feedback marks claims, not single words, so that a unit
also has the means of the words around it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from text2grad.align import AlignSettings, Range, encode, label_tokens
from text2grad.errors import ModelError
from text2grad.feedback import words_of
from text2grad.models import can_share_prompts, chat_texts, collate, encode_prompts, plain_ids, response_logprobs
from text2grad.reward_models.absent_words import absent_words
from text2grad.reward_models.writing import words_within
from text2grad.types import Critique, Example, PromptFormat, Rollout, Span

QUANTITIES = ("log-prob", "gain by the prompt", "word absent", "pairs absent")
"""Of a word: mean log-prob of its tokens in nats; the same minus that with an empty prompt; 1 if the prompt does not
hold the word; the share of its pairs with its neighbours that the prompt does not hold."""
FEATURES = 2 * len(QUANTITIES)  # the means of the unit's words, and of the words around it


class SupportRow(NamedTuple):
    """A response and its prompt.

    Attributes:
        ids: the prompt and the response behind it.
        tokens: the positions in the response of the tokens of each word; None if they decode to another text.
        prompt: the number of the prompt's tokens.
        empty: the ids of the empty prompt.
        absent: of each word, whether the prompt lacks it, and the share of its pairs that the prompt lacks.
        units: of each unit, the numbers of its words, and of the words around it.
    """

    ids: Sequence[int]
    tokens: list[list[int]] | None
    prompt: int
    empty: Sequence[int]
    absent: list[tuple[float, float]]
    units: list[tuple[list[int], list[int]]]

    @property
    def read_ids(self) -> tuple[Sequence[int], ...]:
        """The ids that the base reads, those of the empty prompt apart."""
        return (self.ids, self.empty)

    @property
    def order(self) -> tuple[Any, ...]:
        """Place in reading: equal prompts, which are read once, stand together."""
        return (self.prompt, tuple(self.ids))


def support_rows(
    tokenizer: Any,
    examples: Sequence[Example],
    responses: Sequence[str],
    split: Callable[[str], list[Range]],
    around: Callable[[str], list[Range]],
    prompt_format: PromptFormat,
) -> list[SupportRow]:
    """Return what is read for each response: `split` gives its units, `around` the wider ranges in which they begin."""
    empty = empty_prompt(tokenizer, prompt_format)
    given = [example for example in examples if example.prompt]
    encoded = iter(encode_prompts(tokenizer, given, prompt_format=prompt_format) if given else ())
    prompts = [list(next(encoded)) if example.prompt else empty for example in examples]
    found = []
    for example, prompt, response in zip(examples, prompts, responses, strict=True):
        words = words_of(response)
        ids, tokens = range_tokens(tokenizer, response, words)
        everything = list(range(len(words)))
        wider = {word: inside for inside in words_within(response, around(response)) for word in inside}
        units = [
            (inside or everything, wider[inside[0]] if inside else everything)
            for inside in words_within(response, split(response))
        ]
        absent = absent_words(example.prompt_text, response)
        found.append(SupportRow([*prompt, *ids], tokens, len(prompt), empty, absent, units))
    return found


def range_tokens(
    tokenizer: Any, response: str, ranges: Sequence[Range]
) -> tuple[tuple[int, ...], list[list[int]] | None]:
    """Return the ids of a response, and the positions of the tokens of each range; None if they decode to another text.

    A range without a token of its own has all tokens.
    """
    marked = Critique("", tuple(Span(*place, "negative") for place in ranges))
    found = label_tokens(tokenizer, response, marked, AlignSettings())
    if found is None:
        return encode(tokenizer, response), None
    return found.ids, [list(own or range(len(found.ids))) for own in found.tokens]


def empty_prompt(tokenizer: Any, prompt_format: PromptFormat) -> list[int]:
    """Return the ids before a response without a prompt: an empty message, or the token that begins or ends texts.

    Raises:
        ModelError: if the tokenizer has neither.
    """
    if prompt_format == "chat":
        return list(tokenizer(chat_texts(tokenizer, [Example("")]), add_special_tokens=False)["input_ids"][0])
    _, before = plain_ids(tokenizer, ["a", ""])  # "a" shows what stands behind a text, and is left out
    if not before and tokenizer.eos_token_id is None:
        raise ModelError(
            "the tokenizer has no token that begins or ends texts, so nothing predicts the first token of a response "
            'without a prompt, which the features "support" need; take the features "states", or give it such a token'
        )
    return before or [tokenizer.eos_token_id]


def support_of(
    model: Any, rows: Sequence[SupportRow], chosen: Sequence[int], rows_at_once: int
) -> Iterator[tuple[int, Any]]:
    """Yield for each chosen row the features of its units, [units, 1, FEATURES], on the CPU."""
    for start in range(0, len(chosen), rows_at_once):
        numbers = chosen[start : start + rows_at_once]
        batch = [rows[number] for number in numbers]
        responses = [tuple(row.ids[row.prompt :]) for row in batch]
        given = continuation_logprobs(model, [tuple(row.ids[: row.prompt]) for row in batch], responses)
        alone = continuation_logprobs(model, [tuple(row.empty) for row in batch], responses)
        for number, row, logp, without in zip(numbers, batch, given, alone, strict=True):
            yield number, _features(row, logp, logp - without)


def _features(row: SupportRow, logp: Any, gain: Any) -> Any:
    """Return the features of a row's units, [units, 1, FEATURES]; `logp` and `gain` are those of its tokens, [T]."""
    import torch

    if not row.units:
        return torch.zeros(0, 1, FEATURES)
    of_words = torch.tensor(
        [
            [float(logp[own].mean()), float(gain[own].mean()), *pair]
            for own, pair in zip(row.tokens or (), row.absent, strict=True)
        ]
    )
    return torch.stack([torch.cat([of_words[part].mean(0) for part in unit]) for unit in row.units])[:, None]


def continuation_logprobs(
    model: Any, prompts: Sequence[tuple[int, ...]], continuations: Sequence[tuple[int, ...]]
) -> list[Any]:
    """Return the log-probs in nats of the tokens behind each prompt, [T] on the CPU; equal prompts are read once."""
    import torch

    some = [number for number, ids in enumerate(continuations) if ids]
    found = [torch.zeros(0) for _ in continuations]
    if some:
        rollouts = [Rollout(Example(""), prompts[number], continuations[number], "", truncated=True) for number in some]
        batch = collate(rollouts, pad_id=0, device=model.device, share_prompts=can_share_prompts(model))
        with torch.no_grad():
            logp = response_logprobs(model, batch)[0].float().cpu()
        for number, own in zip(some, logp, strict=True):
            found[number] = own[: len(continuations[number])]
    return found
