"""Byte automata in the making: chains of bytes, ranges of bytes, and numbers."""

from itertools import pairwise

DIGITS, DECIMALS = 6, 2  # most of an outcome


class Automaton:
    """States as small integers, and the state after each byte; a byte without a next state is invalid."""

    def __init__(self, states: int) -> None:
        """Create so many states, without transitions."""
        self._rows: list[dict[int, int]] = [{} for _ in range(states)]

    def _new(self) -> int:
        self._rows.append({})
        return len(self._rows) - 1

    def _chain(self, state: int, text: str, goal: int | None = None) -> int:
        """Add a path from a state through a text, to a goal or to a new state; return its last state."""
        data = text.encode()
        for position, byte in enumerate(data):
            after = goal if goal is not None and position == len(data) - 1 else self._new()
            self._rows[state][byte] = after
            state = after
        return state

    def _link(self, state: int, first: int, last: int, goal: int) -> None:
        """Let a state read the bytes from `first` to `last`."""
        self._rows[state] |= dict.fromkeys(range(first, last + 1), goal)

    def _number(self, start: int, goal: int | None = None) -> int:
        """Let a state read null or a JSON number, and the brace after it; return the goal, by default a new state.

        Every byte leads to a higher state, but for a goal that is given.
        """
        null, sign, zero = self._chain(start, "null"), self._new(), self._new()
        digits = [self._new() for _ in range(DIGITS)]
        point, *decimals = [self._new() for _ in range(DECIMALS + 1)]
        goal = self._new() if goal is None else goal
        self._link(start, ord("-"), ord("-"), sign)
        for state in (start, sign):
            self._link(state, ord("0"), ord("0"), zero)
            self._link(state, ord("1"), ord("9"), digits[0])
        for before, after in (*pairwise(digits), *pairwise([point, *decimals])):
            self._link(before, ord("0"), ord("9"), after)
        for state in (zero, *digits):
            self._link(state, ord("."), ord("."), point)
        for state in (null, zero, *digits, *decimals):
            self._link(state, ord("}"), ord("}"), goal)
        return goal
