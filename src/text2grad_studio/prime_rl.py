"""Token exports of prime-rl → JSONL of responses with numbers per token.

With `trainer.enable_token_export = true` (earlier: `trainer.experimental.token_export`) prime-rl's trainer writes a
record per trained sequence to RUN/token_exports/step_<n>/rank_<r>.jsonl, and an empty STABLE into the folder when the
step is complete; its first version wrote token_exports/rank_<r>.jsonl. A record holds columns of equal length over
prompt and response, and no text: "token_ids", "loss_mask" (True: trained on), "advantages", "trainer_logprobs",
"inference_logprobs", "entropy", "mismatch_kl", "importance_ratio", "is_masked" and others (prime-rl,
src/prime_rl/trainer/rl/token_export.py).

The response begins at the first trained token and ends at the last; tokens between that are not trained on, such as the
results of tools, are shown without numbers. Decoding needs the run's tokenizer and runs in a process of its own:

    python -m text2grad_studio.prime_rl

A job is one object of JSON on standard input: "tokenizer", and "files" with pairs of export and target.
"""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from text2grad.errors import DataError, Text2GradError
from text2grad.files import json_lines, to_json, write_atomically

FOLDER = "token_exports"
COLUMNS = {
    "advantage": "advantages",
    "logp": "trainer_logprobs",
    "entropy": "entropy",
    "mismatch_kl": "mismatch_kl",
    "importance_ratio": "importance_ratio",
    "masked": "is_masked",
}
"""Our name of a number per token → prime-rl's."""
BYTES_AT_ONCE = 16 * 2**20  # most bytes of exports that a process decodes
QUIET_S = 30.0  # a step without STABLE is complete when its files have not changed for so long
STATE = "exports.json"  # size and time of each export when it was decoded


def exports_of(path: Path) -> list[Path]:
    """Return the files of token exports of a run, or of a folder of exports, in the order of their steps."""
    root = path / FOLDER if (path / FOLDER).is_dir() else path
    return sorted([*root.glob("step_*/rank_*.jsonl"), *root.glob("rank_*.jsonl")], key=_order)


def tokenizer_of_run(path: Path) -> str:
    """Return the tokenizer or the model that the configuration of a run names; "" if there is none."""
    root = path.parent if path.name == FOLDER else path
    for name, read in (("trainer.json", json.loads), ("trainer.toml", tomllib.loads)):
        file = root / "configs" / name
        if file.exists():
            try:
                config: Any = read(file.read_text("utf-8"))
                tokenizer = (config.get("tokenizer") or {}).get("name") or (config.get("model") or {}).get("name")
            except (OSError, ValueError, AttributeError):
                continue
            if isinstance(tokenizer, str):
                return tokenizer
    return ""


def convert(path: Path, directory: Path, tokenizer: str) -> bool:
    """Decode exports that are complete and not decoded yet; return whether none is left.

    Args:
        path: the run, or the folder of its exports.
        directory: where JSONL of responses goes, a file for each export.
        tokenizer: directory or hub name.

    Raises:
        DataError: if the tokenizer is not named or cannot be loaded, or an export cannot be read.
    """
    known = _known(directory)
    states = {str(file): [file.stat().st_size, file.stat().st_mtime_ns] for file in exports_of(path)}
    waiting = [
        Path(name)
        for name, state in states.items()
        if known.get(name) != state and _complete(Path(name), state[1] / 1e9, states)
    ]
    if not waiting:
        return True
    if not tokenizer:
        raise DataError(
            f"{path} holds token exports of prime-rl, which have no text, and no configs/trainer.json that names the "
            "model: name its tokenizer with --tokenizer PATH"
        )
    now, size = list[Path](), 0
    for file in waiting:
        if now and size + states[str(file)][0] > BYTES_AT_ONCE:
            break
        now.append(file)
        size += states[str(file)][0]
    directory.mkdir(parents=True, exist_ok=True)
    pairs = [(str(file), str(directory / _target(file))) for file in now]
    _decode({"tokenizer": tokenizer, "files": pairs})
    known |= {str(file): states[str(file)] for file in now}
    write_atomically(directory / STATE, to_json(known))
    return len(now) == len(waiting)


