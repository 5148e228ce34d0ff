"""AlpacaEval 2 and MT-Bench against a judge with known answers; the formulas against the public tool's own figures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fault_server import LOGPROBS, SECRET, Running, running
from judged_chats import CHATML, alpaca
from places import DATA, SHARED
from text2grad.cli.__main__ import main
from text2grad.config.server import Endpoint
from text2grad.critics.servers import fill
from text2grad.critics.servers.store import Answer as Said
from text2grad.errors import ConfigError, DataError, RequestError
from text2grad.evaluation.intervals import estimate
from text2grad.evaluation.suite import Answer, Question, SuiteOptions
from text2grad.evaluation.suites.alpaca_eval import AlpacaEvalSuite, messages_of, read_preference
from text2grad.evaluation.suites.length_control import length_controlled, read_gamed
from text2grad.evaluation.suites.mt_bench import MTBenchSuite, read_rating, reference_turns

MT_BENCH = SHARED / "data" / "mt_bench"
has_mt_bench = pytest.mark.skipif(not MT_BENCH.exists(), reason=f"no data in {MT_BENCH}")
pytestmark = pytest.mark.usefixtures("short_waits")
THREE_OF_FOUR = 0.75
"""Share of the better output by `LOGPROBS`: 1 / (1 + 1/3)."""


def judge_at(server: Running, **settings: Any) -> Endpoint:
    return Endpoint(model="judge", base_url=server.url, api_key_env="SOME_KEY", **settings)


def answers_to(questions: Sequence[Question], texts: Sequence[Sequence[str]]) -> list[Answer]:
    return [
        Answer(one, 0, tuple(said), (1,) * len(said), ("stop",) * len(said))
        for one, said in zip(questions, texts, strict=True)
    ]


# MT-Bench.


@has_mt_bench
def test_both_turns_are_rated_with_references_where_the_benchmark_has_them(server: Running, tmp_path: Path) -> None:
    suite = MTBenchSuite(SuiteOptions(data=str(MT_BENCH), judge=judge_at(server)))
    assert len(suite.questions) == 80
    assert {one.turns for one in suite.questions} == {2}
    assert [one.temperature for one in suite.questions if one.data["category"] == "writing"] == [0.7] * 10
    chosen = [next(q for q in suite.questions if q.data["category"] == c) for c in ("writing", "math", "coding")]
    suite.questions = chosen
    told = answers_to(chosen, [("RATE 9", "RATE 7.5"), ("RATE 4", "nothing"), ("RATE none", "RATE 2")])
    before = server.requests()
    scores = suite.score(told, tmp_path)
    assert server.requests() - before == 6
    assert scores[0]["rating"] == 9 + 7.5
    assert (scores[1]["rating/math"], scores[1]["rated/2"]) == (4 + 5, 1.0)
    assert (scores[2]["rating"], scores[2]["rated"], scores[2]["unrated"]) == (2.0, 1.0, 1.0)
    counts = [suite.counts([found]) for found in scores]
    figures = estimate(counts, {name: one.statistic for name, one in suite.measures.items()})
    # (9 + 7.5 + 4 + 5 + 2) / 5 rated turns, 1 of 6 unrated
    assert figures["score"].value == pytest.approx(5.5)
    assert figures["turn_1"].value == pytest.approx(6.5)
    assert figures["unrated"].value == pytest.approx(1 / 6)
    assert (figures["writing"].value, figures["coding"].value) == (8.25, 2.0)
    math = suite._prompt(told[1], 1)
    assert "<|The Start of Reference Answer|>" in math[1]["content"]  # type: ignore[index]
    assert chosen[1].data["references"][1] in math[1]["content"]  # type: ignore[index]
    assert "Reference" not in suite._prompt(told[0], 0)[1]["content"]  # type: ignore[index]

    assert suite.score(told, tmp_path) == scores
    assert server.requests() - before == 6


@pytest.mark.parametrize(
    ("text", "rating"),
    [
        ("Fine. Rating: [[8.5]]", 8.5),
        ("Rating: [7]", 7.0),
        ("8 of 10", None),
        ("<think>Perhaps [[5]]?</think>\n[[8]]", 8.0),
        ("Say [[1]], or [[2]].\n</think>\n\n[[8]]", 8.0),  # the template opened it
        ("<think>Perhaps [[5]]", None),  # cut
        ("<|channel|>analysis<|message|>[[5]]<|end|><|channel|>final<|message|>[[8]]", 8.0),
        ('[[8]]: it prints "</think>".', 8.0),
    ],
)
def test_drafts_in_the_reasoning_of_a_judge_are_no_ratings(text: str, rating: float | None) -> None:
    assert read_rating(Said(text, "stop")) == rating
    assert read_rating(Said(text, "refused")) is None


# AlpacaEval.


def test_preferences_are_shares_of_probability_in_both_orders(server: Running, tmp_path: Path) -> None:
    data = alpaca(tmp_path / "data", ["short", "a long baseline", "the same", "PLACE"])
    suite = AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge_at(server, temperature=0.0)))
    told = answers_to(suite.questions, [("a longer output",), ("brief",), ("the same",), ("other",)])
    before = server.requests()
    scores = suite.score(told, tmp_path)
    assert server.requests() - before == 6
    last = server.state()["last"]
    assert (last["max_tokens"], last["temperature"], last["top_logprobs"]) == (1, 1.0, 5)
    assert [message["role"] for message in last["messages"]] == ["system", "user"]
    assert [one["preference"] for one in scores] == pytest.approx([THREE_OF_FOUR, 1 - THREE_OF_FOUR, 0.5, 0.5])
    assert scores[3]["first place"] == pytest.approx(THREE_OF_FOUR)
    assert [one.get("unweighed", 0.0) for one in scores] == [0.0] * 4
    assert "length_controlled_win_rate" not in suite.measures


def test_a_server_without_log_probabilities_gives_verdicts(tmp_path: Path) -> None:
    data = alpaca(tmp_path / "data", ["short", "a long baseline"])
    with running("--no-schemas") as server:
        suite = AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge_at(server)))
        scores = suite.score(answers_to(suite.questions, [("a longer output",), ("brief",)]), tmp_path)
    assert [one["preference"] for one in scores] == [1.0, 0.0]
    assert [one["unweighed"] for one in scores] == [1.0, 1.0]  # the page shows that no preference was weighed


@pytest.mark.parametrize(
    ("text", "preference"),
    [
        (json.dumps({"text": "m", "logprobs": dict(zip("mMx", LOGPROBS, strict=True))}), THREE_OF_FOUR),
        (json.dumps({"text": "M", "logprobs": {"M": -0.1, "The": -3}}), 0.0),
        (json.dumps({"text": "The", "logprobs": {"The": -0.1}}), None),
        (" m.", 1.0),
        ("M", 0.0),
        ("model m", None),
        ("[1]", None),
    ],
)
def test_a_preference_is_read_from_log_probabilities_or_from_the_token(text: str, preference: float | None) -> None:
    assert read_preference(Said(text, "length")) == (None if preference is None else pytest.approx(preference))
    assert read_preference(Said(text, "refused")) is None


def test_texts_of_models_are_no_templates_and_no_roles() -> None:
    found = messages_of(CHATML, {"instruction": "{output_2}", "output_1": "<|im_end|>", "output_2": "x"}, "here")
    assert len(found) == 2
    assert '"""{output_2}"""' in found[1]["content"]  # type: ignore[index]
    with pytest.raises(DataError, match=r"here: the prompt has the unknown field \{other\}"):
        fill("{other}", {"one": ""}, "here")
    with pytest.raises(DataError, match="is not in ChatML"):
        messages_of("Which is better?", {}, "here")


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        ("<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n{output}", ["system", "user"]),
        ("<|im_start|>system \nJudge.<|im_end|>\n<|im_start|>user\n{output}<|im_end|>\n", ["system", "user"]),
        ("<|im_start|>tool\nJudge.<|im_end|>\n<|im_start|>user\n{output}<|im_end|>", None),
        ("{output}", None),
    ],
)
def test_every_message_of_a_judges_prompt_is_sent_or_the_prompt_is_refused(
    template: str, roles: list[str] | None
) -> None:
    if roles is None:
        with pytest.raises(DataError, match="the prompt is not in ChatML"):
            messages_of(template, {"output": "yes"}, "here")
        return
    messages = messages_of(template, {"output": "yes"}, "here")
    assert [message["role"] for message in messages] == roles
    assert messages[-1]["content"] == "yes"


@pytest.mark.parametrize("choices", [[], [{}], [{"turns": None}], ["turns"]])
def test_a_damaged_reference_answer_is_refused_with_its_place(choices: list[Any]) -> None:
    with pytest.raises(DataError, match=r'a.jsonl:3: "choices" needs a first entry with "turns"'):
        reference_turns("a.jsonl:3", choices)


def test_length_control_is_the_public_tools() -> None:
    """tests/data/length_control holds rows made here, and the figure of alpaca_eval 0.6.6 on them."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder = DATA / "length_control"
    expected = json.loads((folder / "expected.json").read_bytes())
    gamed = read_gamed(folder / "df_gamed.csv", len(expected["preferences"]))
    found = length_controlled(
        *(expected[name] for name in ("preferences", "baseline_lengths", "lengths")),
        list(range(len(expected["preferences"]))),
        gamed,
    )
    assert 100 * sum(found) / len(found) == pytest.approx(expected["length_controlled_winrate"], abs=1e-6)
    flipped = [None if one is None else 1 - one for one in expected["preferences"]]
    other = length_controlled(
        flipped, expected["baseline_lengths"], expected["lengths"], list(range(len(flipped))), gamed
    )
    assert sum(other) < sum(found)  # the fixture prefers the answers


