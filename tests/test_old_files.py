"""What version 0.1.0 wrote is read today: runs go on, reward models judge, no answer is asked for twice.

The files in tests/data/v0_1_0 were made by that version (make.py there says how), and so was what is expected of them.
Text, spans and δ must be the same. So must floats, to the last bit, on the kind of machine that the files were made on;
on another processor, or with other releases of torch and transformers, they may differ in their last digits.
"""

import importlib
import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from text2grad.reward_models.process import ProcessRewardModel
from text2grad.reward_models.scalar import ScalarRewardModel

from text2grad import Critique, Example, GenerativeRewardModel, LLMCritic, Refresher, Text2GradTrainer, load_recipe
from text2grad.cli import main
from text2grad.config import make_recipe
from text2grad.config.renamed import with_current_names
from text2grad.critics.cached import CachedCritic
from text2grad.critics.servers.store import Request, Store
from text2grad.feedback import read_annotations, read_examples, write_annotations
from text2grad.models import load_policy, load_tokenizer

# deep paths
from text2grad.reward_models import ServerRewardModel

KEPT = Path(__file__).parent / "data" / "v0_1_0"
EXPECTED: dict[str, Any] = json.loads((KEPT / "expected.json").read_bytes())
NO_SERVER = "http://127.0.0.1:9/v1"
TOLERANCE = 1e-5

on_a_processor = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="the runs were made without an accelerator, which samples other responses"
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the old files, which is the working directory: all paths in them are relative to it."""
    copy = tmp_path / "old"
    shutil.copytree(KEPT, copy, ignore=shutil.ignore_patterns("make.py", "__pycache__"))
    monkeypatch.chdir(copy)
    monkeypatch.syspath_prepend(str(copy))
    monkeypatch.delitem(sys.modules, "old_judges", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return copy


def asked() -> list[list[str]]:
    """Return what the critic in Python was asked about since this test began."""
    found: list[list[str]] = importlib.import_module("old_judges").ASKED
    return found


# How things are compared.


def machine() -> dict[str, Any]:
    """Return what the last bits of a sum depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    first = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else platform.processor()
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": [
            line for line in first.splitlines() if line.startswith(("vendor", "cpu family", "model", "step"))
        ],
    }


SAME_MACHINE = machine() == EXPECTED["machine"]


def assert_alike(found: Any, expected: Any, where: str = "", *, tolerance: float = TOLERANCE) -> None:
    """Compare JSON data: floats as far as the machine allows it, everything else exactly."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key, value in expected.items():
            assert_alike(found[key], value, f"{where}/{key}", tolerance=tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_alike(one, other, f"{where}[{number}]", tolerance=tolerance)
    elif isinstance(expected, float) and not SAME_MACHINE:
        assert math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance), where
    else:
        assert found == expected, where


def assert_same_weights(found: Path, expected: Path) -> None:
    one, other = load_file(found), load_file(expected)
    assert one.keys() == other.keys()
    for name, weights in other.items():
        if SAME_MACHINE:
            assert torch.equal(one[name], weights), name
        else:
            torch.testing.assert_close(one[name], weights, rtol=TOLERANCE, atol=TOLERANCE)


def plain(critique: Critique) -> dict[str, Any]:
    return {
        "feedback": critique.feedback,
        "spans": [[span.start, span.end, span.label] for span in critique.spans],
        "outcome": critique.outcome,
        "status": critique.status,
        "unmatched": list(critique.unmatched),
    }


def records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file, with spans in the form of this version."""
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    for record in found:
        if "critique" in record:
            spans = record["critique"]["spans"]
            record["critique"]["spans"] = [
                dict(zip(("start", "end", "label"), span, strict=True)) if isinstance(span, list) else span
                for span in spans
            ]
    return found


def untimed(path: Path) -> list[dict[str, Any]]:
    """Return the metrics that version 0.1 had, too, without costs."""
    later = ("seconds/", "memory/", "tokens/", "reward/nonzero_share")
    return [{k: v for k, v in line.items() if not k.startswith(later)} for line in records(path)]


