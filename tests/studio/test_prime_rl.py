"""Token exports of prime-rl: its format, decoding, growth, and ways out where something is missing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from text2grad.errors import DataError
from text2grad.tasks.tiny import word_tokenizer
from text2grad_studio import prime_rl
from text2grad_studio.columns import Filter
from text2grad_studio.index import RunIndex
from text2grad_studio.prime_rl import response_of
from text2grad_studio.sources import open_sources

TEXTS = ("Say where.", " The cat", " sat on the mat.", " Tool: rain.", " It is wet.")
TOKENIZER = word_tokenizer(TEXTS)


def export(
    step: int, rank: int, sequence: int, parts: list[tuple[str, bool]], *, ends: bool = True, **more: Any
) -> dict[str, Any]:
    """Return a record with the keys, and in the order, that prime-rl's TokenExporter writes.

    The number at place n is 0.25 · n; columns that the loss did not compute hold nulls.
    """
    ids, mask = list[int](), list[bool]()
    for text, trained in parts:
        new = TOKENIZER(text).input_ids
        ids, mask = ids + new, mask + [trained] * len(new)
    if ends:
        ids, mask = [*ids, TOKENIZER.eos_token_id], [*mask, True]
    count = len(ids)
    numbers = [0.25 * n for n in range(count)]
    nothing = [None] * count
    return {
        "schema_version": 1,
        "step": step,
        "rank": rank,
        "micro_step": 0,
        "micro_sequence_idx": sequence,
        "export_sequence_idx": sequence,
        "env_name": "weather",
        "token_ids": ids,
        "position_ids": list(range(count)),
        "loss_mask": mask,
        "advantages": [-0.5] * count,
        "inference_logprobs": [-1.0] * count,
        "trainer_logprobs": [-value for value in numbers],
        "entropy": numbers,
        "mismatch_kl": [0.5 * n for n in range(count)],
        "log_importance_ratio": numbers,
        "importance_ratio": [1.0] * count,
        "prob_delta": numbers,
        "is_masked": [n % 2 == 0 for n in range(count)],
        "is_masked_high": [False] * count,
        "is_masked_low": [False] * count,
        "rl_weights": nothing,
        "ce_weights": nothing,
        "ref_kl_weights": nothing,
        **more,
    }


def write_step(run: Path, step: int, rank: int, records: list[dict[str, Any]], *, stable: bool = True) -> Path:
    folder = run / "token_exports" / f"step_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n" for record in records)
    (folder / f"rank_{rank}.jsonl").write_text("".join(lines))
    if stable:
        (folder / "STABLE").touch()
    return folder / f"rank_{rank}.jsonl"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode in this process, which has loaded transformers."""
    monkeypatch.setattr(prime_rl, "_decode", prime_rl.decode)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose configuration names its model."""
    TOKENIZER.save_pretrained(tmp_path / "model")
    (tmp_path / "run" / "configs").mkdir(parents=True)
    config = {"model": {"name": str(tmp_path / "model")}, "tokenizer": {"name": None}}
    (tmp_path / "run" / "configs" / "trainer.json").write_text(json.dumps(config))
    (tmp_path / "run" / "rollouts").mkdir()  # prime-rl's own, which is no folder of ours
    return tmp_path / "run"


def test_a_sequence_becomes_a_response_between_its_first_and_last_trained_token() -> None:
    parts = [("Say where.", False), (" The cat", True), (" Tool: rain.", False), (" It is wet.", True)]
    response = response_of(export(3, 0, 0, parts), TOKENIZER)
    assert response is not None
    assert (response["step"], response["prompt"], response["environment"]) == (3, "Say where.", "weather")
    assert response["response"] == " The cat Tool: rain. It is wet."
    # tokens: Say| where|. | The| cat| Tool|:| rain|.| It| is| wet|.|end
    words = [response["response"][start:end] for start, end in response["offsets"]]
    assert words == [" The", " cat", " Tool", ":", " rain", ".", " It", " is", " wet", ".", ""]
    places = [3, 4, None, None, None, None, 9, 10, 11, 12, 13]
    assert response["entropy"] == [None if n is None else 0.25 * n for n in places]
    assert response["mismatch_kl"] == [None if n is None else 0.5 * n for n in places]
    assert response["importance_ratio"][:3] == [1.0, 1.0, None]
    assert response["logp"] == [None if n is None else -0.25 * n for n in places]
    assert response["masked"] == [None if n is None else float(n % 2 == 0) for n in places]
    assert response["advantage"][:3] == [-0.5, -0.5, None]
    assert response["ids"][-1] == TOKENIZER.eos_token_id
    assert "reward" not in response


def test_columns_without_a_number_are_left_out_and_the_rewards_of_the_first_schema_are_read() -> None:
    parts = [("Say where.", False), (" The cat", True)]
    count = len(export(0, 0, 0, parts)["token_ids"])
    nothing: dict[str, Any] = {"mismatch_kl": [None] * count, "rewards": [0.75] * count, "training_mode": "rl"}
    response = response_of(export(0, 0, 0, parts, **nothing), TOKENIZER)
    assert response is not None
    assert "mismatch_kl" not in response
    assert response["reward"] == 0.75
    assert response_of(export(0, 0, 0, [("Say where.", False)], ends=False), TOKENIZER) is None
    with pytest.raises(DataError, match="different lengths"):
        response_of(export(0, 0, 0, parts, entropy=[0.5]), TOKENIZER)
    with pytest.raises(DataError, match="no token export of prime-rl"):
        response_of({"token_ids": [1]}, TOKENIZER)


def test_a_run_is_read_and_followed_and_repeated_steps_replace_the_old(here: None, run: Path, tmp_path: Path) -> None:
    parts = [("Say where.", False), (" The cat", True)]
    write_step(run, 2, 0, [export(2, 0, n, parts) for n in range(2)])
    write_step(run, 10, 1, [export(10, 1, 0, [("Say where.", False), (" It is wet.", True)])])
    under_way = write_step(run, 11, 0, [export(11, 0, 0, parts)], stable=False)
    [source] = open_sources([run], tmp_path / "store")
    assert (source.name, source.kind) == ("run", "prime-rl")
    index = RunIndex(source, tmp_path / "index.sqlite")
    assert index.update()
    rows = index.rows(index.find(Filter(order="oldest")).page())
    assert [(row["step"], row["response"]) for row in rows] == [(2, " The cat"), (2, " The cat"), (10, " It is wet.")]
    record = index.record(rows[0]["id"])
    assert record["entropy"] == [0.75, 1.0, 1.25]
    assert (rows[0]["peak"], rows[0]["kl"], rows[0]["reward"]) == (0.5, None, None)
    assert index.state()["columns"] == ["advantage", "entropy", "importance_ratio", "logp", "masked", "mismatch_kl"]
    (under_way.parent / "STABLE").touch()
    write_step(run, 2, 0, [export(2, 0, 0, [("Say where.", False), (" sat on the mat.", True)])])  # the run was resumed
    assert index.update()
    rows = index.rows(index.find(Filter(order="oldest")).page())
    assert [(row["step"], row["response"]) for row in rows] == [
        (2, " sat on the mat."),
        (10, " It is wet."),
        (11, " The cat"),
    ]


def test_exports_of_the_first_version_in_one_file_are_read(here: None, run: Path, tmp_path: Path) -> None:
    (run / "token_exports").mkdir()
    parts = [("Say where.", False), (" The cat", True)]
    file = run / "token_exports" / "rank_0.jsonl"
    file.write_text("".join(json.dumps(export(step, 0, 0, parts)) + "\n" for step in (0, 1)))
    index = RunIndex(open_sources([run / "token_exports"], tmp_path / "store")[0], tmp_path / "index.sqlite")
    assert index.source.name == "run"
    assert index.update()
    assert index.state()["rollouts"] == 0  # the trainer may still write it
    os.utime(file, (0, 0))
    assert index.update()
    assert index.state()["steps"] == [0, 1]


def test_a_missing_tokenizer_and_unreadable_exports_are_told_with_a_way_out(run: Path, tmp_path: Path) -> None:
    write_step(run, 0, 0, [export(0, 0, 0, [("Say where.", False), (" The cat", True)])])
    write_step(run, 1, 0, [{"schema_version": 1, "step": 1, "token_ids": [1]}])
    [source] = open_sources([run], tmp_path / "store")
    with pytest.raises(DataError, match=r"step_1/rank_0\.jsonl:1: a record is no token export"):  # by the process
        source.convert()
    assert [path.name for path in source.files()] == ["00000000-00000.jsonl"]  # the export that is whole is there
    (run / "configs" / "trainer.json").unlink()
    with pytest.raises(DataError, match="--tokenizer PATH"):
        open_sources([run], tmp_path / "other")[0].convert()
    with pytest.raises(DataError, match="name the run's directory"):
        open_sources([run / "token_exports" / "step_0" / "rank_0.jsonl"], tmp_path / "store")


def test_the_configuration_names_the_tokenizer(tmp_path: Path) -> None:
    assert prime_rl.tokenizer_of_run(tmp_path) == ""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "trainer.toml").write_text('[model]\nname = "org/model"\n')
    assert prime_rl.tokenizer_of_run(tmp_path) == "org/model"
    (tmp_path / "configs" / "trainer.json").write_text('{"model": {"name": "a"}, "tokenizer": {"name": "b"}}')
    assert prime_rl.tokenizer_of_run(tmp_path / "token_exports") == "b"
    (tmp_path / "configs" / "trainer.json").write_text("{")
    assert prime_rl.tokenizer_of_run(tmp_path) == "org/model"
