"""The generative reward model: a language model that reads a response and writes its critique (section 3.4).

R_φ(z | x, y) writes words and quotes; the quotes become spans, so in the loop it is a critic like any other.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from text2grad.critique_writing import critique_prompt
from text2grad.models import load_policy, load_tokenizer
from text2grad.rollout import decode_greedily, padding_id, stop_ids
from text2grad.runlog import to_json, write_atomically
from text2grad.spans import Match, critique_from_text
from text2grad.types import Critique, Example

SETTINGS_FILE = "reward_model.json"


class GenerativeRewardModel:
    """A critic that is a language model: `model(examples, responses)` returns critiques."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_new_tokens: int = 512,
        rows_at_once: int = 64,
        words: bool = True,
        match: Match = "exact",
    ) -> None:
        """Take a model that was trained to write critiques.

        Args:
            model: a Hugging Face causal language model.
            tokenizer: its tokenizer, which need not be the policy's.
            max_new_tokens: length limit of a critique; one that was cut off is read as far as it goes.
            rows_at_once: critiques decoded together; changes memory, not results.
            match: how quotes are found in the response.
            words: False where it writes spans alone, and learns so when it is trained again.

        Raises:
            ModelError: if nothing could end a critique.
        """
        self.model, self.tokenizer = model.eval(), tokenizer
        self.max_new_tokens, self.rows_at_once, self.words = max_new_tokens, rows_at_once, words
        self.match: Match = match
        self.eos_ids = stop_ids(model, tokenizer)
        self.pad_id = padding_id(tokenizer, self.eos_ids)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response, in order.

        A quote marks one place for each time that it is listed, as in what the model learned from: marking every
        occurrence would pay a policy for saying a good thing again and again.
        """
        texts = self.write(examples, responses)
        return [
            critique_from_text(text, response, match=self.match, occurrences="first")
            for text, response in zip(texts, responses, strict=True)
        ]

    def write(self, examples: Sequence[Example], responses: Sequence[str]) -> list[str]:
        """Return the text of one critique per response, in order, by greedy decoding.

        A response that leaves no room for a critique in the model's context gets the empty text.
        """
        asked = [critique_prompt(example, response) for example, response in zip(examples, responses, strict=True)]
        prompts = self.tokenizer(asked)["input_ids"] if asked else []
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        texts = [""] * len(prompts)
        for start in range(0, len(order), self.rows_at_once):
            rows = [row for row in order[start : start + self.rows_at_once] if self._room(prompts[row]) > 0]
            if rows:
                found = self._decode([prompts[row] for row in rows])
                for row, text in zip(rows, found, strict=True):
                    texts[row] = text
        return texts

    def _decode(self, prompts: list[list[int]]) -> list[str]:
        ids = decode_greedily(
            self.model,
            prompts,
            max_new_tokens=min(map(self._room, prompts)),
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
        )
        return list(self.tokenizer.batch_decode([list(row) for row in ids], skip_special_tokens=True))

    def _room(self, prompt: list[int]) -> int:
        """Return how many tokens a critique may have beside this prompt."""
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return self.max_new_tokens if context is None else min(self.max_new_tokens, context - len(prompt))

    def save(self, directory: Path) -> None:
        """Write the model as an ordinary Hugging Face directory, with its settings beside it."""
        self.model.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)
        settings = {
            "max_new_tokens": self.max_new_tokens,
            "rows_at_once": self.rows_at_once,
            "words": self.words,
            "match": self.match,
        }
        write_atomically(directory / SETTINGS_FILE, to_json(settings))

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False) -> "GenerativeRewardModel":
        """Load what `save` wrote, or any causal language model that writes critiques.

        Raises:
            ModelError: if there is none.
        """
        model = load_policy(str(directory), trust_remote_code=trust_remote_code)
        tokenizer = load_tokenizer(str(directory), trust_remote_code=trust_remote_code)
        path = Path(directory) / SETTINGS_FILE
        return cls(model, tokenizer, **(json.loads(path.read_bytes()) if path.exists() else {}))
