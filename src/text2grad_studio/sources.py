"""Runs and files that a person names → JSONL files of records, one response per line.

A run of `text2grad train` is its `rollouts/*.jsonl`. A file holds responses with or without critiques: the annotations
of `text2grad annotate` and `text2grad feedback import`, predictions of `text2grad evaluate critic`, or any JSONL with
"prompt" and "response" (or "completion", as TRL names it). An output directory of TRL's GRPO with
`log_completions=True` holds `completions/*.parquet`, and a run of prime-rl `token_exports/` (`prime_rl`); their files
become JSONL in the studio's directory when they are first seen. So do the policy's answers to a file of prompts alone.
"""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

from text2grad.errors import DataError, require
from text2grad.feedback import response_of, turns_to_json
from text2grad.files import json_lines, write_files
from text2grad.types import Example
from text2grad_studio import prime_rl

PER_TOKEN = (
    *("delta", "reward", "value", "advantage", "kl", "logp", "logp_after", "change"),
    *("entropy", "mismatch_kl", "importance_ratio", "masked"),
)
"""Numbers per token that a record may have; "change" is `logp_after` − `logp`, the second line is prime-rl's."""


Kind = Literal["run", "file", "prompts", "trl", "prime-rl"]


class Source(NamedTuple):
    """A run or a file.

    Attributes:
        name: shown on the page, unique in a session.
        path: as given, resolved.
        kind: a run of this project, a JSONL file, one of prompts without responses, or a directory of another trainer.
        converted: directory for the JSONL made from another trainer's files, or of the policy's answers to prompts.
        tokenizer: of prime-rl's exports.
    """

    name: str
    path: Path
    kind: Kind
    converted: Path
    tokenizer: str = ""

    @property
    def explains(self) -> bool:
        """Whether it is a run that can be made again, to say which critiques moved a phrase."""
        known = (self.path / "run.json").exists() and any(self.path.glob("checkpoints/*/state.json"))
        return self.kind == "run" and known

    def files(self) -> list[Path]:
        """Return the files of records that exist now, in order."""
        if self.kind == "file":
            return [self.path]
        return sorted((self.path / "rollouts" if self.kind == "run" else self.converted).glob("*.jsonl"))

    def convert(self) -> bool:
        """Make JSONL of another trainer's new files; return whether all of them are converted.

        Raises:
            DataError: if a file cannot be read.
            ConfigError: if pyarrow is missing.
        """
        if self.kind == "trl":
            for path in sorted((self.path / "completions").glob("*.parquet")):
                _to_jsonl(path, self.converted)
        return self.kind != "prime-rl" or prime_rl.convert(self.path, self.converted, self.tokenizer)


def open_sources(paths: Sequence[Path], store: Path, *, tokenizer: str = "") -> list[Source]:
    """Return the sources of a session, each with a name of its own.

    Args:
        paths: directories and files.
        store: directory of the studio.
        tokenizer: of prime-rl's token exports; "" takes the tokenizer that their run names.

    Raises:
        DataError: if a path holds no rollouts.
    """
    sources: list[Source] = []
    for path in paths:
        whole = path.resolve()
        kind = _kind_of(path, whole)
        used = (tokenizer or prime_rl.tokenizer_of_run(whole)) if kind == "prime-rl" else ""
        stem = whole.stem if whole.is_file() else whole.parent.name if whole.name == prime_rl.FOLDER else whole.name
        name, number = stem, 1
        while any(source.name == name for source in sources):
            number += 1
            name = f"{stem} ({number})"
        form = "critiques" if kind == "trl" else used  # files that an older version made have none
        converted = store / "converted" / sha256(f"{whole}{form}".encode()).hexdigest()[:12]
        sources.append(Source(name, whole, kind, converted, used))
    return sources


def _kind_of(given: Path, path: Path) -> Kind:
    """Return what a path holds.

    Raises:
        DataError: if it holds no rollouts.
    """
    if not path.exists():
        raise DataError(f"{given} does not exist. Name the directory of a run (run.out), or a JSONL file")
    if path.is_file():
        if path.suffix != ".jsonl":
            raise DataError(
                f"{given} is no .jsonl file. `text2grad feedback import table {given} --out responses.jsonl` reads "
                "other formats"
            )
        if path.name.startswith("rank_") and prime_rl.FOLDER in path.parts:
            raise DataError(
                f"{given} is a token export of prime-rl: name the run's directory, which holds {prime_rl.FOLDER}/"
            )
        return "prompts" if _has_prompts_alone(path) else "file"
    if any((path / "completions").glob("*.parquet")):
        return "trl"
    if (path / prime_rl.FOLDER).is_dir() or prime_rl.exports_of(path):  # before rollouts/, which prime-rl has, too
        return "prime-rl"
    if not (path / "rollouts").is_dir():
        raise DataError(
            f"{given} holds no rollouts/: it is no directory of a run. Name the directory in run.out of `text2grad "
            "train`, or a JSONL file of responses"
        )
    if any((path / "rollouts").glob("step_*/*/*/traces.jsonl")):
        raise DataError(
            f"{given} is a run of prime-rl without {prime_rl.FOLDER}/: set trainer.enable_token_export = true in its "
            "configuration"
        )
    return "run"


