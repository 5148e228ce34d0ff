"""Perplexity of texts under the model itself, with transformers' loss."""

import math
from pathlib import Path

import pytest
import torch

from evidence.suites.perplexity import PerplexitySuite
from text2grad.evaluation.intervals import estimate
from text2grad.evaluation.subjects import load, outline, read_subjects
from text2grad.evaluation.suite import SuiteOptions
from text2grad.tasks.tiny import tiny_llama
from tokenizers_made_here import made


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Save a model of random weights."""
    tokenizer, path = made("llama3"), tmp_path / "policy"
    tiny_llama(tokenizer, seed=0, width=32, layers=1, context=512).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_perplexity_of_a_text_under_the_policy_is_transformers_loss(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("Once upon a time.\n\nA dog ran home, and slept.\n", "utf-8")
    suite = PerplexitySuite(SuiteOptions(data=str(tmp_path / "book.txt")))
    [subject] = read_subjects([str(policy)])
    loaded = load(outline(subject))
    rows = suite.examine(loaded)
    nats = tokens = 0.0
    for text in ("Once upon a time.", "A dog ran home, and slept."):
        ids = loaded.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        begin = loaded.tokenizer.bos_token_id
        ids = ids if begin is None else torch.cat([torch.tensor([[begin]]), ids], 1)
        with torch.no_grad():
            logp = loaded.model(ids).logits.log_softmax(-1)[0, :-1]
        nats -= float(logp.gather(1, ids[0, 1:, None]).sum())
        tokens += ids.shape[1] - 1
    statistics = {name: one.statistic for name, one in suite.measures.items()}
    found = estimate([counts for _, counts in rows], statistics, draws=10)
    assert found["perplexity"].value == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert found["bits_per_byte"].value == pytest.approx(nats / math.log(2) / (17 + 26), rel=1e-5)
