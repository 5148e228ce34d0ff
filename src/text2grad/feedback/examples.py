"""JSONL file → examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}} on each line."""

import json
import re
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from text2grad.errors import DataError
from text2grad.files import read_text
from text2grad.types import Example

FIELDS = ("prompt", "reference", "tests", "meta")
ENCODED = ("reference", "tests", "response", "feedback")

_SURROGATE = re.compile("[\ud800-\udfff]")


def read_examples(path: str | Path) -> list[Example]:
    """Return the examples of a JSONL file; blank lines are skipped.

    A prompt is a text or a list of chat messages `{"role": ..., "content": ...}`. Other fields go into
    `meta`.

    Raises:
        DataError: if the file cannot be read, is empty, or has a line that is not an example.
    """
    lines = read_text(Path(path)).split("\n")
    examples = [_example(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not examples:
        raise DataError(f'{path} holds no examples; each line is one, such as {{"prompt": "..."}}')
    return examples


def digest_of_examples(examples: Iterable[Example]) -> str:
    """Return a hash of the contents of examples, in order; objects in `meta` that JSON lacks count by their type."""
    hashed = sha256()
    for one in examples:
        prompt = one.prompt if isinstance(one.prompt, str) else [dict(message) for message in one.prompt]
        content = [prompt, one.reference, one.tests, dict(one.meta)]
        hashed.update(json.dumps(content, default=lambda value: type(value).__qualname__).encode() + b"\n")
    return hashed.hexdigest()


def _example(line: str, where: str) -> Example:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(record, dict) or "prompt" not in record:
        raise DataError(f'{where}: an example is an object with a "prompt", got {line[:80]!r}')
    prompt = record["prompt"]
    if not isinstance(prompt, str) and not _is_chat(prompt):
        raise DataError(
            f'{where}: "prompt" is a text or a list of {{"role", "content"}} messages, got {str(prompt)[:80]!r}'
        )
    for key, kind in (("reference", str), ("tests", str), ("meta", dict)):
        if not isinstance(record.get(key), kind | None):
            wanted = "a text" if kind is str else "an object"
            raise DataError(f'{where}: "{key}" is {wanted}, got {str(record[key])[:80]!r}')
    extra = {key: value for key, value in record.items() if key not in FIELDS}
    example = Example(
        prompt=prompt,
        reference=record.get("reference"),
        tests=record.get("tests"),
        meta={**extra, **(record.get("meta") or {})},
    )
    texts = {"prompt": example.prompt_text, **{key: record.get(key) for key in ENCODED}}
    for key, text in texts.items():
        if isinstance(text, str) and (half := _SURROGATE.search(text)):
            raise DataError(
                f'{where}: "{key}" holds {half[0]!r}, half of a surrogate pair, which no tokenizer and no server can '
                "encode. Remove it"
            )
    return example


def _is_chat(prompt: object) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(
            isinstance(m, dict) and isinstance(m.get("content"), str) and isinstance(m.get("role"), str) for m in prompt
        )
    )
