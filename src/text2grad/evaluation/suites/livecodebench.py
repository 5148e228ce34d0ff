"""Records of LiveCodeBench (arXiv 2403.07974) → prompts and tests for the sandbox.

`public_test_cases` is JSON; `private_test_cases` is JSON, or base64 of a compressed pickle of JSON text. Nothing is
unpickled: the text is read from the pickle's opcodes, and a pickle of anything but a text is refused. Tests are
programs' inputs and outputs ("stdin"), compared line by line and number by number, or arguments and results of a
function ("functional"), where a list may be returned as a tuple.
"""

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from text2grad.errors import DataError
from text2grad_sandbox import Case

CALLED = "text2grad_called"
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"}
_FRAME = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
_MOST_BYTES = 2**28  # of tests, decompressed

_FUNCTIONAL = """\
import json

for _given, _wanted in json.loads({cases!r}):
    _found = {called}(*[json.loads(one) for one in _given])
    assert (list(_found) if isinstance(_found, tuple) else _found) == json.loads(_wanted)
"""


def cases_of(record: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return all tests of a record, public tests first.

    Raises:
        DataError: if they cannot be read.
    """
    found: list[dict[str, Any]] = []
    for key in ("public_test_cases", "private_test_cases"):
        try:
            cases = _decoded(record.get(key) or [])
            found += [{name: str(one[name]) for name in ("input", "output", "testtype")} for one in cases]
        except (ValueError, LookupError, TypeError, zlib.error, binascii.Error, RecursionError) as error:
            raise DataError(f'{where}: "{key}" cannot be read: {error}. Take the record from LiveCodeBench') from error
    if not found:
        raise DataError(f'{where}: no test in "public_test_cases" and "private_test_cases"')
    return found


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(value, validate=True), _MOST_BYTES)
        if packed.unconsumed_tail:
            raise ValueError(f"more than {_MOST_BYTES:,} bytes") from None
        return json.loads(_text_in_pickle(data))


def _text_in_pickle(data: bytes) -> str:
    """Return the text that a pickle consists of; its opcodes are listed, not executed."""
    texts = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXTS:
            texts.append(str(argument))
        elif opcode.name not in _FRAME:
            raise ValueError(f"a pickle with the opcode {opcode.name}, not of a text alone")
    if len(texts) != 1:
        raise ValueError(f"a pickle of {len(texts)} texts, not of one")
    return texts[0]


def tests_of(cases: Sequence[Mapping[str, Any]]) -> str | tuple[Case, ...]:
    """Return the tests of cases of one kind."""
    if cases[0]["testtype"] == "functional":
        listed = [[one["input"].strip().split("\n"), one["output"]] for one in cases]
        return _FUNCTIONAL.format(cases=json.dumps(listed), called=CALLED)
    return tuple(Case(one["input"], one["output"], numbers=True) for one in cases)


def function_of(record: Mapping[str, Any]) -> str:
    """Return the name of the function in question; "" for a program that reads standard input."""
    metadata = _decoded(record.get("metadata") or {})
    return str(metadata.get("func_name") or "") if isinstance(metadata, dict) else ""


def with_call(program: str, function: str, starter: str) -> str:
    """Return a program with one function that calls the method or function in question, with values alone."""
    owner = "Solution()." if "class Solution" in starter or "class Solution" in program else ""
    return f"{program}\n\n\ndef {CALLED}(*arguments):\n    return {owner}{function}(*arguments)\n"
