"""Decoding of complete critiques whose quotes occur in the response, or that label each word; greedy or sampled.

Try the argmax token first: a lookup or a comparison of bytes decides whether it is valid. Mask the vocabulary only if
it is invalid. The result equals a masked argmax. A token is valid if the critique can still end within the tokens left.

Shapes: B rows, V ids of the model.
"""

import json
from collections.abc import Collection, Sequence
from random import Random
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from text2grad.errors import ModelError
from text2grad.models import Choose, most_likely, sample_inverse_cdf
from text2grad.reward_models.decoding.quotable import Listed, Quotable, Quote, QuoteLimits
from text2grad.reward_models.decoding.skeleton import END, MARK, START, Skeleton
from text2grad.reward_models.decoding.verbatim import UNCHECKED, QuotedWords, read, tokens_to_close
from text2grad.reward_models.decoding.vocabulary import Vocabulary
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.writing import OPENING


class State(NamedTuple):
    """The state of an incomplete critique.

    Attributes:
        skeleton: state of the skeleton.
        quote: the open quote of a list.
        listed: the quotes before it.
        words: the parser of the feedback, if its quotes are checked.
        place: in the labels of words.
    """

    skeleton: int
    quote: Quote | None = None
    listed: Listed = ()
    words: QuotedWords = UNCHECKED
    place: int = 0


