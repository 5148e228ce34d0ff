"""The whole method in two minutes: the three phases, two methods, what they write, and which way the numbers go."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from text2grad.cli import quickstart
from text2grad.cli.__main__ import main, parser
from text2grad.cli.quickstart import LABELS
from text2grad.config import Recipe, load_recipe
from text2grad.errors import TrainingError
from text2grad.feedback.records import read_annotations
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.runs.comparison import in_words, quickstart_tables
from text2grad.runs.pipeline import Pipeline
from text2grad.runs.reports.plots import mean_curve
from text2grad.runs.reports.terminal import print_tables
from text2grad.tasks import ready_lesson
from text2grad.tasks.registry import procedural_task
from text2grad.types import Conversation

TINY = [
    "sft.steps=40",
    "quickstart.after_reward_model=20",
    "reward_model.steps=40",
    "quickstart.responses=400",
    "run.steps=4",
    "rollout.batch_size=16",
    "refresh.steps=[2]",
    "refresh.train_steps=5",
    "data.eval_examples=16",
    "data.eval_every=2",
]
"""The commands and files of the quickstart; nothing is learned."""

pytestmark = pytest.mark.timeout(900)  # the fixture trains three models and two policies


def quickstart_in(directory: Path, settings: list[str]) -> int:
    overrides = [part for setting in settings for part in ("--set", setting)]
    return main(["quickstart", "--out", str(directory), *overrides])


def result_in(directory: Path) -> dict[str, Any]:
    results = json.loads((directory / "summarization" / "results.json").read_bytes())
    assert list(results) == ["tasks"]
    return results["tasks"]["summarization"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("quickstart")
    assert quickstart_in(directory, TINY) == 0
    return directory


@pytest.fixture(scope="module")
def result(out: Path) -> dict[str, Any]:
    return result_in(out)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_policy_learns_and_the_reward_model_writes_what_can_be_read(tmp_path: Path) -> None:
    assert quickstart_in(tmp_path, []) == 0
    result = result_in(tmp_path)
    methods = result["methods"]
    assert list(methods) == ["sft", "text2grad", "scalar_ppo"]
    assert methods["text2grad"]["final"][0] >= 0.95
    assert methods["text2grad"]["final"][0] > methods["scalar_ppo"]["final"][0] > methods["sft"]["final"][0]
    (quality,) = result["reward_model"]
    assert quality["failure_rate"] <= 0.02
    assert min(quality["f1/positive"], quality["f1/negative"]) > 0.8


def test_results_hold_one_value_and_one_curve_for_each_seed(result: dict[str, Any]) -> None:
    assert result["metric"] == "fact_f1"
    assert result["seeds"] == [0]
    for method in ("text2grad", "scalar_ppo"):
        (curve,) = result["methods"][method]["curve"]
        assert [step for step, _ in curve] == [0, 2, 4]
        assert result["methods"][method]["final"] == [curve[-1][1]]
    assert result["methods"]["text2grad"]["curve"][0][0] == result["methods"]["scalar_ppo"]["curve"][0][0]
    (seconds,) = result["seconds"]
    assert {"sft", "annotations", "reward_model", "start", "text2grad", "scalar_ppo"} <= set(seconds)


def test_the_models_and_annotations_are_ordinary_files(out: Path) -> None:
    seed = out / "summarization" / "seed-0"
    annotations = read_annotations(seed / "annotations.jsonl")
    assert len(annotations) == 400
    assert not any(one.critique.failed for one in annotations)
    reward_model = GenerativeRewardModel.load(seed / "reward_model")
    assert reward_model.format.max_new_tokens == 200
    example = procedural_task("summarization", "held_out").examples(1)[0]
    (critique,) = reward_model([example], [" " + str(example.reference)])
    assert critique.status == "ok"
    said = json.dumps('The surname is Diaz: "Kaya" is wrong. The verb is sold: "sold" is right.')[1:-1]
    shared = ["The surname is", " Diaz", ': \\"', "Kaya", '\\" is wrong.']
    shared += [" The verb is", " sold", ': \\"', "sold", '\\" is right.']
    assert reward_model.tokenizer.convert_ids_to_tokens(reward_model.tokenizer(said).input_ids) == shared


def test_the_report_and_the_curves_are_written(out: Path) -> None:
    page = (out / "summarization" / "report.html").read_text("utf-8")
    assert "fine-tuned on noisy demonstrations" in page
    assert "data:image/png;base64," in page
    assert "All policies start from the reward model&#x27;s weights, fine-tuned on demonstrations once more." in page
    assert (out / "summarization" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_finished_is_not_made_again(out: Path, result: dict[str, Any], capsys: Any) -> None:
    weights = out / "summarization" / "seed-0" / "reward_model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert quickstart_in(out, TINY) == 0
    assert weights.stat().st_mtime_ns == before
    assert result_in(out) == result
    assert "Text2Grad" in capsys.readouterr().out


def test_one_can_talk_to_the_model(out: Path, capsys: Any) -> None:
    assert main(["generate", str(out / "summarization" / "seed-0" / "text2grad"), "--examples", "2"]) == 0
    assert capsys.readouterr().out.count("TL;DR:") == 2


def test_each_seed_has_its_models_and_its_policies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []

    @contextmanager
    def beside(command: Sequence[str], log: Path) -> Iterator[None]:
        made.append(log.name)
        assert f"run.out='{log.with_suffix('')}'" in command
        assert "reward.placement=last_token" in command
        yield

    monkeypatch.setattr(Pipeline, "run", lambda pipeline, _: made.append(f"models of {pipeline.recipe.run.seed}"))
    monkeypatch.setattr("text2grad.runs.run_recipe", lambda recipe, *, resume: made.append(Path(recipe.run.out).name))
    monkeypatch.setattr(quickstart, "beside", beside)
    monkeypatch.setattr(quickstart, "write_page", lambda *_: None)
    monkeypatch.setattr(quickstart, "report", lambda *_: None)
    (finished := tmp_path / "summarization" / "seed-1" / "scalar_ppo").mkdir(parents=True)
    (finished / "results.json").write_text("{}")
    assert main(["quickstart", "--seeds", "2", "--out", str(tmp_path)]) == 0
    assert made == ["models of 0", "scalar_ppo.log", "text2grad", "models of 1", "text2grad"]


def test_a_process_that_fails_is_told_with_its_log_and_ends_with_its_quickstart(tmp_path: Path) -> None:
    log = tmp_path / "scalar_ppo.log"
    missing = tmp_path / "none.toml"
    message = r"scalar_ppo stopped with exit code 2; its output is in .*scalar_ppo\.log"
    with pytest.raises(TrainingError, match=message), quickstart.beside(["train", str(missing)], log):
        pass
    assert "none.toml" in log.read_text()
    with (
        pytest.raises(KeyboardInterrupt),
        quickstart.beside(["serve", "summarization", "--listen", "127.0.0.1:0"], log),
    ):
        raise KeyboardInterrupt  # the test would wait for ever if the process went on


def test_models_of_other_settings_are_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(Pipeline, "run", lambda *_: None)
    monkeypatch.setattr(quickstart, "train", lambda *_: None)
    monkeypatch.setattr(quickstart, "report", lambda *_: None)
    asked = ["quickstart", "--out", str(tmp_path / "q"), "--set", "sft.steps=20"]
    assert main(asked) == 0
    assert main(asked) == 0
    assert main([*asked, "--set", "run.steps=7"]) == 0  # each method's run compares it
    assert main([*asked[:-1], "sft.steps=30"]) == 2
    assert "holds models that were made by other settings: sft.steps: 20 → 30" in capsys.readouterr().err
    assert main([*asked, "--set", "rollout.rows_at_once=7"]) == 0  # memory only


def test_no_seed_is_refused() -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["quickstart", "--seeds", "0"])


def test_the_printed_tables_fit_a_terminal_of_80_columns() -> None:
    methods = {name: {"final": [0.5] * 3, "curve": [[]] * 3, "kl_per_token": [0.1] * 3} for name in ("sft", *LABELS)}
    quality = [{f"{share}/{label}": 0.5 for share in ("precision", "recall") for label in ("positive", "negative")}] * 3
    result = {"metric": "fact_f1", "seeds": [0, 1, 2], "methods": methods}
    result |= {"reward_model": quality, "reward_model_at_end": quality}
    console = Console(width=80, record=True, file=StringIO())
    print_tables(console, quickstart_tables("summarization", result, LABELS))
    lines = console.export_text().splitlines()
    for method in LABELS.values():
        assert any(method in line and line.rstrip().endswith("0.100") for line in lines), method
    assert sum("0.50 / 0.50   0.50 / 0.50" in line for line in lines) == 6


RESULT = {
    "metric": "fact_f1",
    "seeds": [0, 1],
    "methods": {
        "sft": {"final": [0.5, 0.7], "curve": [[], []], "kl_per_token": [0.0, 0.0]},
        "text2grad": {
            "final": [0.8, 1.0],
            "curve": [[[0, 0.5], [10, 0.75], [20, 0.8]], [[0, 0.7], [10, 0.85], [20, 1.0]]],
            "kl_per_token": [0.1, 0.3],
        },
        "scalar_ppo": {
            "final": [0.7, 0.8],
            "curve": [[[0, 0.5], [10, 0.6], [20, 0.7]], [[0, 0.7], [10, 0.8], [20, 0.8]]],
            "kl_per_token": [0.2, 0.2],
        },
    },
    "reward_model": [
        {"precision/positive": 0.5, "precision/negative": 0.9, "recall/negative": 0.75, "gap": 0.5},
        {"precision/negative": 0.8, "recall/negative": 0.65, "gap": 1.0},
    ],
    "reward_model_at_end": [{"recall/negative": 0.5, "failure_rate": 0.125}, {"gap": 1.0}],
}


def test_the_words_of_the_report_are_made_from_the_numbers() -> None:
    text = in_words("summarization", RESULT)
    # means: sft 0.6, ours 0.9, scalar 0.75
    assert "reaches a fact f1 of 0.60" in text
    assert "Training on these critiques raised the policy's fact f1: it is now 0.90." in text
    assert "With the same spans, summed into one number, it reached 0.75. All policies start" in text
    worse = {**RESULT, "methods": {**RESULT["methods"], "sft": {**RESULT["methods"]["sft"], "final": [0.9, 1.0]}}}  # type: ignore[dict-item]
    assert "did not raise the policy's fact f1: it is now 0.90." in in_words("summarization", worse)
    assert "reaches a pass@1 of 0.60" in in_words("code", {**RESULT, "metric": "pass_at_1"})


def test_tables_have_a_row_for_each_method_and_each_seed() -> None:
    _, columns, rows = quickstart_tables("summarization", RESULT, LABELS)[0]
    assert columns == ["method", "mean", "seeds", "KL/token"]
    assert rows[1] == ["Text2Grad", "0.900", "0.800 1.000", "0.200"]
    assert [row[0] for row in rows] == ["fine-tuned", "Text2Grad", "same spans, summed"]
    _, columns, rows = quickstart_tables("summarization", RESULT, LABELS)[1]
    assert columns == ["seed", "answers", "positive", "negative", "unreadable", "unmatched", "gap"]
    assert rows == [
        ["0", "first", "0.50 / –", "0.90 / 0.75", "–", "–", "0.50"],
        ["0", "last", "– / –", "– / 0.50", "0.12", "–", "–"],
        ["1", "first", "– / –", "0.80 / 0.65", "–", "–", "1.00"],
        ["1", "last", "– / –", "– / –", "–", "–", "1.00"],
    ]
    assert mean_curve(RESULT["methods"]["scalar_ppo"]["curve"]) == [(0, 0.6), (10, 0.7), (20, 0.75)]  # type: ignore[index]


def test_a_lesson_gets_the_model_its_directory_and_a_ready_lesson_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = []

    def give_lesson(recipe: Recipe, lesson: Any) -> dict[str, Any]:
        given.append((recipe.model.path, recipe.run.out, recipe.optim.lr, lesson))
        return {"mode": "both", "marked": 3, "kl_per_token_unmarked": None, "kl_per_token": 0.0123}

    monkeypatch.setattr("text2grad.runs.give_lesson", give_lesson, raising=False)
    marks = tmp_path / "mine.jsonl"
    marks.write_text("")
    asked = ["quickstart", "--model", "some/model", "--out", str(tmp_path / "q"), "--set", "optim.lr=1e-3"]
    assert main(asked) == 0
    assert main([*asked, "--lesson", "folder"]) == 0
    assert main([*asked, "--lesson", str(marks)]) == 0
    last = tmp_path / "q" / "begin" / "run" / "checkpoints" / "step-000030"
    (last / "policy").mkdir(parents=True)
    (last / "state.json").touch()
    (tmp_path / "q" / "begin" / "run" / "run.json").write_text('{"recipe": {}}')
    assert main([*asked, "--model", str(tmp_path / "q" / "begin" / "run")]) == 0
    assert given.pop()[0] == str(last / "policy"), "what the run of an earlier lesson taught"
    assert given == [
        ("some/model", str(tmp_path / "q" / name), 1e-3, lesson)
        for name, lesson in (("begin", ready_lesson("begin")), ("folder", ready_lesson("folder")), ("mine", marks))
    ]
    shown = capsys.readouterr().out
    assert "kl_per_token" in shown
    assert str(tmp_path / "q" / "mine" / "report.html") in shown


@pytest.mark.parametrize("option", ["--lesson=begin", "--weigh=begin=0.5"])
def test_a_lesson_without_a_model_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", *option.split("=", 1)]) == 2
    assert f"{option.partition('=')[0]} is about a pretrained model: name it" in capsys.readouterr().err


def test_lessons_are_weighed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weigh = lambda path, weights, out: Path(out, f"{path} {weights}")  # noqa: E731
    monkeypatch.setattr("text2grad.runs.weigh", weigh, raising=False)
    asked = ["quickstart", "--model", "some/model", "--out", str(tmp_path / "q")]
    assert main([*asked, "--weigh", "begin=0.5", "--weigh", "folder=0"]) == 0
    assert "some/model {'begin': 0.5, 'folder': 0.0}" in "".join(capsys.readouterr().out.splitlines())
    for wrong in ("begin", "begin=", "begin=half"):
        assert main([*asked, "--weigh", wrong]) == 2
        assert "LESSON=W" in capsys.readouterr().err
    assert main([*asked, "--weigh", "begin=0.5", "--lesson", "folder"]) == 2
    assert "--weigh writes lessons anew, and --lesson gives one" in capsys.readouterr().err


# Tools


@pytest.fixture(scope="module")
def tools_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quickstart with tools in this process: nothing is learned."""
    out, short = tmp_path_factory.mktemp("tools"), ["sft.steps=2", "sft.batch_size=4", "quickstart.examples=16"]
    short += ["run.steps=2", "rollout.batch_size=8", "data.eval_examples=6", "data.eval_every=0"]
    short += ["optim.value_warmup_steps=0"]

    @contextmanager
    def here(command: Sequence[str], log: Path) -> Iterator[None]:
        yield
        assert main(command[command.index("train") :]) == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickstart, "beside", here)
        patch.setattr(quickstart, "PROCESSES", 1)
        sets = [part for setting in short for part in ("--set", setting)]
        assert main(["quickstart", "--task", "tools", "--out", str(out), *sets]) == 0
    return out


