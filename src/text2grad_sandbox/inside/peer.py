"""Calls between the program's process and the judge's process, over a pair of connected sockets.

    ["?", object, operation, [arguments], [[name, argument], ...]]   a request
    ["=", value, [[container, content], ...], names]                 its answer: the value, and changed arguments
    ["!", exception, [[container, content], ...], names]             the exception that it raised

Plain values are copied (`values`). Any other object stays where it is: the other process gets a stand-in (`Remote`)
whose operations are requests. While a process waits for an answer it serves requests, so calls may nest. Arguments that
are containers are copied back if the call changed them.

A program may say anything here, and the judge believes it only in this sense: a value is what the program says it
is. The judge compares plain values itself. A stand-in never equals a plain value by the program's word, and the program
does not see what it is compared with. The judge's own objects, such as a function that a test passes as an argument,
can be called, but offer no way to their code, frames or modules (`Judge.check`).
"""

import builtins
import importlib
import json
import os
import sys
import types
from _thread import RLock  # the module threading would make each fork slower by half
from collections.abc import Callable, Generator
from typing import Any

from .values import CONTAINERS, LEAVES, BadMessage, Packer, Unpacker

PRISTINE = globals()["__builtins__"] = dict(vars(builtins))  # a program can change only the originals

MOST_BYTES = 64 * 2**20  # largest message
# fmt: off
ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor",
    "or",
)
INPLACE = tuple("i" + name for name in ARITHMETIC)
OPERATIONS = (
    "call", "len", "iter", "next", "getitem", "setitem", "delitem", "contains", "reversed", "enter", "exit", "bool",
    "int", "float", "index", "complex", "neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "lt", "le",
    "gt", "ge", "eq", "hash", "str", "repr", "format", "bytes", "length_hint", "instancecheck",
)
SPECIALS = frozenset(
    f"__{name}__" for name in (*OPERATIONS, *(prefix + name for prefix in ("", "r", "i") for name in ARITHMETIC))
)
HOOKS = ("_pytest", "pytestmark", "__array")  # attributes by which an object could take part in the judge's own work
ORDER = {"__lt__", "__le__", "__gt__", "__ge__"}
ALWAYS = {"__eq__", "__hash__", "__str__", "__repr__", "__format__"}  # every object has them
PURE_MODULES = {
    "math", "cmath", "collections", "collections.abc", "itertools", "functools", "operator", "string", "re",
    "datetime", "decimal", "fractions", "statistics", "heapq", "bisect", "typing", "random", "json", "numbers",
    "array", "copy", "textwrap", "time", "timeit",
}
"""Modules whose functions and classes the judge takes from its own process if a program imports them for the tests."""
UNSAFE = {
    "exec", "eval", "compile", "open", "input", "breakpoint", "exit", "quit", "setattr", "delattr", "getattr",
    "globals", "locals", "vars", "__import__", "help", "memoryview", "print", "copyright", "credits", "license",
    "__build_class__", "type", "super", "object",
}
# fmt: on
KINDS: dict[str, type] = {
    "generator": types.GeneratorType,
    "function": types.FunctionType,
    "method": types.MethodType,
    "coroutine": types.CoroutineType,
    **{kind.__name__: kind for kind in (map, filter, zip, enumerate, reversed, *CONTAINERS)},
}
"""The types that a stand-in for an object of such a type claims to have."""
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_DECODE = json.JSONDecoder().raw_decode


class Ended(BaseException):
    """The other process has ended."""


def _forward(name: str) -> Callable[..., Any]:
    if name == "__call__":
        return lambda self, *args, **kwargs: self._peer.request(self._handle, "()", args, kwargs)
    if name in ORDER:
        return lambda self, other: self._peer.compare(self, name, other)
    if name == "__contains__":
        return _contains
    if name == "__exit__":
        return _exit
    if name.strip("_").removeprefix("r") in ARITHMETIC or name.strip("_") in INPLACE:
        return lambda self, *args: self._peer.operate(self, name, args)
    return lambda self, *args: self._peer.request(self._handle, name, args)


