"""A tokenizer's tokens as bytes, sorted so that an automaton can ask which of them it may read next.

In: any tokenizer that `pieces.py` can read. Out: the bytes of each id, which beginnings of tokens there are, and, for a
table of a byte automaton, the state after each token, for the whole vocabulary in a few passes of numpy.

Shapes: K tokens that add anything to a text, S states.
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from text2grad.align import PieceTable, Tokenizer

Ints = NDArray[np.int64]

DEAD = 0
"""The state of every automaton from which no byte leads anywhere."""


class Vocabulary:
    """The tokens of one tokenizer, as bytes.

    Attributes:
        size: how many ids the model has.
        data: the bytes of each id where others stand before it; ids that add nothing are left out.
        first: its bytes where it begins a text, which SentencePiece decodes without a space.
        ids: the ids of `data`, ascending, int64 [K].
        spelled: which ids spell some bytes, ascending.
        prefixes: how tokens begin, the whole tokens among them.
        before_quote: ids by what stands before one of the quotation marks within them, if anything.
    """

    def __init__(self, tokenizer: Tokenizer, *, size: int, banned: Collection[int] = ()) -> None:
        """Read a tokenizer; some seconds where it has 100,000 tokens.

        Args:
            tokenizer: any that `PieceTable` can read.
            size: how many ids the model has; the tokenizer may know more.
            banned: ids that are no text, such as those that end a sequence.
        """
        self.size, known = size, cast(Any, tokenizer)
        table = PieceTable(tokenizer)
        ids = sorted({i for i in known.get_vocab().values() if i < size} - set(banned))
        pieces = table.pieces(tokenizer, ids, skip_special=True)
        self.data = {i: piece.data for i, piece in zip(ids, pieces, strict=True) if piece.data}
        self.first = {i: table.first[i].data if i in table.first else data for i, data in self.data.items()}
        self.ids: Ints = np.fromiter(self.data, np.int64, len(self.data))
        self.spelled: dict[bytes, list[int]] = defaultdict(list)
        self.before_quote: dict[bytes, list[int]] = defaultdict(list)
        for i, data in self.data.items():
            self.spelled[data].append(i)
            at = data.find(b'"', 1)
            while at > 0:
                self.before_quote[data[:at]].append(i)
                at = data.find(b'"', at + 1)
        self.prefixes = {data[:end] for data in self.spelled for end in range(1, len(data) + 1)}
        self._flat = np.frombuffer(b"".join(self.data.values()), np.uint8)
        self._lengths = np.fromiter(map(len, self.data.values()), np.int64, len(self.data))
        self._starts = np.cumsum(self._lengths) - self._lengths

    def run(self, table: NDArray[np.int16], state: int) -> NDArray[np.int16]:
        """Return the state after each token, int16 [K], for a byte automaton.

        Args:
            table: the state after each state and byte, int16 [S, 256].
            state: where every token begins.
        """
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