def response_of(export: Mapping[str, Any], tokenizer: Any) -> dict[str, Any] | None:
    """Return an exported sequence as the record of a response; None without a trained token.

    Raises:
        DataError: if the columns do not fit each other.
    """
    from text2grad.align import token_offsets

    try:
        ids, mask = export["token_ids"], export["loss_mask"]
        step, environment = export["step"], export.get("env_name")
        trained = [place for place, is_trained in enumerate(mask) if is_trained]
        columns = {name: export[other] for name, other in COLUMNS.items() if export.get(other)}
        rewards = [reward for reward in export.get("rewards") or () if reward is not None]
    except (LookupError, TypeError, AttributeError) as error:
        raise DataError(f"a record is no token export of prime-rl: {error!r}") from error
    if any(len(values) != len(ids) for values in (mask, *columns.values())):
        raise DataError("the columns of a token export have different lengths")
    if not trained:
        return None
    first, end = trained[0], trained[-1] + 1
    record: dict[str, Any] = {
        "step": step,
        "prompt": tokenizer.decode(ids[:first], skip_special_tokens=False),
        "response": tokenizer.decode(ids[first:end], skip_special_tokens=True),
        "ids": ids[first:end],
        "offsets": token_offsets(tokenizer, ids[first:end]),
    }
    for name, values in columns.items():
        known = [values[n] if mask[n] else None for n in range(first, end)]
        numbers = [None if value is None else round(float(value), 5) for value in known]
        if any(number is not None for number in numbers):
            record[name] = numbers
    if rewards:  # the same number on each token
        record["reward"] = rewards[-1]
    if environment:
        record["environment"] = environment
    return record


def _order(file: Path) -> tuple[int, int]:
    step, rank = file.parent.name.removeprefix("step_"), file.stem.removeprefix("rank_")
    return int(step) if step.isdecimal() else -1, int(rank) if rank.isdecimal() else -1


def _target(file: Path) -> str:
    """Return the name of the decoded file; names have the order of the steps."""
    step, rank = _order(file)
    return f"{max(step, 0):08d}-{rank:05d}.jsonl"


def _complete(file: Path, changed: float, states: Mapping[str, Any]) -> bool:
    """Return whether the trainer has ended an export: its step is stable, or a later one has begun, or it is quiet."""
    later = any(_order(Path(other))[0] > _order(file)[0] for other in states)
    return (file.parent / "STABLE").exists() or later or time.time() - changed > QUIET_S


def _known(directory: Path) -> dict[str, Any]:
    try:
        states: dict[str, Any] = json.loads((directory / STATE).read_bytes())
    except (OSError, ValueError):  # the first time
        return {}
    return states


def _decode(job: Mapping[str, Any]) -> None:
    command = [sys.executable, "-m", "text2grad_studio.prime_rl"]
    process = subprocess.run(
        command,
        input=to_json(job),
        capture_output=True,
        check=False,
        env={**os.environ, "TRANSFORMERS_VERBOSITY": "error"},
    )
    if process.returncode:
        said = process.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {process.returncode}"]
        raise DataError(f"prime-rl's token exports cannot be decoded: {said[-1]}")


def decode(job: Mapping[str, Any]) -> None:
    """Write the responses of exports, each file atomically.

    Raises:
        DataError, ModelError: if an export or the tokenizer cannot be read.
    """
    from text2grad.models import load_tokenizer

    tokenizer = load_tokenizer(job["tokenizer"])
    for name, target in job["files"]:
        write_atomically(Path(target), json_lines(_responses(Path(name), tokenizer)))


def main() -> int:
    """Do the job on standard input."""
    try:
        decode(json.loads(sys.stdin.buffer.read()))
    except (Text2GradError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _responses(file: Path, tokenizer: Any) -> Sequence[dict[str, Any]]:
    records = []
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                records.append(response_of(json.loads(line), tokenizer))
            except (ValueError, Text2GradError) as error:
                raise DataError(f"{file}:{number}: {error}") from error
    return [record for record in records if record is not None]


if __name__ == "__main__":
    sys.exit(main())
