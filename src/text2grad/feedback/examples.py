"""JSONL file → examples: {"prompt": ..., "reference": ..., "tests": ..., "meta": {...}} on each line."""

import json
from pathlib import Path
from typing import Any

from text2grad.errors import DataError
from text2grad.types import Example

FIELDS = ("prompt", "reference", "tests", "meta")


def read_examples(path: str | Path) -> list[Example]:
    """Return the examples of a JSONL file; blank lines are skipped.

    A prompt is a text or a list of chat messages `{"role": ..., "content": ...}`. Other fields go into
    `meta`.

    Raises:
        DataError: if the file cannot be read, is empty, or has a line that is not an example.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read examples from {path}: {error}") from error
    examples = [_example(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not examples:
        raise DataError(f'{path} holds no examples; each line is one, such as {{"prompt": "..."}}')
    return examples


def _example(line: str, where: str) -> Example:
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
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
    return Example(
        prompt=prompt,
        reference=record.get("reference"),
        tests=record.get("tests"),
        meta={**extra, **(record.get("meta") or {})},
    )


def _is_chat(prompt: object) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(m, dict) and isinstance(m.get("content"), str) and "role" in m for m in prompt)
    )
