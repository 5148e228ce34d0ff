"""Texts: agreement with rouge-score and sacrebleu called directly on real posts, perplexity with transformers' loss."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import corpus_bleu

from places import SHARED
from text2grad.errors import DataError, ModelError
from text2grad.evaluation.intervals import estimate
from text2grad.evaluation.registry import make_suites
from text2grad.evaluation.suite import Answer, Scores, SuiteOptions
from text2grad.evaluation.suites.text import SummarizationSuite
from text2grad.evaluation.words import load_scorer, text_nats, words_of

POSTS = SHARED / "data/slf5k_slice/posts_ideal.jsonl"


def figures(suite: SummarizationSuite, texts: list[str], tmp_path: Path) -> dict[str, float]:
    """Return the figures of one answer to each question."""
    answers = [Answer(q, 0, (t,), (1,), ("stop",)) for q, t in zip(suite.questions, texts, strict=True)]
    scores: list[Scores] = suite.score(answers, tmp_path)
    counts = [suite.counts([own]) for own in scores]
    statistics = {name: one.statistic for name, one in suite.measures.items()}
    return {name: one.value for name, one in estimate(counts, statistics, draws=20).items()}


def test_summaries_score_as_the_public_tools_say(tmp_path: Path) -> None:
    if not POSTS.exists():
        pytest.skip("needs ../shared/data, which is not part of the project")
    records = [json.loads(line) for line in POSTS.read_text("utf-8").splitlines()]
    ideal = [one["ideal_human_summary"] for one in records]
    texts = [" ".join(one["post"].split()[:40]) for one in records]  # the beginning of a post as its summary
    [suite] = make_suites([f"summarization={POSTS}"], SuiteOptions())
    assert isinstance(suite, SummarizationSuite)
    found = figures(suite, texts, tmp_path)
    assert found["bleu"] == pytest.approx(corpus_bleu(texts, [ideal]).score, abs=1e-6)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    own = [scorer.score(a, b) for a, b in zip(ideal, texts, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert found[name] == pytest.approx(sum(one[name].fmeasure for one in own) / len(own), abs=1e-9)
    assert 0.1 < found["rouge1"] < 0.6
    assert found["words"] == pytest.approx(40, abs=4)


def written(tmp_path: Path, *records: Any) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records), "utf-8")
    return str(path)


def test_figures_by_hand(tmp_path: Path) -> None:
    data = written(
        tmp_path,
        {"prompt": "Summarize: a b c d e f g h", "reference": "a b", "source": "a b c d e f g h"},
        {"prompt": "Summarize.", "references": ["x y", "a b c d"], "source": "a b c d"},
    )
    suite = SummarizationSuite(SuiteOptions(data=data))
    found = figures(suite, ["a b", "a b a b"], tmp_path)
    # "a b" is the reference; "a b a b" against "a b c d": 2 of 4 words; the other reference gives 0
    assert found["rouge1"] == (1.0 + 0.5) / 2
    assert found["words"] == (2 + 4) / 2
    assert list(suite.measures)[:4] == ["rouge1", "rouge2", "rougeL", "bleu"]


def test_reasoning_is_no_part_of_a_summary(tmp_path: Path) -> None:
    suite = SummarizationSuite(SuiteOptions(data=written(tmp_path, {"prompt": "Summarize.", "reference": "a b"})))
    found = figures(suite, ["<think>c d e f</think>a b"], tmp_path)
    assert (found["rouge1"], found["words"]) == (1.0, 2.0)  # "a b" alone, word for word
    continued = Answer(suite.questions[0], 0, ("<think>c</think>a b",), (1,), ("stop",), continues=True)
    assert continued.text == "<think>c</think>a b"


def test_a_word_with_vowel_signs_counts_once() -> None:
    assert words_of("मेला दिल्ली में है। cafe\u0301 コーヒー ok_1") == [
        *("मेला", "दिल्ली", "में", "है", "cafe\u0301", "コ", "ー", "ヒ", "ー", "ok_1"),
    ]


def test_without_references_nothing_is_compared(tmp_path: Path) -> None:
    assert "rouge1" not in SummarizationSuite(SuiteOptions(data=written(tmp_path, {"prompt": "p"}))).measures


def test_models_that_judge_are_used_and_checked_first(policy: Path, tmp_path: Path) -> None:
    data = written(tmp_path, {"prompt": "p", "reference": "a b"})
    suite = SummarizationSuite(SuiteOptions(data=data, perplexity=str(policy)))
    suite.check()
    found = figures(suite, ["Once upon a time."], tmp_path)
    reader = load_scorer(str(policy), "perplexity")
    assert reader is not None
    nats, tokens = text_nats(reader, "Once upon a time.")
    assert found["perplexity"] == pytest.approx(math.exp(nats / tokens))
    with pytest.raises(ModelError, match=r"^cannot load a model for perplexity from .*none: no such directory\. Give"):
        SummarizationSuite(SuiteOptions(data=data, perplexity=str(tmp_path / "none"))).check()


def test_data_that_is_not_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r'^suite summarization: no data is given\. Give a JSONL file with "prompt" and "reference", such as '
        r"`text2grad feedback prepare slf5k` writes, your own or SLF5K, with --suite summarization=FILE$",
    ):
        make_suites(["summarization"], SuiteOptions())
    with pytest.raises(DataError, match=r"^suite summarization: there is no file \./no\.jsonl\. Give a JSONL file"):
        make_suites(["summarization=./no.jsonl"], SuiteOptions())
    with pytest.raises(DataError, match=r'data\.jsonl:1: "prompt" must be a text or chat messages, or "source"'):
        make_suites([f"summarization={written(tmp_path, {'question': '?'})}"], SuiteOptions())