def _has_prompts_alone(path: Path) -> bool:
    """Return whether the first line of a file is a prompt without a response; a damaged one is told with its index."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and "prompt" in row and not {"response", "completion", "turns"} & row.keys()


def normalized(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the names of a rollout: "prompt", "response", "turns", "critique" and numbers per token.

    Raises:
        ValueError: if it has no response.
        DataError: if its turns are others than the response says.
    """
    rollout = dict(record)
    if "response" not in rollout and isinstance(rollout.get("completion"), str | list):  # TRL
        rollout["response"] = _prompt(rollout.pop("completion"))
    if not isinstance(rollout.get("response"), str):
        raise ValueError('no text under "response" or "completion"')
    rollout["prompt"] = _prompt(rollout.get("prompt"))
    turns = rollout.pop("turns", None)
    if turns and isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns):  # else another program's
        rollout["response"] = response_of({**rollout, "turns": turns}, "a response")
        rollout["turns"] = turns_to_json(rollout["response"])
    if not isinstance(rollout.get("critique"), dict):
        rollout.pop("critique", None)
    for name in ("reward", "advantage"):
        if isinstance(rollout.get(name), int | float):  # one number for the whole response
            rollout[f"{name}_of_response"] = float(rollout.pop(name))
    tokens = len(rollout["offsets"]) if isinstance(rollout.get("offsets"), list) else 0
    for name in PER_TOKEN:
        values = rollout.get(name)
        if not isinstance(values, list) or len(values) != tokens:
            rollout.pop(name, None)
    if "logp" in rollout and "logp_after" in rollout:
        pairs = zip(rollout["logp"], rollout["logp_after"], strict=True)
        rollout["change"] = [None if None in pair else round(pair[1] - pair[0], 5) for pair in pairs]
    return rollout


def _to_jsonl(path: Path, directory: Path) -> None:
    """Make the JSONL file of a Parquet file of TRL, unless it is there and as new.

    TRL writes a step's file again when the step is evaluated, or repeated by a training that is resumed.
    Columns of numbers beside "step" and "advantage" are the values of reward functions; their sum is the reward.
    """
    target = directory / f"{path.stem}.jsonl"
    if target.exists() and target.stat().st_mtime_ns >= path.stat().st_mtime_ns:
        return
    require("pyarrow", extra="train", purpose="completions that TRL logged")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"cannot read {path}: {error}; it is read again while TRL writes it") from error
    records = []
    for row in rows:
        rewards = {name: row.pop(name) for name in list(row) if _is_reward(name, row[name])}
        record = {name: row[name] for name in ("step", "prompt", "completion", "advantage") if name in row}
        record |= _critique(row)
        records.append({**record, "reward": sum(rewards.values()), "rewards": rewards} if rewards else record)
    data = json_lines(records)
    if target.exists() and target.read_bytes() == data:
        target.touch()  # another file would be indexed anew
    else:
        write_files(directory, {target.name: data})


def _critique(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the critique in a row of TRL's table, and completion and turns as the critic read them; else nothing.

    `GRPOTrainer` logs feedback as "critique" and the rest as JSON in "critique_spans". Tables of older versions
    lack the latter: spans and status are unknown.
    """
    if not isinstance(row.get("critique"), str):
        return {}
    try:
        rest = json.loads(row["critique_spans"])
    except (KeyError, TypeError, ValueError):  # no column, no value, or another program's
        rest = None
    if not isinstance(rest, dict):
        rest = {"spans": [], "status": ""}
    named = {"response": "completion", "turns": "turns"}
    whole = {name: rest.pop(key) for key, name in named.items() if key in rest}
    return {"critique": {"feedback": row["critique"], **rest}, **whole}


def _is_reward(name: str, value: Any) -> bool:
    return name not in ("step", "advantage") and type(value) in (int, float) and math.isfinite(value)


def _prompt(given: Any) -> str:
    """Return a prompt as text; messages of a chat are joined as `Example` joins them, those without text left out."""
    if isinstance(given, list):
        parts = [
            (str(part.get("role") or ""), _content(part.get("content"))) for part in given if isinstance(part, dict)
        ]
        return Example([{"role": role, "content": text} for role, text in parts if text is not None]).prompt_text
    return given if isinstance(given, str) else ""


def _content(given: Any) -> str | None:
    """Return the text of a message, also from a list of texts and images; None without text, as in a call of a tool."""
    if isinstance(given, list):
        texts = [part.get("text") for part in given if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    return given if isinstance(given, str) else None
