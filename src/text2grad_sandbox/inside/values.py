"""Plain values ↔ JSON: what the program's process and the judge's process say to each other.

    None, True, 1.5, "a", 7       themselves
    [1, (2, 3)]                   ["l", 1, ["t", 2, 3]]
    {"a": {1}}                    ["d", ["a"], [["s", 1]]]
    defaultdict(int, a=1)         ["D", "int", ["a"], [1]]; another factory is written as a value
    the same list a second time   ["r", n]: containers are numbered in the order of their first appearance

A value is plain only if its type is exactly one of these types: a subclass may redefine equality. All other values
go through `Packer.other`. Reading never imports, calls or compares anything that the sender chose.
"""

import builtins
import datetime
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

globals()["__builtins__"] = dict(vars(builtins))  # a program that changes the builtins does not change this module

ATOMS = frozenset({type(None), bool, float, str})
LEAVES = ATOMS | {int}
LARGE_BITS = 4_000  # longer integers are written in base 16: reading base 10 takes quadratic time
CONTAINERS: tuple[type, ...] = (list, dict, set, bytearray, deque, defaultdict, OrderedDict, Counter)
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in (int, list, dict, set, str, float, bool, tuple)}
_DTYPE = re.compile(r"[<>|=][biufc]\d{1,2}")


class BadMessage(BaseException):
    """The other process broke the protocol. No `except Exception` of a test hides it."""


def _leaves(items: Iterable[Any]) -> bool:
    return LEAVES.issuperset(map(type, items))


class Packer:
    """Writes values as JSON structures.

    Attributes:
        known: containers by number; those given at the start are known to the reader.
    """

    def __init__(self, other: Callable[[Any, "Packer"], list[Any]], known: Sequence[Any] = ()) -> None:
        """Begin a message; `other` writes values that are not plain."""
        self.other = other
        self.known = list(known)
        self._numbers = {id(container): number for number, container in enumerate(known)}

    def pack(self, value: Any) -> Any:
        """Return the JSON structure of a value."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if kind is int:
            return value if value.bit_length() < LARGE_BITS else ["i", hex(value)]
        pack = _PACK.get(kind)
        if pack is not None:
            return pack(self, value)
        if kind in CONTAINERS:
            return self._container(value, kind)
        return _array(self, value) or self.other(value, self)

    def items(self, values: Iterable[Any]) -> list[Any]:
        """Return the JSON structures of values."""
        items = list(values)
        return items if _leaves(items) else [self.pack(item) for item in items]

    def content(self, container: Any) -> list[Any]:
        """Return what a container holds, for `refill`."""
        if isinstance(container, dict):
            return [self.items(container), self.items(container.values())]
        return self.items(container)

    def _container(self, value: Any, kind: type) -> list[Any]:
        number = self._numbers.get(id(value))
        if number is not None:
            return ["r", number]
        self.number(value)
        if kind is deque:
            return ["q", value.maxlen, *self.content(value)]
        if kind is defaultdict:
            factory = value.default_factory
            name = next((name for name, known in FACTORIES.items() if known is factory), "")
            return ["D", name or self.pack(factory), *self.content(value)]
        return [_TAGS[kind], *self.content(value)]

    def number(self, container: Any) -> None:
        """Give a container the next number."""
        self._numbers[id(container)] = len(self.known)
        self.known.append(container)


_TAGS: dict[type, str] = {
    list: "l",
    dict: "d",
    set: "s",
    bytearray: "y",
    OrderedDict: "O",
    Counter: "C",
}


def _moment(value: Any) -> tuple[int, ...]:
    return (value.hour, value.minute, value.second, value.microsecond)


def _pack_datetime(packer: Packer, value: datetime.datetime) -> list[Any]:
    if value.tzinfo not in (None, datetime.UTC):
        return packer.other(value, packer)
    date = (value.year, value.month, value.day)
    return ["at", value.tzinfo is not None, *date, *_moment(value)]


def _pack_time(packer: Packer, value: datetime.time) -> list[Any]:
    return packer.other(value, packer) if value.tzinfo else ["ti", *_moment(value)]


_PACK: dict[type, Callable[[Packer, Any], list[Any]]] = {
    tuple: lambda packer, value: ["t", *packer.items(value)],
    frozenset: lambda packer, value: ["z", *packer.items(value)],
    bytes: lambda packer, value: ["b", value.decode("latin-1")],
    complex: lambda packer, value: ["c", value.real, value.imag],
    range: lambda packer, value: ["R", *packer.items((value.start, value.stop, value.step))],
    slice: lambda packer, value: ["S", *packer.items((value.start, value.stop, value.step))],
    type(...): lambda packer, value: ["E"],
    type(NotImplemented): lambda packer, value: ["N"],
    type({}.keys()): lambda packer, value: ["dk", *packer.items(value)],
    type({}.values()): lambda packer, value: ["dv", *packer.items(value)],
    type({}.items()): lambda packer, value: ["di", *packer.items(value)],
    Decimal: lambda packer, value: ["de", str(value)],
    Fraction: lambda packer, value: ["fr", *packer.items((value.numerator, value.denominator))],
    datetime.date: lambda packer, value: ["da", value.year, value.month, value.day],
    datetime.datetime: _pack_datetime,
    datetime.time: _pack_time,
    datetime.timedelta: lambda packer, value: ["dt", value.days, value.seconds, value.microseconds],
}


def _array(packer: Packer, value: Any) -> list[Any] | None:
    """Return an array or a number of numpy, if its elements are plain numbers."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value).__module__ != "numpy":
        return None
    if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
        return None
    if not _DTYPE.fullmatch(value.dtype.str):
        return None
    shape = list(value.shape) if type(value) is numpy.ndarray else None
    return ["n", value.dtype.str, shape, value.tobytes().hex()]