def exactly(record: dict[str, Any]) -> dict[str, Any]:
    """Return what of a rollout no processor changes: the text, the critique, and δ."""
    return {key: record[key] for key in ("step", "prompt", "response", "critique", "ids", "offsets", "delta")}


def examples_of(pairs: Sequence[Sequence[Any]]) -> tuple[list[Example], list[str]]:
    return [Example(pair[0]) for pair in pairs], [pair[1] for pair in pairs]


def assert_finished_as_before(name: str) -> None:
    """Compare a run that was taken up with what the old version made of it."""
    run, expected = Path(name), KEPT / "finished" / name
    assert_alike(untimed(run / "metrics.jsonl"), untimed(expected / "metrics.jsonl"))
    found, before = records(run / "rollouts" / "00000.jsonl"), records(expected / "rollouts.jsonl")
    assert [exactly(one) for one in found] == [exactly(one) for one in before]
    assert_alike(found, before, tolerance=2 * TOLERANCE)  # they are rounded to five digits
    assert_same_weights(run / "checkpoints" / "step-000004" / "trainable.safetensors", expected / "policy.safetensors")
    (critic,) = (run / "critic" / "step-000004").glob("*model.safetensors")
    assert_same_weights(critic, expected / "critic.safetensors")


# Runs.


@on_a_processor
@pytest.mark.parametrize("name", ["run", "run_lora"])
def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(home: Path, name: str) -> None:
    assert main(["train", f"{name}.toml", "--resume"]) == 0
    assert_finished_as_before(name)
    assert asked() == EXPECTED["asked_on_resume"][name], "what the annotator had answered is not asked again"
    assert list(home.glob(f"{name}/critiques/*")) == []


@on_a_processor
def test_a_trainer_takes_up_a_run_with_the_critiques_and_the_critic_that_it_left_on_disk(home: Path) -> None:
    kept = home / "run" / "critiques" / "000002-0.json"
    said = json.loads(kept.read_bytes())
    said[0]["feedback"] = "As it was kept."
    kept.write_text(json.dumps(said))
    refreshed = home / "run" / "critic" / "step-000003" / "model.safetensors"
    left, found_then = refreshed.stat().st_mtime_ns, []
    recipe, critic = load_recipe("run.toml"), GenerativeRewardModel.load("reward_models/generative")
    trainer = Text2GradTrainer(
        load_policy("policy"),
        critic,
        load_tokenizer("policy"),
        read_examples("examples.jsonl"),
        recipe,
        refresher=Refresher.from_recipe(recipe, critic, importlib.import_module("old_judges").annotator),
        resume=True,
    )
    assert trainer.step == 2
    trainer.train(lambda run: found_then.append(refreshed.stat().st_mtime_ns) if run.step == 3 else None)
    assert found_then == [left], "it was trained already"
    rollouts = home / "run" / "rollouts" / "00000.jsonl"
    found = records(rollouts)
    assert [one["critique"]["feedback"] for one in found].count("As it was kept.") == 1
    found[16]["critique"]["feedback"] = records(KEPT / "run" / "rollouts" / "00000.jsonl")[16]["critique"]["feedback"]
    rollouts.write_text("".join(json.dumps(one) + "\n" for one in found))
    assert_finished_as_before("run")


@pytest.mark.parametrize("name", ["run", "run_lora", "reward_run"])
def test_the_recipe_of_a_run_is_read_as_it_was(name: str) -> None:
    before = with_current_names(EXPECTED["recipes"][name], "run.json", warn=False)
    found = make_recipe(EXPECTED["recipes"][name], warn=False).model_dump(mode="json")
    assert {section: {key: found[section][key] for key in keys} for section, keys in before.items()} == before


