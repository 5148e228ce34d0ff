"""The generative reward model R_φ(z | x, y): a language model that writes critiques of responses (section 3.4).

    prompt x, response y → prompt of the reward model → decoded critique text z → feedback and spans

Constrained decoding guarantees, for any weights, complete JSON whose quotes occur in the response, or that has a label
for each of its words.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from text2grad.align import encode
from text2grad.costs import TokenCount
from text2grad.errors import DataError, ModelError
from text2grad.feedback import Annotation, vote
from text2grad.files import to_json, write_atomically
from text2grad.models import (
    FineTuning,
    OnStep,
    Row,
    context_of,
    decode,
    load_policy,
    load_tokenizer,
    most_likely,
    padding_id,
    row_of_ids,
    save_model,
    shared,
    stop_ids,
    texts_of,
    train_on_rows,
    with_end,
)
from text2grad.reward_models.decoding.constrained import ConstrainedCritique, free_choice, skeleton_of, valid_choice
from text2grad.reward_models.decoding.skeleton import Skeleton
from text2grad.reward_models.format import FORMAT_FILE, CritiqueFormat, read_critique, saved_format
from text2grad.reward_models.prompts import critique_prompts
from text2grad.reward_models.shared_base import learning, load_weights
from text2grad.reward_models.writing import critique_target, has_outcomes, inputs_of
from text2grad.types import Conversation, Critique, Example

NO_LIMIT = 2**31  # tokens, where a model's config names no context


class _Request(NamedTuple):
    """One critique to decode."""

    ids: list[int]  # of the reward model's prompt
    response: str  # the text that may be quoted
    group: str  # requests of one group share a prefix
    rng: Random | None = None  # samples the critique; None decodes greedily


class GenerativeRewardModel:
    """A critic that decodes critiques with a language model: `model(examples, responses)` returns critiques.

    A sampled critique depends on its own prompt only, not on the batch.

    Attributes:
        tokenizer: of the reward model; the policy may have another one.
        eos_ids: ids that end a critique.
        format: of the critiques.
    """

    def __init__(
        self, model: Any, tokenizer: Any, format: CritiqueFormat | None = None, *, rows_at_once: int = 64
    ) -> None:
        """Take a Hugging Face causal language model that was trained to write critiques, and its tokenizer.

        `rows_at_once` is the number of critiques per batch; it changes memory, not results.

        Raises:
            ModelError: if the tokenizer or `format.max_new_tokens` has no room for the JSON of a critique, or the model
                has no end-of-sequence token.
        """
        self.tokenizer, self.format = tokenizer, format or CritiqueFormat()
        self.eos_ids = stop_ids(model, tokenizer, prompt_format=self.format.prompt_format)
        self._size = model.config.get_text_config().vocab_size
        least = self._least_tokens("")
        if self.format.max_new_tokens < least:
            raise ModelError(
                f"max_new_tokens = {self.format.max_new_tokens} is too short for a critique: an empty critique has "
                f"{least:.0f} tokens with this tokenizer. Raise it, or switch constrained decoding off with "
                "constrain = False."
            )
        self.model, self.rows_at_once, self.tokens = model.eval(), rows_at_once, TokenCount()
        self.pad_id = padding_id(model, tokenizer, self.eos_ids)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order."""
        drawn = list(zip(self.draw(examples, responses), responses, strict=True))
        if self.format.votes == 1:
            return [critiques[0] for critiques, _ in drawn]
        return [vote(*pair, threshold=self.format.vote_threshold) for pair in drawn]

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return `votes` sampled critiques of each response; with one vote the greedy critique."""
        votes = self.format.votes
        drawn = zip(self._drawn(examples, responses, votes if votes > 1 else 0), responses, strict=True)
        return [[read_critique(text, response, self.format) for text in texts] for texts, response in drawn]

    def write(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        """Return the text of one critique per response, in order, by greedy decoding.

        The text is empty if the model's context has no room for a critique after the prompt.
        """
        return [texts[0] for texts in self._drawn(examples, responses, 0)]

    def prompts(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[int]]:
        """Return the ids of the prompt for each response."""
        return critique_prompts(self.tokenizer, examples, responses, self.format.prompt_format, self.format.form)

    def _skeleton(self, response: str) -> Skeleton:
        turns = isinstance(response, Conversation)
        return skeleton_of(self.tokenizer, self.format, size=self._size, eos_ids=self.eos_ids, turns=turns)

    def _least_tokens(self, response: str) -> float:
        """Return the number of tokens of the shortest critique of a response."""
        return self._skeleton(response).least_tokens(response) if self.format.constrain else 1

    def _drawn(self, examples: Sequence[Example], responses: Sequence[str], draws: int) -> list[list[str]]:
        """Return the texts of several sampled critiques of each response; with 0 draws, of the greedy critique."""
        requests: dict[tuple[str, str, int], _Request] = {}  # equal ones are decoded once
        prompts = self.prompts(examples, responses)
        asked = list(zip(map(str, prompts), responses, strict=True))
        for (prompt, response), ids, example in zip(asked, prompts, examples, strict=True):
            for number in range(draws or 1):
                rng, group = (Random(f"0 {number} {ids}"), prompt) if draws else (None, example.prompt_text)
                requests[prompt, response, number] = _Request(ids, response, group, rng)
        written = dict(zip(requests, self._decode_all(list(requests.values())), strict=True))
        return [[written[*pair, number] for number in range(draws or 1)] for pair in asked]

    def _decode_all(self, requests: Sequence[_Request]) -> list[str]:
        """Return the text of each request; a batch holds prompts of similar length, with groups kept together."""
        longest: dict[str, int] = {}
        for request in requests:
            longest[request.group] = max(longest.get(request.group, 0), len(request.ids))
        place = {group: number for number, group in enumerate(longest)}
        keys = [(longest[request.group], place[request.group], len(request.ids)) for request in requests]
        order = sorted(range(len(requests)), key=keys.__getitem__)
        texts = [""] * len(requests)
        for start in range(0, len(order), self.rows_at_once):
            batch = order[start : start + self.rows_at_once]
            rows = [row for row in batch if self._room(requests[row].ids) >= self._least_tokens(requests[row].response)]
            if rows:
                for row, text in zip(rows, self._decode([requests[row] for row in rows]), strict=True):
                    texts[row] = text
        return texts

    def _decode(self, requests: Sequence[_Request]) -> list[str]:
        """Return the texts of one batch."""
        rooms = [self._room(request.ids) for request in requests]
        rngs = [request.rng for request in requests if request.rng is not None]
        critiques, choose = list[ConstrainedCritique](), free_choice(rngs) if rngs else most_likely
        if self.format.constrain:
            begin = partial(ConstrainedCritique, eos_ids=self.eos_ids, limits=self.format.limits)
            asked = [(self._skeleton(request.response), request.response) for request in requests]
            critiques = [begin(*each, room=room) for each, room in zip(asked, rooms, strict=True)]
            choose = valid_choice(critiques, rngs)
        written = decode(
            self.model,
            [request.ids for request in requests],
            choose,
            max_new_tokens=rooms,
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
            groups=[request.group for request in requests],
        )
        self.tokens.add(sum(len(request.ids) for request in requests), sum(map(len, written)))
        if critiques:
            return [critique.text for critique in critiques]
        return texts_of(self.tokenizer, written)

    def _room(self, prompt: list[int]) -> int:
        """Return the most tokens that a critique can have after this prompt."""
        return int(min(self.format.max_new_tokens, context_of(self.model) - len(prompt)))

    def training_rows(self, annotations: Sequence[Annotation], *, max_tokens: int) -> tuple[list[Row], int]:
        """Return the rows to train on, and the number of annotations that are left out because they are too long.

        A row holds [x; y; z] with z = [c; A(y)], and the loss is −log R_φ(z | x, y): prompt x and response y have no
        label. Failed critiques are skipped. A longer annotation than `max_tokens` is left out: cut, it would teach
        invalid JSON.

        Raises:
            DataError: if no annotation is left.
            ModelError: if the tokenizer has no end-of-sequence token.
        """
        readable = [annotation for annotation in annotations if not annotation.critique.failed]
        form: dict[str, Any] = {"write_feedback": self.format.write_feedback, "form": self.format.form}
        targets = [critique_target(annotation.critique, annotation.response, **form) for annotation in readable]
        rows = [
            row_of_ids(prompt, with_end(self.tokenizer, encode(self.tokenizer, target), self.format.prompt_format))
            for prompt, target in zip(self.prompts(*inputs_of(readable)), targets, strict=True)
        ]
        kept = [row for row in rows if len(row["input_ids"]) <= max_tokens]
        if not kept:
            raise DataError(
                f"no training example is left of {len(annotations)} annotations: {len(annotations) - len(readable)} "
                f"have a critique that could not be parsed, {len(readable)} are longer than max_tokens = {max_tokens}. "
                "Raise max_tokens, or check the annotations."
            )
        return kept, len(rows) - len(kept)

    def train_further(
        self, annotations: Sequence[Annotation], settings: FineTuning, *, on_step: OnStep | None = None
    ) -> int:
        """Train to write the critiques of annotations, in place; return how many of them are too long to be learned.

        Raises:
            DataError: if no annotation is left.
        """
        self.format = replace(self.format, outcomes=self.format.outcomes or has_outcomes(annotations))
        max_tokens = int(min(settings.max_tokens, context_of(self.model)))
        rows, too_long = self.training_rows(annotations, max_tokens=max_tokens)
        with learning(self.model) as model:
            train_on_rows(model, shared(rows), settings, on_step=on_step, total=len(rows))
        return too_long

    def restore(self, directory: Path, *, trust_remote_code: bool = False) -> None:
        """Take the weights of a saved reward model, and whether it learned outcomes."""
        load_weights(self.model, directory, trust_remote_code=trust_remote_code)
        self.format = replace(self.format, outcomes=saved_format(directory).outcomes)

    def save(self, directory: Path) -> None:
        """Write a Hugging Face directory, and the format as reward_model.json."""
        save_model(self.model, directory)
        self.tokenizer.save_pretrained(directory)
        write_atomically(directory / FORMAT_FILE, to_json(asdict(self.format)))

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        trust_remote_code: bool = False,
        model: Any = None,
        rows_at_once: int = 64,
        **changes: Any,
    ) -> "GenerativeRewardModel":
        """Load a saved reward model, or any causal language model or adapter that writes critiques.

        `model` is the model if it is already loaded, such as an adapter on the policy's base. `changes` are attributes
        of `CritiqueFormat` that replace the saved ones.

        Raises:
            ModelError: if there is no such model.
        """
        if model is None:
            model = load_policy(str(directory), trust_remote_code=trust_remote_code, merge=False)
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        return cls(model, tokenizer, replace(saved_format(directory), **changes), rows_at_once=rows_at_once)
