"""Decoding of feedback that does not go round in circles: no sequence of n tokens occurs in it twice.

A small model can repeat a line of its feedback, or a word, up to the length limit. Such a critique has no spans, or
with constrained decoding those that fit into the rest. Spans and labels follow, and may repeat what the feedback says.

Shapes: B rows, V ids of the model.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from text2grad.models import Ahead, Choose
from text2grad.reward_models.writing import opening_of
from text2grad.types import CritiqueForm

KEY_TOKENS = 32
"""Last tokens of a row in which the key behind the feedback is looked for: more than its characters."""


class FeedbackWithoutRepeats:
    """Chooses tokens as another choice does, from those that repeat no sequence in the feedback of their row.

    A repeating token has the logit −∞, which constrained decoding takes where no other is valid.
    """

    def __init__(
        self, choose: Choose, size: int, tokenizer: Any, form: CritiqueForm, ahead: Ahead | None = None
    ) -> None:
        """Take the choice among the others.

        Args:
            choose: chooses a token of each row by its logits, for `decode`.
            size: tokens of a sequence, at least 2.
            tokenizer: of the model.
            form: of the critiques; its first key behind the feedback ends the feedback.
            ahead: the tokens that follow a row's tokens whatever the model says, for `decode`.
        """
        self.choose, self.size, self.tokenizer, self._ahead = choose, size, tokenizer, ahead
        key = opening_of(form).split('"')[2]  # of '", "word_tags": "'
        self.key = f'"{key}"'
        self._written: dict[int, list[int]] = defaultdict(list)
        self._after: dict[tuple[int, ...], set[int]] = defaultdict(set)  # row and n − 1 tokens → the next ones
        self._ended: set[int] = set()

    def __call__(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """Return the next token of each row by its logits, [B, V]."""
        numbers = rows.tolist()
        refused = [sorted(self._after.get(self._last(row), ())) for row in numbers]
        if any(refused):
            places = [(at, token) for at, own in enumerate(refused) for token in own]
            logits = logits.clone()
            logits[tuple(torch.tensor(places, device=logits.device).T)] = -torch.inf
        tokens = self.choose(logits, rows, step)
        for row, token in zip(numbers, tokens.tolist(), strict=True):
            self._keep(row, token)
        return tokens

    def ahead(self, row: int) -> Iterator[int]:
        """Give the tokens that follow a row's tokens whatever the model says."""
        following: Iterable[int] = () if self._ahead is None else self._ahead(row)
        for token in following:
            self._keep(row, token)
            yield token

    def _last(self, row: int) -> tuple[int, ...]:
        """Return a row with its last n − 1 tokens, as a key."""
        return (row, *self._written[row][1 - self.size :])

    def _keep(self, row: int, token: int) -> None:
        """Append a token to a row's feedback, unless this has ended."""
        if row in self._ended:
            return
        written = self._written[row]
        if len(written) >= self.size - 1:
            self._after[self._last(row)].add(token)
        written.append(token)
        if self.key in self.tokenizer.decode(written[-KEY_TOKENS:]):
            self._ended.add(row)
            written.clear()