def test_length_controlled_preferences_are_scores(server: Running, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    data = alpaca(tmp_path / "data", ["b" * (10 + 3 * n) for n in range(40)], gamed=True)
    suite = AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge_at(server)))
    assert next(iter(suite.measures)) == "length_controlled_win_rate"
    scores = suite.score(answers_to(suite.questions, [("a" * (70 - n),) for n in range(40)]), tmp_path)
    assert {0.0 < one["controlled"] < 1.0 for one in scores} == {True}


# What cannot be used.


def test_missing_files_judges_and_answers_are_named(
    server: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    judge = judge_at(server)
    cases: list[tuple[Any, SuiteOptions, str]] = [
        (MTBenchSuite, SuiteOptions(data="x"), "suite mt_bench needs a judge: give --judge FILE.toml"),
        (MTBenchSuite, SuiteOptions(judge=judge), "no data is given. Give the directory .*FastChat"),
        (MTBenchSuite, SuiteOptions(data=str(tmp_path), judge=judge), "has no question.jsonl or mt_bench_question"),
        (AlpacaEvalSuite, SuiteOptions(judge=judge), "no data is given. Give alpaca_eval_gpt4.*tatsu-lab"),
        (AlpacaEvalSuite, SuiteOptions(data=str(tmp_path), judge=judge), "has no alpaca_eval.json or"),
    ]
    for suite, options, message in cases:
        with pytest.raises((DataError, ConfigError), match=message):
            suite(options)
    data = alpaca(tmp_path / "data", ["x"])
    AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge))
    assert "the length-controlled win rate is left out" in caplog.text
    (data / "df_gamed.csv").write_text("a,b\n1,2\n")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    with pytest.raises(DataError, match=r"is not df_gamed.csv of tatsu-lab/alpaca_eval"):
        AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge))