class ConstrainedCritique:
    """The critique of one response, decoded token by token.

    Attributes:
        text: the text so far.
    """

    def __init__(
        self, skeleton: Skeleton, response: str, *, eos_ids: Sequence[int], room: int, limits: QuoteLimits
    ) -> None:
        """Begin a critique of at most `room` tokens, at least the cost of START; one of `eos_ids` ends it."""
        self.skeleton, self.eos_ids, self.room = skeleton, eos_ids, room
        self.quotable = Quotable(response, limits, skeleton.vocabulary, labelled=len(skeleton.open) == 1)
        self.state: State | None = State(
            START, words=QuotedWords(before=len(OPENING)) if limits.verbatim else UNCHECKED
        )
        self._label = {state: label for label, state in skeleton.open.items()}
        self._written: list[bytes] = []
        self._feedback_ended = False

    @property
    def text(self) -> str:
        """The text so far."""
        return self.written.decode()

    @property
    def written(self) -> bytes:
        """The text so far, which may end within a character."""
        return b"".join(self._written)

    def take(self, token: int) -> bool:
        """Append a token if it is valid, and return whether it is; after the end every token is."""
        if self.state is None:
            return True
        if self.state.skeleton == END:
            self.state = None if token in self.eos_ids else self.state
            return self.state is None
        spelled = self.skeleton.vocabulary
        feedback_ended = self._feedback_ended or self._restrict_quotes(token)
        after = self.step(self.state, token, self.room - 1)
        if after is None:
            if feedback_ended and not self._feedback_ended:
                self.quotable.restrict_to(None)  # the token is refused, so the feedback has not ended
            return False
        self._feedback_ended = feedback_ended
        self._written.append((spelled.first if self.state.skeleton == START else spelled.data)[token])
        self.state, self.room = after, self.room - 1
        return True

    def take_from(self, scores: NDArray[np.float32], numbers: Random | None = None) -> int:
        """Append the valid token with the highest score, [V], or one sampled from their softmax, and return it."""
        among = np.where(self._invalid(), -np.inf, np.fmax(scores, np.finfo(np.float32).min))  # NaN and −∞ rank last
        while not self.take(token := _choice(among, numbers)):
            among[token] = -np.inf
        return token

    def step(self, state: State, token: int, room: int) -> State | None:
        """Return the state after a token; None if it is invalid, or if the critique could not end within `room`."""
        where, _, listed, _, _ = state
        if where in self._label:
            after = self._read_inside(state, self.skeleton.vocabulary.data.get(token, b""))
        else:
            move = self.skeleton.move(where, token)
            words = UNCHECKED if state.words.over or move is None else self._read_words(state, token)
            if move is None or words is None:
                return None
            after = State(move.state, None, listed, words)
            if words.over and move.state not in self.skeleton.opens:  # most tokens need no further check
                return after if self.skeleton.cost[move.state] <= room else None
            if move.rest:
                after = self._read_inside(after, move.rest)
        return after if after is not None and self.tokens_to_end(after) <= room else None

    def _read_words(self, state: State, token: int) -> QuotedWords | None:
        """Return the parser of the feedback after a token; None if a quote does not occur in the response."""
        spelled = self.skeleton.vocabulary
        return read(state.words, (spelled.first if state.skeleton == START else spelled.data)[token], self.quotable)

    def _restrict_quotes(self, token: int) -> bool:
        """If a valid token ends the feedback, restrict the lists to quotes in it; return whether it does."""
        data = self.skeleton.vocabulary.data.get(token, b"")
        if not self.quotable.limits.quoted_in_feedback or b"[" not in data:
            return False
        if self.state is None or self.skeleton.move(self.state.skeleton, token) is None:
            return False
        feedback, end, _ = b"".join([*self._written, data]).partition(self.skeleton.lists.encode())
        if end:
            self.quotable.restrict_to(json.loads(feedback + b'"}')["textual_feedback"])
        return bool(end)

    def tokens_to_end(self, state: State) -> float:
        """Return a number of tokens that suffices to end the critique; infinite if it cannot end."""
        where, quote, listed, words, _ = state
        label = self.skeleton.opens.get(where)
        cost = self.skeleton.cost
        if words.quote is not None:
            return tokens_to_close(words, self.quotable) + cost[self.skeleton.text]
        if label is None:
            return cost[where]
        closing = self.skeleton.cost[self.skeleton.inside[label]]
        return self.skeleton.to_open[where] + self.quotable.tokens_to_end(quote, label, listed) + closing

    def _read_inside(self, state: State, data: bytes) -> State | None:
        """Return the state after bytes that begin inside a quote and may go beyond its closing mark."""
        where, quote, listed, _, _ = state
        label = self._label[where]
        if not data:
            return None
        at = data.find(b'"')
        while at >= 0:
            whole = self.quotable.advance(quote, data[:at]) if at else quote
            if whole is None:
                return None
            text = self.quotable.text(whole)
            if text is not None:
                if not self.quotable.may_end(whole, label, listed):
                    return None
                move = self.skeleton.read(self.skeleton.inside[label], data[at:])
                if move is None:
                    return None
                after = State(move.state, None, (*listed, (label, text)))
                return self._read_inside(after, move.rest) if move.rest else after
            at = data.find(b'"', at + 1)  # this mark is escaped: a character of the response
        longer = self.quotable.advance(quote, data)
        return None if longer is None else State(where, longer, listed)

    def _invalid(self) -> NDArray[np.bool_]:
        """Return a mask [V] of invalid ids; it may miss a few, which `take` refuses."""
        assert self.state is not None  # after the end, any token is taken
        where, quote, _, words, _ = self.state
        spelled, before = self.skeleton.vocabulary.spelled, self.skeleton.vocabulary.before_quote
        mask = np.ones(self.skeleton.vocabulary.size, np.bool_)
        if words.quote is not None and not words.tail:
            mask[[*before.get(MARK[:1], ()), *spelled.get(MARK[:1], ())]] = False
            for data in self.quotable.tokens(words.quote):
                mask[[*spelled.get(data, ()), *before.get(data + MARK[:1], ())]] = False
            return mask
        if where not in self._label and where != END:
            return self.skeleton.invalid(where, self.room)
        if where == END:
            mask[list(self.eos_ids)] = False
            return mask
        mask[self.skeleton.next(self.skeleton.inside[self._label[where]])[0]] = False
        for data in self.quotable.tokens(quote):
            mask[[*spelled.get(data, ()), *before.get(data, ())]] = False
        return mask