class Remote:
    """A stand-in for an object of the other process; its class mirrors the object's class."""

    _peer: "Peer"
    _handle: int

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the object, but none that pytest or numpy look for in every object."""
        if name.startswith(HOOKS):
            raise AttributeError(name)
        return self._peer.request(self._handle, ".", (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the object."""
        self._peer.request(self._handle, ".=", (name, value))

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the object."""
        self._peer.request(self._handle, ".-", (name,))

    def __await__(self) -> Generator[Any, None, Any]:
        """Run a coroutine to its end, in the other process."""
        return self._peer.request(self._handle, "await")
        yield

    def __eq__(self, other: object) -> Any:
        """Compare: see `Peer.compare`."""
        return self._peer.compare(self, "__eq__", other)

    def __deepcopy__(self, memo: object) -> Any:
        """Return a deep copy, which is in the other process, too."""
        return self._peer.request(self._handle, "deepcopy")

    __copy__ = _forward("copy")
    __hash__ = _forward("__hash__")
    __str__ = _forward("__str__")
    __repr__ = _forward("__repr__")
    __format__ = _forward("__format__")


class RemoteFunction(Remote):
    """A stand-in for a function, made before the process forks: nearly all tests need one."""

    __class__ = property(lambda self: types.FunctionType)
    __call__ = _forward("__call__")


class RemoteType(type):
    """The class of stand-ins for classes: a call makes an instance in the other process."""

    _peer: "Peer"
    _class_handle: int

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the class in the other process."""
        return cls._peer.request(cls._class_handle, "()", args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        """Return an attribute of the class."""
        if name.startswith(HOOKS):
            raise AttributeError(name)
        return cls._peer.request(cls._class_handle, ".", (name,))

    def __iter__(cls) -> Any:
        """Iterate over the class, such as an enumeration."""
        return cls._peer.request(cls._class_handle, "__iter__")

    def __len__(cls) -> int:
        """Return the number of members of the class."""
        return int(cls._peer.request(cls._class_handle, "__len__"))

    def __getitem__(cls, item: Any) -> Any:
        """Return a member of the class."""
        return cls._peer.request(cls._class_handle, "__getitem__", (item,))

    def __instancecheck__(cls, value: object) -> bool:
        """Tell whether a stand-in's object is an instance."""
        return issubclass(getattr(type(value), "_mirrored", type(value)), cls)


def _exit(self: Any, kind: type | None, error: BaseException | None, trace: object) -> bool:
    swallows = bool(self._peer.request(self._handle, "__exit__", (kind, error, None)))
    if not swallows or kind is None:
        return swallows
    failed = isinstance(error, AssertionError) or type(error).__module__.startswith("_pytest.")
    if failed and "_origin" not in vars(error) and self._peer.suspicious:
        return False  # a failure of the tests
    self._peer.own_answers += 1
    return True


def _contains(self: Any, item: Any) -> bool:
    if isinstance(item, Remote) or not self._peer.suspicious:
        return bool(self._peer.request(self._handle, "__contains__", (item,)))
    base = self._peer.request(self._handle, "base")
    if type(base) in (*CONTAINERS, *IMMUTABLE):
        return item in base
    if _defines(type(self), "__iter__"):
        return any(element is item or element == item for element in self)
    return bool(self._peer.operate(self, "__contains__", (item,)))


def base_of(value: Any) -> Any:
    """Return the plain value inside an object of a subclass of a plain type, or NotImplemented."""
    base: Any = next((kind for kind in (*CONTAINERS, *IMMUTABLE) if isinstance(value, kind)), None)
    if base is None:
        return NotImplemented
    if base in (str, bytes):
        return base.__getitem__(value, slice(None))
    if base in (int, float, complex):
        return base.__pos__(value)
    if issubclass(base, dict):
        return dict(zip(dict.keys(value), dict.values(value), strict=True))
    return base(base.__iter__(value))


IMMUTABLE = (int, str, float, bytes, complex, tuple, frozenset)


class Peer:
    """One end of the connection.

    Attributes:
        suspicious: whether the other side may lie.
        trusting: whether its objects may answer operators with plain values, such as `vector * 2`.
        own_answers: number of comparisons that the other side decided, and of exceptions that its objects swallowed.
    """

    suspicious = False
    trusting = True

    def __init__(self, descriptor: int) -> None:
        """Use an open socket."""
        self._descriptor = descriptor
        RemoteFunction._peer = self  # a process has one connection
        self._buffer = bytearray()
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}
        self._remotes: dict[int, Any] = {}
        self._classes: dict[int, int] = {}
        self._described: set[int] = set()
        self._about_to_describe: list[int] = []
        self._mirrors: dict[int, type] = {}
        self._busy = 0
        self._lock = RLock()
        self.own_answers = 0

    # Messages.

    def send(self, message: list[Any]) -> None:
        """Send one message.

        Raises:
            Ended: if the other process has ended.
        """
        body = _ENCODE(message).encode("ascii")
        data = memoryview(len(body).to_bytes(4, "big") + body)
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            raise self.broken(Ended()) from None
        self._described.update(self._about_to_describe)
        self._about_to_describe.clear()

    def broken(self, error: BaseException) -> BaseException:
        """Take note that the connection ends with an error, and return it."""
        return error

    def receive(self) -> list[Any]:
        """Return the next message.

        Raises:
            Ended: if the other process has ended.
            BadMessage: if it is no message.
        """
        size = int.from_bytes(self._read(4), "big")
        if size > MOST_BYTES:
            raise self.broken(BadMessage(f"a message of {size} bytes"))
        body = self._read(size)
        digits = sys.get_int_max_str_digits()
        try:
            sys.set_int_max_str_digits(0)
            message, _ = _DECODE(str(body, "ascii"))
        except (ValueError, RecursionError):
            raise self.broken(BadMessage("no JSON")) from None
        finally:
            sys.set_int_max_str_digits(digits)
        if type(message) is not list or not message:
            raise self.broken(BadMessage("no message"))
        return message

    def _read(self, number: int) -> bytearray:
        buffer = self._buffer
        while len(buffer) < number:
            try:
                piece = os.read(self._descriptor, max(65536, min(number - len(buffer), 2**20)))
            except OSError:
                piece = b""
            if not piece:
                raise self.broken(Ended())
            buffer += piece
        data = buffer[:number]
        del buffer[:number]
        return data

    def request(self, handle: int, operation: str, args: Any = (), kwargs: Any = None) -> Any:
        """Return the result of an operation on an object of the other process, or raise its exception."""
        with self._lock:
            packer = Packer(self.reference)
            positional = packer.items(args)
            named = [[name, packer.pack(value)] for name, value in kwargs.items()] if kwargs else []
            self.send(["?", handle, operation, positional, named])
            while (answer := self.receive())[0] == "?":
                self.serve(answer)
            return self._result(answer, packer, operation)

    def _result(self, answer: list[Any], packer: Packer, operation: str = "") -> Any:
        unpacker = Unpacker(self.resolve, packer.known)
        try:
            kind, said, changes, names = answer
            value = unpacker.unpack(said)
            for number, content in changes:
                unpacker.refill(packer.known[number], content)
            for name, new in names:
                self.rebind(name, new, unpacker)
        except Exception as error:  # noqa: BLE001 - data of any shape
            raise self.broken(BadMessage(f"{type(error).__name__}: {error}"[:200])) from None
        except BadMessage as error:
            raise self.broken(error) from None
        if kind == "!" and isinstance(value, BaseException):
            if isinstance(value, StopIteration) and operation not in ("__next__", "await"):
                raise RuntimeError("the program raised StopIteration, which would end a loop of the tests") from value
            raise value
        if kind != "=":
            raise self.broken(BadMessage("neither a value nor an exception"))
        return value

    def serve(self, message: list[Any]) -> None:
        """Answer a request of the other process."""
        unpacker, copies = Unpacker(self.resolve), []
        packer = Packer(self.reference)
        self._busy += 1
        try:
            _, handle, operation, packed, names = message
            args = unpacker.items(packed)
            kwargs = {str(name): unpacker.unpack(value) for name, value in names}
            packer = Packer(self.reference, unpacker.known)
            copies = [_copy(container) for container in unpacker.known]
            value = self.perform(self._objects[handle], operation, args, kwargs)
            live = operation == "." and type(value) in CONTAINERS and not self.suspicious
            answer = ["=", self.reference(value, packer) if live else packer.pack(value)]
        except (Ended, BadMessage):
            raise
        except BaseException as error:  # noqa: BLE001 - any exception of a function is its result
            answer = ["!", self.describe(error, packer)]
        self._busy -= 1
        changed = [
            [number, packer.content(container)]
            for number, (container, copy) in enumerate(zip(packer.known, copies, strict=False))
            if not _same(container, copy)
        ]
        self.send([*answer, changed, self.rebound(packer)])

    def perform(self, target: Any, operation: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation on an object of this process."""
        if operation == "()":
            return target(*args, **kwargs)
        if operation == ".":
            return getattr(target, args[0])
        if operation in (".=", ".-"):
            return (setattr if operation == ".=" else delattr)(target, *args)
        if operation in SPECIALS:
            if isinstance(target, type) and operation == "__getitem__" and not hasattr(type(target), operation):
                return target[args[0]]  # type: ignore[index]
            return getattr(type(target), operation)(target, *args)
        if operation == "base":
            return base_of(target)
        if operation in ("copy", "deepcopy"):
            import copy

            return getattr(copy, operation)(target)
        if operation == "await":
            import asyncio

            async def wait() -> Any:
                return await target

            return asyncio.run(wait())
        raise BadMessage(f"no operation: {operation}"[:100])

    def compare(self, stand_in: Remote, name: str, other: object) -> Any:
        """Return the result of a comparison of a stand-in."""
        if isinstance(other, Remote) or not self.suspicious:
            self.own_answers += 1
            return self.request(stand_in._handle, name, (other,))
        base = self.request(stand_in._handle, "base")
        if type(base) not in (*CONTAINERS, *IMMUTABLE):
            return NotImplemented
        return getattr(type(base), name)(base, other)

    def operate(self, stand_in: Remote, name: str, args: tuple[Any, ...]) -> Any:
        """Return the result of an operator of a stand-in, which sees the other operand.

        Raises:
            TypeError: if the tests compare a function's result in this way, such as `abs(f(x) - 3) < 1e-6`.
        """
        if self.suspicious and not all(isinstance(other, Remote) for other in args):
            if not self.trusting:
                raise TypeError(
                    f"{name} of a {type(stand_in).__name__} of the program with a value of the tests is the program's "
                    'word, which counts only with mode="shared"'
                )
            self.own_answers += 1
        return self.request(stand_in._handle, name, args)

    def rebind(self, name: str, data: Any, unpacker: Unpacker) -> None:
        """Take note of a name that the program has bound."""

    def rebound(self, packer: Packer) -> list[list[Any]]:
        """Return the names that the program has bound since the last answer, with their values."""
        return []

    # Objects.

    def reference(self, value: Any, packer: Packer) -> list[Any]:
        """Write a value that is not plain."""
        theirs = self._theirs(value)
        if theirs is not None:
            return ["u", theirs]
        known = self.known_name(value)
        if known is not None:
            return ["g", *known]
        if isinstance(value, types.ModuleType):
            return self.module(value)
        if isinstance(value, type):
            return ["k", self._class(value)]
        if isinstance(value, BaseException):
            return self.describe(value, packer)
        self.permit(value)
        if type(value) is types.FunctionType:
            return ["f", self._handle(value)]
        if isinstance(value, IMMUTABLE):
            return ["sub", self._handle(value), self._class(type(value)), packer.pack(base_of(value))]
        return ["o", self._handle(value), self._class(type(value))]

    def _theirs(self, value: Any) -> int | None:
        """Return the handle of an object of the other process, for its stand-in."""
        if isinstance(value, type):
            body = vars(value)
            return body["_class_handle"] if body.get("_peer") is self and "_class_handle" in body else None
        if getattr(type(value), "_peer", None) is self:
            own: dict[str, int] = object.__getattribute__(value, "__dict__")
            return own.get("_handle")
        return None

    def module(self, value: types.ModuleType) -> list[Any]:
        """Write a module."""
        return ["m", value.__name__, self._handle(value), self._class(types.ModuleType)]

    def permit(self, value: Any) -> None:
        """Check that the other process may have a stand-in for a value."""

    def known_name(self, value: Any) -> tuple[str, str] | None:
        """Return module and name of a function or class that both processes have."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) or type(name) is not str:
            return None
        if type(module) is not str or (not self.suspicious and module == "builtins" and name in UNSAFE):
            return None
        module = module.lstrip("_")
        return (module, name) if _well_known(module, name, of_judge=self.suspicious) is value else None

    def _handle(self, value: Any) -> int:
        handle = self._handles.get(id(value))
        if handle is None:
            handle = self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        return handle

    def _class(self, kind: type) -> list[Any]:
        """Return the description of a class."""
        theirs = self._theirs(kind)
        if theirs is not None:
            return ["u", theirs]
        if issubclass(kind, BaseException) and kind.__module__ == "builtins":
            return ["g", "builtins", kind.__name__]
        handle = self._handle(kind)
        if handle in self._described:
            return ["c", handle]
        raised = issubclass(kind, BaseException)
        bases = [
            self._class(base)
            for base in kind.__bases__
            if base.__module__ != "builtins" or issubclass(base, BaseException)
        ]
        defined = set().union(*(vars(base) for base in kind.__mro__ if base is not object))
        specials = sorted((SPECIALS - ALWAYS) & defined)
        if kind.__hash__ is None:
            specials.append("unhashable")
        own = kind.__name__ if kind.__module__ in ("builtins", "collections") else ""
        self._about_to_describe.append(handle)
        return ["c", handle, str(kind.__name__), bases, specials, own, raised]

    def describe(self, error: BaseException, packer: Packer) -> list[Any]:
        """Write an exception with its arguments; `report` adds its place."""
        if "_origin" in vars(error):  # it came from the other process
            return ["u", vars(error)["_origin"]]
        try:
            args = packer.items(error.args)
        except BaseException:  # noqa: BLE001 - arguments that cannot be given away
            args = []
        try:
            text = str(error)
        except BaseException:  # noqa: BLE001 - a program can make exceptions that cannot be printed
            text = ""
        kind = type(error)
        return ["x", self._handle(error), self._class(kind), ["t", *args], text, *self.report(error)]

    def report(self, error: BaseException) -> tuple[str, str]:
        """Return the frames and the last lines of an exception's traceback."""
        return "", f"{type(error).__name__}\n"

    def resolve(self, tag: str, data: list[Any], unpacker: Unpacker) -> Any:
        """Read a value that is not plain."""
        if tag == "u":
            return self._objects[data[1]]
        if tag == "g":
            return self._named(data[1], data[2])
        if tag == "k":
            return self._mirror(data[1])
        if tag == "x":
            return self._exception(data, unpacker)
        if tag == "m":
            return self.imported(data)
        if tag == "f":
            return self._remote(data[1], RemoteFunction)
        if tag == "o":
            return self._remote(data[1], self._mirror(data[2]))
        if tag == "sub":
            return self._subclassed(data[1], self._mirror(data[2]), unpacker.unpack(data[3]))
        raise BadMessage(f"no value: {tag}"[:100])

    def imported(self, data: list[Any]) -> Any:
        """Return the module that `module` wrote."""
        return self._remote(data[2], self._mirror(data[3]))

    def _named(self, module: str, name: str) -> Any:
        known = _well_known(module, name, of_judge=not self.suspicious)
        if known is None or (module == "builtins" and name in UNSAFE and self.suspicious):
            raise BadMessage(f"no such name: {module}.{name}"[:100])
        return known

    def _remote(self, handle: int, mirror: type) -> Any:
        remote = self._remotes.get(handle)
        if remote is None:
            if type(handle) is not int or not issubclass(mirror, Remote):
                raise BadMessage("no object")
            remote = self._remotes[handle] = object.__new__(mirror)
            object.__setattr__(remote, "_handle", handle)
        return remote

    def _subclassed(self, handle: int, mirror: type, base: Any) -> Any:
        """Return an object of a subclass of a plain type: it is its plain value, with the object's attributes."""
        key = -1 - self._mirror_handle(mirror)
        kind = self._mirrors.get(key)
        if kind is None:
            if type(base) not in IMMUTABLE:
                raise BadMessage("no plain value")
            body = {"__getattr__": Remote.__getattr__, "_peer": self, "_mirrored": mirror, "__module__": "solution"}
            kind = self._mirrors[key] = type(mirror.__name__, (type(base),), body)
        value: Any = kind.__new__(kind, base)
        value.__dict__["_handle"] = handle
        return value

    def _mirror_handle(self, mirror: type) -> int:
        return int(vars(mirror)["_class_handle"])

    def _mirror(self, data: list[Any]) -> type:
        """Return the class that mirrors a class of the other process."""
        if data[0] in ("g", "u"):
            mirrored = self.resolve(data[0], data, Unpacker(self.resolve))
            if not isinstance(mirrored, type):
                raise BadMessage("no class")
            return mirrored
        handle = data[1]
        if handle in self._mirrors:
            return self._mirrors[handle]
        _, _, name, bases, specials, own, raised = data
        parents = tuple(self._mirror(base) for base in bases)
        body: dict[str, Any] = {"_peer": self, "_class_handle": handle, "__module__": "solution"}
        if raised:
            parents = tuple(base for base in parents if issubclass(base, BaseException)) or (Exception,)
            body |= {"__getattr__": Remote.__getattr__, "__str__": lambda self: vars(self).get("_text", "")}
            mirror = type(str(name), parents, body)
        else:
            body |= {special: _forward(special) for special in specials if special in SPECIALS - ALWAYS}
            if "unhashable" in specials:
                body["__hash__"] = None
            if own in KINDS:
                body["__class__"] = property(lambda self: KINDS[own])
            parents = tuple(base for base in parents if isinstance(base, RemoteType)) or (Remote,)
            try:
                mirror = RemoteType(str(name), parents, body)
            except TypeError:  # no order of bases fits both processes
                mirror = RemoteType(str(name), (Remote,), body)
        self._mirrors[handle] = mirror
        return mirror

    def _exception(self, data: list[Any], unpacker: Unpacker) -> BaseException:
        _, handle, kind, args, text, frames, last = data
        mirror, values = self._mirror(kind), unpacker.unpack(args)
        if not issubclass(mirror, BaseException) or type(values) is not tuple:
            raise BadMessage("no exception")
        try:
            error = mirror(*values)
        except Exception:  # noqa: BLE001 - UnicodeDecodeError and the like, with arguments that do not fit
            error = mirror.__new__(mirror)
        error.args = values
        vars(error).update(_handle=handle, _origin=handle, _text=str(text), _frames=str(frames), _last=str(last))
        return error


class Program(Peer):
    """The end in the program's process: it serves everything that the judge asks for."""

    def __init__(
        self, descriptor: int, module: types.ModuleType, report: Callable[[BaseException], tuple[str, str]]
    ) -> None:
        """Serve a module; `report` returns the frames and the last lines of a traceback."""
        super().__init__(descriptor)
        self._module, self._names = module, vars(module)
        self._report = report
        self._given: dict[str, Any] = {}

    def report(self, error: BaseException) -> tuple[str, str]:
        """Return the frames and the last lines of an exception's traceback."""
        return self._report(error)

    def request(self, handle: int, operation: str, args: Any = (), kwargs: Any = None) -> Any:
        """Ask the judge; only while it waits for a call of the program."""
        if not self._busy:
            raise RuntimeError("a function of the tests can be called only while the tests wait for a call")
        return super().request(handle, operation, args, kwargs)

    def send(self, message: list[Any]) -> None:
        """Send one message, after the printed text."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001 - the program may have replaced the stream
                continue
        super().send(message)

    def imported(self, data: list[Any]) -> Any:
        """Return a module of the judge: this process's own."""
        return importlib.import_module(data[1])

    def perform(self, target: Any, operation: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Carry out an operation; "names" asks for names of the module, also after later requests."""
        if operation != "names":
            return super().perform(target, operation, args, kwargs)
        self._given = {name: self for name in args if name in self._names}
        return list(self._given)

    def rebound(self, packer: Packer) -> list[list[Any]]:
        """Return the names of the judge that have a new value."""
        names = self._names
        new = [name for name, value in self._given.items() if name in names and names[name] is not value]
        self._given.update({name: names[name] for name in new})
        return [[name, self._bound(name, names[name], packer)] for name in new]

    def _bound(self, name: str, value: Any, packer: Packer) -> Any:
        """Write the value of a name. Containers stay here; so does a known function under another name."""
        if type(value) in CONTAINERS:
            return self.reference(value, packer)
        known = None if type(value) in LEAVES else self.known_name(value)
        if known is None or known[1] == name:
            return packer.pack(value)
        return ["o", self._handle(value), self._class(type(value))]

    def fail(self, error: BaseException) -> None:
        """Report the exception that loading raised."""
        self.send(["!", self.describe(error, Packer(self.reference)), [], []])

    def serve_until_the_end(self) -> None:
        """Answer requests until the judge ends."""
        self._objects.append(self._module)
        while True:
            self.serve(self.receive())


def _defines(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__ if base is not object)


def _well_known(module: str, name: str, *, of_judge: bool) -> Any:
    """Return a function or class of a module that both processes have: of any, if the judge names it."""
    if module == "builtins":
        return PRISTINE.get(name)
    if module not in PURE_MODULES and not (of_judge and module.partition(".")[0] in sys.stdlib_module_names):
        return None
    value = vars(importlib.import_module(module)).get(name)
    return value if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType) else None


def _copy(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _same(container: Any, copy: Any) -> bool:
    now = _copy(container)
    try:
        if isinstance(now, dict) and list(now) != list(copy):  # the order is content, too
            return False
        return len(now) == len(copy) and bool(now == copy)
    except BaseException:  # noqa: BLE001 - the program's own equality
        return False
