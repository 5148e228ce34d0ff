"""The generative reward model: a language model that reads a response and writes its critique (section 3.4).

R_φ(z | x, y) writes words and quotes; the quotes become spans, so in the loop it is a critic like any other. Its
decoding is constrained: whatever it has learned, its JSON is whole and its quotes stand in the response.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

from text2grad.errors import ConfigError, ModelError, check_known
from text2grad.feedback import Match, check_votes, critique_from_text, vote
from text2grad.files import to_json, write_atomically
from text2grad.models import context_of, decode_greedily, encode_prompts, load_tokenizer, padding_id, stop_ids
from text2grad.reward_models.decoding.constrained import (
    ConstrainedCritique,
    ConstrainedProcessor,
    skeleton_of,
)
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.decoding.skeleton import START, Skeleton
from text2grad.reward_models.shared_base import load_writer
from text2grad.reward_models.word_labels import LABEL_FORMS, critique_from_labels
from text2grad.reward_models.writing import critique_questions
from text2grad.types import Critique, CritiqueForm, Example, PromptFormat

SETTINGS_FILE = "reward_model.json"
RENAMED = {"words": "write_feedback", "agreement": "vote_threshold", "supported": "quoted_in_feedback"}  # since 0.1


def critique_prompts(
    tokenizer: Any,
    examples: Sequence[Example],
    responses: Sequence[str],
    prompt_format: PromptFormat,
    form: CritiqueForm = "spans",
) -> list[list[int]]:
    """Return the ids of what a reward model reads about each response."""
    asked = critique_questions(examples, responses, prompt_format, form)
    if not asked:
        return []
    if prompt_format == "chat":
        return [list(ids) for ids in encode_prompts(tokenizer, list(map(Example, asked)), prompt_format="chat")]
    return list(tokenizer(asked)["input_ids"])


def read_critiques(texts: Sequence[str], responses: Sequence[str], form: CritiqueForm, match: Match) -> list[Critique]:
    """Return what the texts of critiques mean, in the form that they were asked for.

    A quote marks one place for each time that it is listed, as in what the model learned from: marking every
    occurrence would pay a policy for saying a good thing again and again.
    """
    pairs = zip(texts, responses, strict=True)
    if form != "spans":
        return [critique_from_labels(*pair, LABEL_FORMS[form]) for pair in pairs]
    return [critique_from_text(*pair, match=match, occurrences="first") for pair in pairs]


def constrains(constrain: bool | None, form: CritiqueForm) -> bool:
    """Return whether a reward model's writing is constrained; None is where it can be.

    Raises:
        ConfigError: if there is no such form, or it is to be, and labels words.
    """
    check_known("form", form, get_args(CritiqueForm))
    if constrain and form != "spans":
        raise ConfigError(
            f"constrained decoding knows quotes alone, and this model writes the form {form!r}. Leave constrain "
            "out, in a recipe critic.constrain."
        )
    return form == "spans" if constrain is None else constrain


def check_room(max_new_tokens: int, least: int) -> None:
    """Refuse a length limit below that of an empty critique, in tokens.

    Raises:
        ModelError: if it is.
    """
    if max_new_tokens < least:
        raise ModelError(
            f"max_new_tokens = {max_new_tokens} cannot hold a critique: an empty one has {least} tokens of this "
            "tokenizer. Raise it, or switch constrained decoding off with constrain = False."
        )


def saved_settings(directory: str | Path) -> dict[str, Any]:
    """Return the settings that were saved beside a reward model; where there are none, those of no limits."""
    path = Path(directory) / SETTINGS_FILE
    saved = _current_names(json.loads(path.read_bytes()) if path.exists() else {})
    return {**saved, "limits": QuoteLimits(**_current_names(saved.get("limits", {})))}


def _current_names(saved: dict[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(key, key): value for key, value in saved.items()}


class _Asked(NamedTuple):
    """What one row of a batch reads, and writes about.

    Attributes:
        ids: of the question.
        response: that is quoted.
        group: rows of one begin alike.
        numbers: by which its critique is drawn; None for the likeliest.
    """

    ids: list[int]
    response: str
    group: str
    numbers: Random | None = None


class GenerativeRewardModel:
    """A critic that is a language model: `model(examples, responses)` returns critiques."""

    def __init__(  # noqa: PLR0913 - each is kept in reward_model.json under its name
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_new_tokens: int = 512,
        rows_at_once: int = 64,
        write_feedback: bool = True,
        form: CritiqueForm = "spans",
        match: Match = "exact",
        constrain: bool | None = None,
        limits: QuoteLimits | None = None,
        prompt_format: PromptFormat = "plain",
        votes: int = 1,
        vote_threshold: float = 0.5,
        seed: int = 0,
    ) -> None:
        """Take a model that was trained to write critiques.

        Args:
            model: a Hugging Face causal language model.
            tokenizer: its tokenizer, which need not be the policy's.
            max_new_tokens: length limit of a critique.
            rows_at_once: critiques decoded together; changes memory, not results.
            match: how quotes are found in the response; those of constrained decoding are always exact.
            form: what it writes beside the words: "spans" are quotes; "dense" and "scores" label each word of the
                response, and are read whole or not at all (`critique_forms`).
            write_feedback: False where it writes spans alone, and learns so when it is trained again.
            constrain: write whole JSON with verbatim quotes alone (docs/constrained.md); None does so with quotes, and
                cannot with labels. Without it, quotes that were cut off are read as far as they go.
            limits: more that constrained decoding holds quotes to.
            prompt_format: how it is asked, as when it learned: "chat" by its chat template, "plain" without.
            votes: how many critiques of a response are drawn and put to the vote; 1 decodes the likeliest.
            vote_threshold: share of the votes that marks a character (`votes.vote`).
            seed: of the draws, which follow from it and what is asked alone, not from what is asked beside it.

        Raises:
            ConfigError: if there is no such form, `constrain` is True and `form` labels words, or `votes` or
                `vote_threshold` is none.
            ModelError: if nothing could end a critique, or the tokenizer or the length has no room for its JSON.
        """
        self.constrain = constrains(constrain, form)
        self.model, self.tokenizer = model.eval(), tokenizer
        self.max_new_tokens, self.rows_at_once = max_new_tokens, rows_at_once
        self.write_feedback = write_feedback
        self.match: Match = match
        self.eos_ids = stop_ids(model, tokenizer)
        self.pad_id = padding_id(tokenizer, self.eos_ids)
        self.limits = limits or QuoteLimits()
        self.form: CritiqueForm = form
        self.prompt_format: PromptFormat = prompt_format
        self.votes, self.vote_threshold, self.seed = votes, vote_threshold, seed
        check_votes(votes, vote_threshold)
        if self.constrain and not write_feedback and self.limits.quoted_in_feedback:
            raise ModelError(
                "limits.quoted_in_feedback allows only quotes that the feedback contains, and this model writes no "
                "feedback. Leave it out (in a recipe: critic.quoted_in_feedback)."
            )
        check_room(max_new_tokens, self._least_room)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order."""
        if self.votes > 1:
            drawn = self.draw(examples, responses)
            return [vote(*pair, threshold=self.vote_threshold) for pair in zip(drawn, responses, strict=True)]
        return self._read(self.write(examples, responses), responses)

    def draw(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[Critique]]:
        """Return `votes` critiques of each response, drawn from the model."""
        asked = [
            _Asked(ids, response, str(ids), Random(f"{self.seed} {number} {ids}"))
            for ids, response in zip(self._prompts(examples, responses), responses, strict=True)
            for number in range(self.votes)
        ]
        critiques = self._read(self._texts(asked), [one.response for one in asked])
        return [critiques[start : start + self.votes] for start in range(0, len(critiques), self.votes)]

    def write(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        """Return the text of one critique per response, in order, by greedy decoding.

        A response that leaves no room for a critique in the model's context, or for a whole one where decoding is
        constrained, gets the empty text.
        """
        prompts = self._prompts(examples, responses)
        told = zip(prompts, responses, examples, strict=True)
        return self._texts([_Asked(ids, response, example.prompt_text) for ids, response, example in told])

    def _prompts(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[int]]:
        return critique_prompts(self.tokenizer, examples, responses, self.prompt_format, self.form)

    def _texts(self, asked: Sequence[_Asked]) -> list[str]:
        """Return what is written, in order: decoded in batches of about one length, in which groups stand together."""
        longest: dict[str, int] = {}
        for one in asked:
            longest[one.group] = max(longest.get(one.group, 0), len(one.ids))
        place = {group: number for number, group in enumerate(longest)}
        keys = [(longest[one.group], place[one.group], len(one.ids)) for one in asked]
        order = sorted(range(len(asked)), key=keys.__getitem__)
        texts, least = [""] * len(asked), self._least_room
        for start in range(0, len(order), self.rows_at_once):
            batch = order[start : start + self.rows_at_once]
            rows = [row for row in batch if self._room(asked[row].ids) >= least]
            if rows:
                for row, text in zip(rows, self._decode([asked[row] for row in rows]), strict=True):
                    texts[row] = text
        return texts

    def _read(self, texts: Sequence[str], responses: Sequence[str]) -> list[Critique]:
        return read_critiques(texts, responses, self.form, "exact" if self.constrain else self.match)

    def _decode(self, asked: Sequence[_Asked]) -> list[str]:
        """Return what is written in one batch."""
        room = min(self._room(one.ids) for one in asked)
        numbers = [one.numbers for one in asked if one.numbers is not None]
        if self.constrain:
            critiques = [
                ConstrainedCritique(self._skeleton, one.response, eos_ids=self.eos_ids, room=room, limits=self.limits)
                for one in asked
            ]
            self._generate(asked, room, ConstrainedProcessor(critiques, numbers))
            return [critique.text for critique in critiques]
        ids = self._generate(asked, room, *([ConstrainedProcessor((), numbers)] if numbers else ()))
        return list(self.tokenizer.batch_decode([list(row) for row in ids], skip_special_tokens=True))

    def _generate(self, asked: Sequence[_Asked], room: int, *processors: Any) -> list[tuple[int, ...]]:
        return decode_greedily(
            self.model,
            [one.ids for one in asked],
            max_new_tokens=room,
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
            processors=processors,
            groups=[one.group for one in asked],
        )

    @property
    def _skeleton(self) -> Skeleton:
        size = self.model.config.get_text_config().vocab_size
        return skeleton_of(self.tokenizer, size=size, eos_ids=self.eos_ids, write_feedback=self.write_feedback)

    @property
    def _least_room(self) -> int:
        """The fewest tokens that a critique can have."""
        return int(self._skeleton.cost[START]) if self.constrain else 1

    def _room(self, prompt: list[int]) -> int:
        """Return how many tokens a critique may have beside this prompt."""
        return int(min(self.max_new_tokens, context_of(self.model) - len(prompt)))

    def save(self, directory: Path) -> None:
        """Write the model as an ordinary Hugging Face directory, with its settings beside it."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        settings = {
            "max_new_tokens": self.max_new_tokens,
            "rows_at_once": self.rows_at_once,
            "write_feedback": self.write_feedback,
            "form": self.form,
            "match": self.match,
            "constrain": self.constrain,
            "limits": asdict(self.limits),
            "prompt_format": self.prompt_format,
            "votes": self.votes,
            "vote_threshold": self.vote_threshold,
        }
        write_atomically(directory / SETTINGS_FILE, to_json(settings))

    @classmethod
    def load(
        cls, directory: str | Path, *, trust_remote_code: bool = False, model: Any = None, **settings: Any
    ) -> "GenerativeRewardModel":
        """Load what `save` wrote, or any causal language model that writes critiques, or an adapter on one.

        Args:
            directory: where it is.
            trust_remote_code: run code that comes with it.
            model: the model, where it is loaded already; such as an adapter on the policy's base.
            settings: keyword arguments of the constructor that go before the saved ones.

        Raises:
            ModelError: if there is none.
        """
        model = load_writer(directory, trust_remote_code=trust_remote_code) if model is None else model
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        return cls(model, tokenizer, **{**saved_settings(directory), **settings})