@pytest.mark.parametrize("name", ["run", "run_lora"])
def test_a_trained_policy_and_its_critic_say_what_they_said(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", name, "--prompt", "red cat", "--prompt", "two dog", "--seed", "1"]) == 0
    answers, _, _ = capsys.readouterr().out.partition("2 answers: ")
    assert answers == EXPECTED["talks"][name]


@on_a_processor
def test_the_training_of_a_reward_model_goes_on_to_the_same_numbers(home: Path) -> None:
    assert main(["reward", "reward.toml", "--resume"]) == 0
    run, expected = home / "reward_run", KEPT / "finished" / "reward_run"
    assert_alike(records(run / "metrics.jsonl"), records(expected / "metrics.jsonl"))
    assert_alike(json.loads((run / "results.json").read_bytes()), json.loads((expected / "results.json").read_bytes()))
    assert_same_weights(run / "model" / "model.safetensors", expected / "model.safetensors")
    assert (run / "data.json").read_bytes() == (KEPT / "reward_run" / "data.json").read_bytes()
    critic = GenerativeRewardModel.load(run / "model")
    asked_about = examples_of(EXPECTED["reward_models"]["generative"]["asked"][:3])
    assert critic.write(*asked_about) == EXPECTED["reward_run_writes"]


# Reward models.


@pytest.mark.parametrize("name", ["generative", "generative_lora", "dense", "scores"])
def test_a_reward_model_writes_what_it_wrote(home: Path, name: str) -> None:
    expected = EXPECTED["reward_models"][name]
    model = GenerativeRewardModel.load(home / "reward_models" / name)
    saved = json.loads((home / "reward_models" / name / "reward_model.json").read_bytes())
    settings = {key: key for key in ("max_new_tokens", "form", "constrain", "prompt_format", "votes", "match")}
    settings |= {"words": "write_feedback", "agreement": "vote_threshold"}
    assert {old: getattr(model, new) for old, new in settings.items()} == {old: saved[old] for old in settings}
    about = examples_of(expected["asked"])
    assert model.write(*about) == expected["written"]
    assert [plain(one) for one in model(*about)] == expected["critiques"]


def test_a_reward_model_draws_the_votes_that_it_drew(home: Path) -> None:
    expected = EXPECTED["reward_models"]["generative"]
    model = GenerativeRewardModel.load(home / "reward_models" / "generative", votes=5, agreement=0.4, seed=7)
    assert [plain(one) for one in model(*examples_of(expected["asked"][:3]))] == expected["votes"]


def test_a_scalar_reward_model_gives_the_numbers_that_it_gave(home: Path) -> None:
    expected = EXPECTED["reward_models"]["scalar"]
    model = ScalarRewardModel.load(home / "reward_models" / "scalar")
    assert_alike([plain(one) for one in model(*examples_of(expected["asked"]))], expected["critiques"])


def test_a_process_reward_model_labels_steps_as_it_did(home: Path) -> None:
    expected = EXPECTED["reward_models"]["process"]
    model = ProcessRewardModel.load(home / "reward_models" / "process")
    assert [plain(one) for one in model(*examples_of(expected["asked"]))] == expected["critiques"]


# Annotations.


@pytest.mark.parametrize("name", ["annotations.jsonl", "learned.jsonl"])
def test_annotations_are_read_as_they_were_and_written_as_they_were(home: Path, name: str) -> None:
    found = read_annotations(home / name)
    assert [[one.prompt, one.response, plain(one.critique)] for one in found] == EXPECTED["annotations"][name]
    write_annotations(home / "again.jsonl", found)
    assert (home / "again.jsonl").read_bytes() == (home / name).read_bytes()


def test_an_exported_data_set_is_read_as_it_was(home: Path) -> None:
    assert main(["export", "annotations.jsonl", "--out", "again", "--name", "me/old"]) == 0
    cards = (Path(name, "README.md").read_text("utf-8") for name in ("again", "dataset"))
    settings, before = (card.split("# old")[0] for card in cards)  # what the hub reads; the prose was reworded
    assert settings == before
    assert main(["import", "table", "dataset/data/train.parquet", "--out", "imported.jsonl", "--skip-bad"]) == 0
    assert records(home / "imported.jsonl") == EXPECTED["imported"]


@pytest.mark.parametrize(
    ("source", "name", "status"),
    [("annotations.jsonl", "annotations", 3), ("run/rollouts/00000.jsonl", "rollouts", 0)],
    ids=["annotations", "rollouts"],
)
def test_critiques_become_the_rewards_that_they_became(home: Path, source: str, name: str, status: int) -> None:
    assert main(["align", source, "--tokenizer", "policy", "--out", "again"]) == status
    for file in ("report.json", "tables.txt"):
        assert (home / "again" / file).read_bytes() == (home / "aligned" / name / file).read_bytes(), file
    assert records(home / "again" / "rewards.jsonl") == records(home / "aligned" / name / "rewards.jsonl")


def test_a_critic_that_remembers_is_not_asked_again(home: Path) -> None:
    again: list[list[str]] = []

    def asking(examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        again.extend([example.prompt_text, response] for example, response in zip(examples, responses, strict=True))
        return [Critique("", status="timed_out")] * len(responses)

    expected = EXPECTED["remembered"]
    critic = CachedCritic(asking, home / "cached_answers.jsonl")
    assert [plain(one) for one in critic(*examples_of(expected["known"]))] == [one[2] for one in expected["known"]]
    assert again == []
    critic(*examples_of(expected["asked_again"]))
    assert again == expected["asked_again"], "who did not answer in time is asked again"


# Answers of servers.


@pytest.mark.parametrize("name", EXPECTED["variants"])
def test_responses_that_were_annotated_are_not_asked_about_again(
    home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = home / "annotate" / name
    before = {file: records(out / f"{file}.jsonl") for file in ("annotations", "failures")}
    overrides = [f"annotate.out=annotate/{name}", *EXPECTED["variants"][name]]
    options = [part for override in overrides for part in ("--set", override)]
    assert main(["annotate", "annotate.toml", *options]) == EXPECTED["statuses"][name]
    assert "requests 0, of which 0 repeated" in " ".join(capsys.readouterr().out.split())
    assert {file: records(out / f"{file}.jsonl") for file in before} == before


def test_pairs_that_were_judged_are_not_judged_again(home: Path) -> None:
    before = json.loads((home / "win_rate" / "win_rate.json").read_bytes())
    verdicts = (home / "win_rate" / "verdicts.jsonl").read_bytes()
    options = ["--what", "responses", "--recipe", "annotate.toml", "--out", "win_rate"]
    assert main(["win-rate", "win_rate/first.jsonl", "win_rate/second.jsonl", *options]) == 0
    found = json.loads((home / "win_rate" / "win_rate.json").read_bytes())
    assert {key: found[key] for key in before} == {**before, "requests": 0, "answers_from_before": before["requests"]}
    assert (home / "win_rate" / "verdicts.jsonl").read_bytes() == verdicts


def test_critics_on_servers_find_the_answers_that_were_paid_for(home: Path) -> None:
    expected = EXPECTED["server"]
    about = examples_of(expected["asked"])
    settings: dict[str, Any] = {"base_url": NO_SERVER, "api_key_env": "", "max_tokens": 200, "retries": 0}
    writer = ServerRewardModel("reward-model-1", store="server.sqlite", **settings)
    chat = ServerRewardModel("reward-model-1", store="server.sqlite", prompt_format="chat", words=False, **settings)
    assert [plain(one) for one in [*writer(*about), *chat(*about)]] == expected["written"]
    settings |= {"template": "qa", "temperature": 0.25, "reask": 1}
    critic = LLMCritic("judge-2", store="server.sqlite", **settings)
    assert [plain(one) for one in critic(*about)] == expected["said"]


def test_a_question_has_the_hash_that_it_had_and_its_answer_is_found(home: Path) -> None:
    with Store(home / "server.sqlite") as store:
        for one in EXPECTED["questions"]:
            messages = one["messages"] if isinstance(one["messages"], str) else tuple(one["messages"])
            question = Request(one["model"], messages, one["parameters"], one["sample"])
            assert question.key == one["key"]
            answer = store.get(question)
            assert answer is not None
            assert [answer.text, answer.finish, answer.prompt_tokens, answer.completion_tokens] == one["answer"]


# Evaluations.


def measured(path: Path) -> dict[str, Any]:
    """Return what evaluation.json of version 0.1 had, too: without the F1 of marking everything."""
    found = json.loads(path.read_bytes())
    found["metrics"] = {name: one for name, one in found["metrics"].items() if not name.startswith("f1_everything/")}
    found["counts"].pop("units", None)
    return found


def assert_evaluated_as_before(directory: str, options: Sequence[str]) -> None:
    before = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    expected = measured(Path(directory, "evaluation.json"))
    assert main(["evaluate-reward", "learned.jsonl", *options, "--out", directory, "--draws", "50"]) == 0
    assert_alike(measured(Path(directory, "evaluation.json")), expected)
    for name in ("answers.jsonl", "critic.json", "predictions.jsonl"):
        assert Path(directory, name).read_bytes() == before[name], name
    tables = Path(directory, "tables.txt").read_text("utf-8")  # one of them has a new column
    assert set(before["tables.txt"].decode().split()) <= set(tables.split())


def test_a_critic_that_was_evaluated_is_not_asked_again(home: Path) -> None:
    assert_evaluated_as_before("evaluation", ["--critic", "old_judges:annotator"])
    assert asked() == []


def test_a_reward_model_that_was_evaluated_is_known_again(home: Path) -> None:
    for path in (home / "reward_models").rglob("*"):
        os.utime(path, (0, 0))  # by its files' names, sizes and times
    options = ["--model", "reward_models/generative", "--limit", "12"]
    assert_evaluated_as_before("evaluation_model", options)


def test_predictions_of_an_evaluation_can_be_evaluated(home: Path) -> None:
    options = ["--predictions", "evaluation/predictions.jsonl", "--tokenizer", "words", "--draws", "50"]
    assert main(["evaluate-reward", "learned.jsonl", *options, "--out", "again"]) == 0
    assert (home / "again" / "predictions.jsonl").read_bytes() == (home / "evaluation/predictions.jsonl").read_bytes()
    found, before = (measured(home / name / "evaluation.json") for name in ("again", "evaluation"))
    assert_alike(found["metrics"], before["metrics"])


def test_sheets_that_people_filled_are_counted_as_they_were(home: Path) -> None:
    assert main(["study", "import", "study/ann.csv", "study/ben.csv", "--out", "again.json"]) == 0
    assert_alike(json.loads(Path("again.json").read_bytes()), json.loads(Path("study/agreement.json").read_bytes()))
    assert main(["study", "export", "evaluation/predictions.jsonl", "--items", "5", "--out", "again"]) == 0
    assert Path("again/study.json").read_bytes() == Path("study/study.json").read_bytes()


def test_a_quickstart_that_was_finished_comes_to_the_same_results(home: Path) -> None:
    before = json.loads((home / "quickstart" / "results.json").read_bytes())
    (home / "quickstart" / "results.json").unlink()
    assert main(["quickstart", "--out", "quickstart", "--methods", "scalar_ppo", *EXPECTED["quickstart"]]) == 0
    assert json.loads((home / "quickstart" / "results.json").read_bytes()) == before
    assert list(home.rglob("*.log")) == [], "nothing was left to do"
    found = read_annotations(home / "quickstart" / "summarization" / "seed-0" / "annotations.jsonl")
    assert [[one.prompt, one.response, plain(one.critique)] for one in found] == EXPECTED["annotations"]["quickstart"]
