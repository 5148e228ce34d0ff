"""The tokens of a tokenizer as bytes, indexed for a byte automaton.

Shapes: K tokens that are not empty, S states.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from text2grad.align import PieceTable

Ints = NDArray[np.int64]

DEAD = 0  # the state of every automaton after an invalid byte


class Vocabulary:
    """The tokens of one tokenizer, as bytes.

    Attributes:
        size: number of ids of the model.
        data: bytes of each id after other tokens; ids without bytes are left out.
        first: bytes of each id at the beginning of a text, where SentencePiece drops a space.
        ids: the ids of `data`, ascending, int64 [K].
        spelled: ids by their bytes, ascending.
        prefixes: all prefixes of tokens, whole tokens included.
        before_quote: ids by the bytes before a quotation mark in them.
    """

    def __init__(self, tokenizer: Any, *, size: int, banned: Collection[int] = ()) -> None:
        """Read a tokenizer, which takes some seconds for 100,000 tokens; one that tells no bytes has no tokens here.

        `size` is the number of ids of the model, if the tokenizer has more; `banned` ids are not text, such as ends of
        sequence.
        """
        self.size = size
        table = PieceTable.of(tokenizer)
        ids = sorted({i for i in tokenizer.get_vocab().values() if i < size} - set(banned)) if table else []
        pieces = table.pieces(tokenizer, ids, skip_special=True) if table else []
        at_first = table.first if table else {}
        self.data = {i: piece for i, piece in zip(ids, pieces, strict=True) if piece}
        self.first = {i: at_first.get(i, data) for i, data in self.data.items()}
        self.ids: Ints = np.fromiter(self.data, np.int64, len(self.data))
        self.spelled: dict[bytes, list[int]] = defaultdict(list)
        self.before_quote: dict[bytes, list[int]] = defaultdict(list)
        for i, data in self.data.items():
            self.spelled[data].append(i)
            for at in range(1, len(data)):
                if data[at] == ord('"'):
                    self.before_quote[data[:at]].append(i)
        self.prefixes = {data[:end] for data in self.spelled for end in range(1, len(data) + 1)}
        self._flat = np.frombuffer(b"".join(self.data.values()), np.uint8)
        self._lengths = np.fromiter(map(len, self.data.values()), np.int64, len(self.data))
        self._starts = np.cumsum(self._lengths) - self._lengths

    def run(self, table: NDArray[np.int16], state: int) -> NDArray[np.int16]:
        """Return the state after each token, int16 [K], by the next states of a byte automaton, int16 [S, 256]."""
        result = np.full(len(self.ids), DEAD, np.int16)
        live, at = np.arange(len(self.ids)), np.full(len(self.ids), state, np.int16)
        position = 0
        while live.size:
            at = table[at, self._flat[self._starts[live] + position]]
            position += 1
            done = self._lengths[live] == position
            result[live[done]] = at[done]
            keep = ~done & (at != DEAD)
            live, at = live[keep], at[keep]
        return result