def test_a_judgement_that_does_not_arrive_ends_the_suite_and_is_requested_again(
    server: Running, tmp_path: Path
) -> None:
    data = alpaca(tmp_path / "data", ["one", "[[500 500 ok]] two", "three"])
    suite = AlpacaEvalSuite(SuiteOptions(data=str(data), judge=judge_at(server)))
    told = answers_to(suite.questions, [(f"an answer to {tmp_path} {n}",) for n in range(3)])
    before = server.requests()
    with pytest.raises(
        RequestError, match=r"2 of 6 judgements of judge did not arrive.*requests the missing ones only"
    ):
        suite.score(told, tmp_path)
    assert server.requests() - before == 4 + 4
    assert suite.score(told, tmp_path)[1]["judged"] == 1.0
    assert server.requests() - before == 8 + 2


# The command.


def recipe(path: Path, server: Running, more: str = "") -> Path:
    file = path / "judge.toml"
    file.write_text(f'[annotate]\nmodel = "judge"\nbase_url = "{server.url}"\napi_key_env = "SOME_KEY"\n{more}')
    return file


@has_mt_bench
def test_the_command_rates_a_model_and_keeps_every_judgement(
    server: Running, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = recipe(tmp_path, server, "prices = [1000, 1000]\n")
    limits = ["--limit", "3", "--max-new-tokens", "4", "--set", "data.too_long=skip"]
    command = [
        "evaluate",
        "policy",
        f"tiny={policy}",
        "--suite",
        f"mt_bench={MT_BENCH}",
        "--judge",
        str(file),
    ]
    command += [*limits, "--out", str(tmp_path / "out")]
    before = server.requests()
    assert main([*command, "--set", "annotate.max_cost=0.01"]) == 2
    assert "above max_cost = $0.01; nothing was requested" in " ".join(capsys.readouterr().err.split())
    assert server.requests() == before
    assert main(command) == 0
    assert server.requests() - before == 6
    found = json.loads((tmp_path / "out" / "evaluation.json").read_bytes())["suites"]["mt_bench"]
    assert found["models"]["tiny"]["score"]["value"] == 5.0
    assert main(command) == 0
    assert server.requests() - before == 6
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
    assert json.loads((tmp_path / "out" / "costs.json").read_bytes())["phase"] == "evaluate"
    assert json.loads((tmp_path / "out" / "judgements" / "costs.json").read_bytes())["generated_tokens"] == 6 * 20
