"""Feedback of critic and annotator → ROUGE, BLEU, BERTScore, perplexity (table 8 of the paper).

rouge1 rouge2 rougeL   F-measure of `rouge-score` with stemming, mean over responses; it only counts a to z and 0 to 9
bleu                   of `sacrebleu` over all critiques together, in [0, 1]; not a mean, so without interval
bertscore              F1 (arXiv 1904.09675) without idf weights and without rescaling. `bert-score` fails on empty
                       texts with transformers 5, so it is computed here; a test compares the results
perplexity             e^(nats / tokens) under a causal language model

Responses whose annotation has no feedback are left out. Empty feedback of the critic scores 0, and has no tokens for
perplexity.
"""

from collections.abc import Sequence

from text2grad.errors import require
from text2grad.evaluation import ROUGE, Ratio, Scorer, bertscore, rouge_scorer, text_nats
from text2grad.runs.critic_quality.pairs import Pair


def check_words() -> None:
    """Check that the packages for ROUGE and BLEU are installed.

    Raises:
        ConfigError: if a package is missing.
    """
    require("rouge_score", "sacrebleu", extra="eval", purpose="ROUGE and BLEU", otherwise="add --no-words")


def with_words(pairs: Sequence[Pair]) -> list[int]:
    """Return the rows whose annotation has feedback in words."""
    return [row for row, pair in enumerate(pairs) if pair.true.feedback.strip()]


def word_counts(pairs: Sequence[Pair]) -> list[dict[str, float]]:
    """Return ROUGE of each response with a count of 1 as denominator; no counts if the annotation has no feedback."""
    scorer = rouge_scorer()
    counts: list[dict[str, float]] = [{} for _ in pairs]
    for row in with_words(pairs):
        scores = scorer.score(pairs[row].true.feedback, pairs[row].predicted.feedback)
        counts[row] = {"worded": 1.0, **{name: float(scores[name].fmeasure) for name in ROUGE}}
    return counts


def bleu(pairs: Sequence[Pair]) -> float | None:
    """Return BLEU of all critiques together, in [0, 1]; None if no annotation has feedback."""
    from sacrebleu import corpus_bleu

    rows = with_words(pairs)
    if not rows:
        return None
    predicted, true = ([getattr(pairs[row], who).feedback for row in rows] for who in ("predicted", "true"))
    return float(corpus_bleu(predicted, [true]).score) / 100


def bertscore_counts(pairs: Sequence[Pair], encoder: Scorer) -> list[dict[str, float]]:
    """Return BERTScore F1 of each response whose annotation has feedback."""
    counts: list[dict[str, float]] = [{} for _ in pairs]
    for row in with_words(pairs):
        score = bertscore(encoder, pairs[row].predicted.feedback, pairs[row].true.feedback)
        counts[row] = {"bert_worded": 1.0, "bertscore": score}
    return counts


def perplexity_counts(texts: Sequence[str], reader: Scorer, name: str) -> list[dict[str, float]]:
    """Return the negative log-likelihood and the token count of each text, as "nats/NAME" and "tokens/NAME"."""
    found = [text_nats(reader, text) for text in texts]
    return [{f"nats/{name}": nats, f"tokens/{name}": float(tokens)} for nats, tokens in found]


def word_ratios(*, words: bool, bert: bool, perplexity: bool) -> dict[str, Ratio]:
    """Return the rates of feedback by name."""
    found = {name: Ratio((name,), ("worded",)) for name in ROUGE} if words else {}
    if bert:
        found["bertscore"] = Ratio(("bertscore",), ("bert_worded",))
    if perplexity:
        for who in ("predicted", "true"):
            found[f"perplexity/{who}"] = Ratio((f"nats/{who}",), (f"tokens/{who}",), exp=True)
    return found