class Unpacker:
    """Reads values from JSON structures.

    Attributes:
        known: containers by number.
    """

    def __init__(self, other: Callable[[str, list[Any], "Unpacker"], Any], known: Sequence[Any] = ()) -> None:
        """Begin a message; `other` reads values that are not plain, by their tags."""
        self.other = other
        self.known = list(known)

    def unpack(self, data: Any) -> Any:
        """Return the value of a JSON structure.

        Raises:
            BadMessage: if `Packer` never writes such a value.
        """
        if type(data) in LEAVES:
            return data
        if type(data) is not list or not data or type(data[0]) is not str:
            raise BadMessage(f"no value: {str(data)[:100]}")
        unpack = _UNPACK.get(data[0])
        return self.other(data[0], data, self) if unpack is None else unpack(self, data)

    def items(self, data: Any) -> list[Any]:
        """Return the values of JSON structures."""
        if type(data) is not list:
            raise BadMessage("no list of values")
        return data if _leaves(data) else [self.unpack(item) for item in data]

    def container(self, empty: Any, data: list[Any]) -> Any:
        """Number a new container, and fill it."""
        self.known.append(empty)
        self.refill(empty, data)
        return empty

    def refill(self, container: Any, data: list[Any]) -> None:
        """Replace what a container holds by what `Packer.content` wrote."""
        if isinstance(container, dict):
            keys, values = self.items(data[0]), self.items(data[1])
            container.clear()
            container.update(dict(zip(keys, values, strict=True)))
            return
        items = self.items(data)
        container.clear()
        if isinstance(container, set):
            container.update(items)
        else:
            container.extend(items)


def _unpack_array(unpacker: Unpacker, data: list[Any]) -> Any:
    import numpy

    kind, shape, content = data[1:]
    if not _DTYPE.fullmatch(kind):
        raise BadMessage(f"no type of numbers: {kind[:100]}")
    array = numpy.frombuffer(bytes.fromhex(content), dtype=kind)
    return array[0] if shape is None else array.reshape(shape).copy()


def _unpack_datetime(unpacker: Unpacker, data: list[Any]) -> datetime.datetime:
    return datetime.datetime(*data[2:9]).replace(tzinfo=datetime.UTC if data[1] else None)


def _unpack_defaultdict(unpacker: Unpacker, data: list[Any]) -> Any:
    made: Any = defaultdict()
    unpacker.known.append(made)  # before the factory, as `Packer` numbers it
    made.default_factory = FACTORIES[data[1]] if type(data[1]) is str else unpacker.unpack(data[1])
    if not (made.default_factory is None or callable(made.default_factory)):
        raise BadMessage("no factory")
    unpacker.refill(made, data[2:])
    return made


def _unpack_reference(unpacker: Unpacker, data: list[Any]) -> Any:
    if type(data[1]) is not int or not 0 <= data[1] < len(unpacker.known):
        raise BadMessage("no such container")
    return unpacker.known[data[1]]


_UNPACK: dict[str, Callable[[Unpacker, list[Any]], Any]] = {
    "l": lambda unpacker, data: unpacker.container([], data[1:]),
    "d": lambda unpacker, data: unpacker.container({}, data[1:]),
    "s": lambda unpacker, data: unpacker.container(set(), data[1:]),
    "y": lambda unpacker, data: unpacker.container(bytearray(), data[1:]),
    "q": lambda unpacker, data: unpacker.container(deque(maxlen=data[1]), data[2:]),
    "D": _unpack_defaultdict,
    "O": lambda unpacker, data: unpacker.container(OrderedDict(), data[1:]),
    "C": lambda unpacker, data: unpacker.container(Counter(), data[1:]),
    "r": _unpack_reference,
    "i": lambda unpacker, data: int(data[1], 16),
    "t": lambda unpacker, data: tuple(unpacker.items(data[1:])),
    "z": lambda unpacker, data: frozenset(unpacker.items(data[1:])),
    "b": lambda unpacker, data: data[1].encode("latin-1"),
    "c": lambda unpacker, data: complex(data[1], data[2]),
    "R": lambda unpacker, data: range(*unpacker.items(data[1:])),
    "S": lambda unpacker, data: slice(*unpacker.items(data[1:])),
    "E": lambda unpacker, data: ...,
    "N": lambda unpacker, data: NotImplemented,
    "dk": lambda unpacker, data: dict.fromkeys(unpacker.items(data[1:])).keys(),
    "dv": lambda unpacker, data: dict(enumerate(unpacker.items(data[1:]))).values(),
    "di": lambda unpacker, data: dict(unpacker.items(data[1:])).items(),
    "de": lambda unpacker, data: Decimal(data[1]),
    "fr": lambda unpacker, data: Fraction(*unpacker.items(data[1:])),
    "da": lambda unpacker, data: datetime.date(*data[1:]),
    "at": _unpack_datetime,
    "ti": lambda unpacker, data: datetime.time(*data[1:]),
    "dt": lambda unpacker, data: datetime.timedelta(*data[1:]),
    "n": _unpack_array,
}
