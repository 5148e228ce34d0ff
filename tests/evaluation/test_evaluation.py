"""Models × suites: forms of prompts, kept scores, suites that read the model, names."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from reading_suite import ReadingSuite
from text2grad.costs import read_cost
from text2grad.errors import ConfigError
from text2grad.evaluation.answering import Sampling
from text2grad.evaluation.evaluation import EvaluationSettings, evaluate_models
from text2grad.evaluation.registry import make_suites
from text2grad.evaluation.subjects import Subject, _short, read_subjects
from text2grad.evaluation.suite import AnsweredSuite, SuiteOptions
from text2grad.evaluation.suites import code
from text2grad.evaluation.suites.code import CodeSuite
from text2grad.runs.reports.policy_evaluation import policy_page, print_evaluation

RECORD = {
    "task_id": "HumanEval/x",
    "prompt": "def one():\n",
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


@pytest.fixture
def suite(tmp_path: Path) -> CodeSuite:
    (tmp_path / "data.jsonl").write_text(json.dumps(RECORD) + "\n", "utf-8")
    [found] = make_suites([f"humaneval={tmp_path / 'data.jsonl'}"], SuiteOptions(accept_weaker=True))
    assert isinstance(found, CodeSuite)
    return found


def test_a_chat_model_replies_and_a_base_model_continues(
    suite: CodeSuite, policy: Path, chat: Path, tmp_path: Path
) -> None:
    subjects = [
        *read_subjects([f"base={policy}", f"chat={chat}"]),
        *read_subjects([f"plain={chat}"], prompt_format="plain"),
    ]
    settings = EvaluationSettings(tmp_path / "out", Sampling(max_new_tokens=4))
    [result] = evaluate_models(subjects, [suite], settings).results
    continues = {name: [one.continues for one in answers] for name, answers in result.answers.items()}
    assert continues == {"base": [True], "chat": [False], "plain": [True]}
    assert result.answers["base"][0].text == result.answers["plain"][0].text  # the same weights, the same prompt
    assert result.answers["chat"][0].text != result.answers["plain"][0].text
    assert result.figures["chat"]["pass@1"].value == 0.0


def test_scores_are_kept_until_answers_or_limits_change(
    suite: CodeSuite, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, used = [], []
    own = CodeSuite._run
    monkeypatch.setattr(CodeSuite, "_run", lambda self, jobs: scored.append(len(jobs)) or own(self, jobs))

    def evaluate(options: SuiteOptions, tokens: int = 4, *, force: bool = False) -> None:
        [again] = make_suites([f"humaneval={tmp_path / 'data.jsonl'}"], options)
        settings = EvaluationSettings(tmp_path / "out", Sampling(max_new_tokens=tokens), force=force)
        [result] = evaluate_models(read_subjects([f"m={policy}"]), [again], settings).results
        used.append(sum(sum(one.tokens) for one in result.answers["m"]))

    usual = SuiteOptions(accept_weaker=True)
    evaluate(usual)
    evaluate(usual)
    assert scored == [1]
    monkeypatch.setattr(code, "TIMEOUT_S", 1.5)
    evaluate(usual)
    assert scored == [1, 1]
    with pytest.raises(ConfigError, match=r'"max_new_tokens": 4.*"max_new_tokens": 5'):
        evaluate(usual, tokens=5)
    evaluate(usual, tokens=5, force=True)
    assert scored == [1, 1, 1]
    cost = read_cost(tmp_path / "out")
    assert cost is not None
    assert used[0] > 0
    assert (cost.generated_tokens, cost.runs) == (used[0] + used[-1], 5)  # two evaluations sampled, of five


def test_another_dtype_gives_other_answers_and_other_scores(suite: CodeSuite, policy: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("Once upon a time.\n\nA dog ran home, and slept.\n", "utf-8")

    def evaluate(out: str, dtype: str, *, force: bool = False) -> float:
        suites = [ReadingSuite(SuiteOptions(data=str(tmp_path / "book.txt"))), suite]
        settings = EvaluationSettings(tmp_path / out, Sampling(max_new_tokens=4), force=force)
        found = evaluate_models(read_subjects([f"m={policy}"], dtype=dtype), suites, settings)
        assert json.loads((tmp_path / out / "evaluation.json").read_bytes())["models"]["m"]["dtype"] == dtype
        return found.results[0].figures["m"]["perplexity"].value

    saved = evaluate("out", "auto")
    for kept in ("answers/humaneval.m.json", "scores/reading.m.json"):  # as they were before dtype was named there
        subject = json.loads((tmp_path / "out" / kept).read_bytes())["subject"]
        assert sorted(subject) == ["eos_ids", "model", "prompt_format"]
    with pytest.raises(
        ConfigError, match=r'answers of another model.*, now .*"dtype": "bfloat16"\}\}\. Choose another --out'
    ):
        evaluate("out", "bfloat16")
    rounded = evaluate("out", "bfloat16", force=True)
    assert rounded == evaluate("alone", "bfloat16") != saved
    assert evaluate("out", "auto", force=True) == saved


def test_names_of_models() -> None:
    assert _short("runs/mine/checkpoints/step-000010/policy") == "mine"
    assert _short("HuggingFaceTB/SmolLM2-135M-Instruct") == "SmolLM2-135M-Instruct"
    [one, two] = read_subjects(
        ["a=http://h:1/v1", "http://h:2/v1"], model_names=["org/big", "a=small"], prompt_format="chat"
    )
    assert one == Subject("a", "http://h:1/v1", "small", "chat")
    assert two == Subject("big", "http://h:2/v1", "org/big", "chat")
    with pytest.raises(ConfigError, match=r"^--model-name y: say which is whose by --model-name NAME=MODEL, once for"):
        read_subjects(["http://h/v1"], model_names=["x", "y"])
    with pytest.raises(ConfigError, match=r"^--model-name b: no server among the models has this name$"):
        read_subjects(["a=http://h/v1"], model_names=["x", "b=y"])
    with pytest.raises(ConfigError, match=r"^a model is an empty text"):
        read_subjects([""])


def test_texts_in_scores_do_not_count(suite: CodeSuite) -> None:
    counts = AnsweredSuite.counts(suite, [{"passed": True, "why": "x"}, {"passed": False}])
    assert counts == {"passed": 1.0, "answers": 2.0}


def test_answers_that_were_cut_or_had_no_room_are_told(policy: Path, tmp_path: Path) -> None:
    rows = [{"prompt": "short", "reference": "x"}, {"prompt": "long " * 600, "reference": "x"}]
    (tmp_path / "posts.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    suites = make_suites([f"summarization={tmp_path / 'posts.jsonl'}"], SuiteOptions())
    sampling = Sampling(max_new_tokens=2, too_long="empty")
    found = evaluate_models(read_subjects([f"m={policy}"]), suites, EvaluationSettings(tmp_path / "out", sampling))
    endings = found.results[0].endings("m")
    assert endings["too_long"] == 1
    assert sum(endings.values()) == 2
    assert found.as_json()["suites"]["summarization"]["endings"] == {"m": endings}
    console = Console(record=True, width=140, file=StringIO())
    print_evaluation(console, found)
    told = console.export_text()
    assert "answers without an end of their own" in told
    assert "empty: the prompt leaves no room" in told
    assert "1 of 2" in told
    assert "answers without an end of their own" in policy_page(found)