class ConstrainedLabels(ConstrainedCritique):
    """The critique of one response in a form with word labels: one label for each word; `limits` concern feedback only.

    `room` counts the tokens before the labels: their own least number is set aside.
    """

    def __init__(self, skeleton: Skeleton, response: str, *, room: int, **settings: Any) -> None:
        """Begin a critique of at most `room` tokens, at least `skeleton.least_tokens(response)`."""
        labels = skeleton.labels(response)
        assert labels is not None  # `begin` takes this class for such forms alone
        self.labels = labels
        super().__init__(skeleton, response, room=room - int(labels.cost[0]), **settings)

    def tokens_to_end(self, state: State) -> float:
        """Return the least number of tokens to the end, less those that are set aside."""
        if state.skeleton == END or state.skeleton in self._label:
            return self.labels.cost[state.place] - self.labels.cost[0]
        return super().tokens_to_end(state)

    def _read_inside(self, state: State, data: bytes) -> State | None:
        """Return the state after bytes of labels; None if they are invalid."""
        place = self.labels.advance(state.place, data) if data else None
        if place is None:
            return None
        return State(END if place == self.labels.end else state.skeleton, place=place)

    def _restrict_quotes(self, token: int) -> bool:
        return False  # there are no quotes behind the feedback

    def _invalid(self) -> NDArray[np.bool_]:
        if self.state is None or self.state.skeleton not in self._label:
            return super()._invalid()
        spelled, mask = self.skeleton.vocabulary.spelled, np.ones(self.skeleton.vocabulary.size, np.bool_)
        for data, _ in self.labels.tokens(self.state.place):
            mask[[*spelled.get(data, ())]] = False  # the index () would be the whole mask
        return mask


def begin(skeleton: Skeleton, response: str, **settings: Any) -> ConstrainedCritique:
    """Return the empty critique of a response in the skeleton's form; `settings` as of `ConstrainedCritique`."""
    labelled = skeleton.labels(response) is not None
    return (ConstrainedLabels if labelled else ConstrainedCritique)(skeleton, response, **settings)


def _choice(scores: NDArray[np.float32], numbers: Random | None) -> int:
    """Return the token with the highest score, [V], or one sampled from the softmax of all scores."""
    if numbers is None:
        return int(scores.argmax())
    mass = np.exp((scores - scores.max()).astype(np.float64)).cumsum()
    return min(int(mass.searchsorted(numbers.random() * mass[-1], side="right")), len(mass) - 1)


class ConstrainedChoice:
    """Chooses the best (or a sampled) valid token of each row's critique, for `decode`.

    A token is sampled from all tokens, and sampled again from the valid tokens if it is invalid: the distribution is
    the softmax of the valid tokens.
    """

    def __init__(self, critiques: Sequence[ConstrainedCritique], numbers: Sequence[Random] = ()) -> None:
        """Take the empty critique of each row, and its random generator for sampling."""
        self.critiques, self.numbers = critiques, numbers
        self.first_choice: Choose = FreeChoice(numbers) if numbers else most_likely

    def __call__(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """Return the next token of each row by its logits, [B, V], and append it to the row's critique."""
        chosen = self.first_choice(logits, rows, step).tolist()
        for place, row in enumerate(rows.tolist()):
            critique = self.critiques[row]
            if not critique.take(chosen[place]):
                scores = logits[place].cpu().numpy()
                chosen[place] = critique.take_from(scores, self.numbers[row] if self.numbers else None)
        return torch.tensor(chosen, device=logits.device)


class FreeChoice:
    """Samples any token of each row, by the row's own random generator, for `decode`."""

    def __init__(self, numbers: Sequence[Random]) -> None:
        """Take the random generator of each row."""
        self.numbers = numbers

    def __call__(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """Return a token per row, sampled from the softmax of its logits, [B, V]."""
        uniforms = [self.numbers[row].random() for row in rows.tolist()]
        return sample_inverse_cdf(logits, torch.tensor(uniforms, device=logits.device))


def skeleton_of(tokenizer: Any, format: CritiqueFormat, *, size: int, eos_ids: Collection[int]) -> Skeleton:
    """Return the skeleton of a tokenizer for a model with `size` ids, which is cached; `eos_ids` are not text.

    Raises:
        ModelError: if the tokenizer cannot encode a critique's JSON.
    """
    made = _SKELETONS.setdefault(tokenizer, {})
    written: dict[str, Any] = {name: getattr(format, name) for name in ("write_feedback", "form", "outcomes")}
    key = (len(tokenizer), size, frozenset(eos_ids), *written.values())
    if key not in made:
        vocabulary = Vocabulary(tokenizer, size=size, banned=eos_ids)
        skeleton = Skeleton(vocabulary, **written)
        if skeleton.cost[START] == float("inf"):
            raise ModelError(
                "the tokenizer has no tokens for the JSON of a critique, so constrained decoding is impossible. Use "
                "another tokenizer, or switch it off: CritiqueFormat(constrain=False), in a recipe critic.constrain = "
                "false."
            )
        made[key] = skeleton
    return made[key]


_SKELETONS: WeakKeyDictionary[Any, dict[Any, Skeleton]] = WeakKeyDictionary()