def test_a_quickstart_with_tools_trains_three_policies_on_the_words_of_the_program(tools_out: Path) -> None:
    place = tools_out / "tools" / "seed-0"
    names = {"sft", "start", "text2grad", "scalar_ppo", "process_lines", "phases.json", "recipe.json"}
    assert {path.name for path in place.iterdir()} == names
    assert (place / "start" / "model.safetensors").read_bytes() == (place / "sft" / "model.safetensors").read_bytes()
    placements = {}
    for method in ("text2grad", "scalar_ppo", "process_lines"):
        settings = json.loads((place / method / "run.json").read_bytes())["recipe"]
        placements[method] = settings["reward"]["placement"]
        record = json.loads((place / method / "rollouts" / "00000.jsonl").read_text().splitlines()[0])
        assert "In turn 1 the step " in record["critique"]["feedback"]
        assert [turn["role"] for turn in record["turns"]][:2] == ["user", "assistant"]
    assert placements == {"text2grad": "spans", "scalar_ppo": "last_token", "process_lines": "lines"}


def test_the_table_of_tools_has_the_calls_and_the_start_is_the_first_evaluation(tools_out: Path) -> None:
    result = json.loads((tools_out / "tools" / "results.json").read_bytes())["tasks"]["tools"]
    first = tools_out / "tools" / "seed-0" / "text2grad" / "evaluations" / "000000.json"
    metrics = json.loads(first.read_bytes())["metrics"]
    assert result["methods"]["sft"]["final"] == [metrics["success_rate"]]
    assert result["methods"]["sft"]["calls_per_question"] == [metrics["calls_per_question"]]
    assert result["methods"]["sft"]["kl_per_token"] == [0.0] < result["methods"]["text2grad"]["kl_per_token"]
    [table] = quickstart_tables("tools", result, quickstart.METHODS["tools"])  # no table of a reward model
    assert table.columns == ["method", "value", "calls", "KL/token"]
    assert [row[0] for row in table.rows] == ["fine-tuned", "Text2Grad", "same spans, summed", "one number per turn"]
    words = in_words("tools", result)
    assert "A program critic judges its turns in words and quotes. Training on these critiques " in words
    assert "reward model" not in words
    assert "In turn 1 the step " in (tools_out / "tools" / "report.html").read_text("utf-8")


def test_demonstrations_with_calls_are_few_conversations_in_the_chat_template(tmp_path: Path) -> None:
    few = ["sft.steps=4", "sft.batch_size=4", "quickstart.examples=5"]
    pipelines = [Pipeline(load_recipe(quickstart.recipe_path(t), few), tmp_path) for t in ("tools", "summarization")]
    tools, summaries = pipelines
    assert [each.training(each.recipe.sft).prompt_format for each in pipelines] == ["chat", "plain"]
    assert [len(each._demonstrations()[1]) for each in pipelines] == [5, 4 * 4]
    assert all(answer.startswith(" ") for answer in summaries._demonstrations()[1])
    assert all(isinstance(answer, Conversation) for answer in tools._demonstrations()[1])
