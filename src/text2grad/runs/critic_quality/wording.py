"""Feedback of critic and annotator → ROUGE, BLEU, BERTScore, perplexity (table 8 of the paper).

rouge1 rouge2 rougeL   F-measure of `rouge-score` with stemming, mean over responses; it only counts a to z and 0 to 9
bleu                   of `sacrebleu` over all critiques together, in [0, 1]; not a mean, so without interval
bertscore              as `evaluation.bertscore`, mean over responses
perplexity             e^(nats / tokens) under a causal language model

Responses whose annotation has no feedback are left out. Empty feedback of the critic scores 0, and has no tokens for
perplexity.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from text2grad.errors import require
from text2grad.evaluation import DRAWS, ROUGE, Ratio, Scorer, bertscore, rouge_scorer, text_nats
from text2grad.runs.critic_quality.pairs import Pair

WHO = ("predicted", "true")
RATIOS = {
    **{name: Ratio((name,), ("worded",)) for name in (*ROUGE, "bertscore")},
    **{f"perplexity/{who}": Ratio((f"nats/{who}",), (f"tokens/{who}",), exp=True) for who in WHO},
}
"""The rates of feedback by name."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Measurements besides spans, and the number of resamples.

    Attributes:
        words: measure ROUGE and BLEU.
        encoder: the model of BERTScore; None leaves it out.
        reader: the model of perplexity; None leaves it out.
        draws: number of bootstrap resamples.
    """

    words: bool = True
    encoder: Scorer | None = None
    reader: Scorer | None = None
    draws: int = DRAWS


def check_words() -> None:
    """Check that the packages for ROUGE and BLEU are installed.

    Raises:
        ConfigError: if a package is missing.
    """
    require("rouge_score", "sacrebleu", extra="eval", purpose="ROUGE and BLEU", otherwise="add --no-words")


def with_words(pairs: Sequence[Pair]) -> list[int]:
    """Return the rows whose annotation has feedback in words."""
    return [row for row, pair in enumerate(pairs) if pair.true.feedback.strip()]


def word_counts(pairs: Sequence[Pair], measures: Measures) -> list[dict[str, float]]:
    """Return the counts of each response that the rates in `RATIOS` divide."""
    scorer = rouge_scorer() if measures.words else None
    counts: list[dict[str, float]] = [{} for _ in pairs]
    for row in with_words(pairs):
        predicted, true = pairs[row].predicted.feedback, pairs[row].true.feedback
        if scorer is not None:
            scores = scorer.score(true, predicted)
            counts[row] |= {"worded": 1.0, **{name: float(scores[name].fmeasure) for name in ROUGE}}
        if measures.encoder is not None:
            counts[row] |= {"worded": 1.0, "bertscore": bertscore(measures.encoder, predicted, true)}
    if measures.reader is not None:
        for pair, row_counts in zip(pairs, counts, strict=True):
            for who in WHO:
                nats, tokens = text_nats(measures.reader, getattr(pair, who).feedback)
                row_counts |= {f"nats/{who}": nats, f"tokens/{who}": float(tokens)}
    return counts


def bleu(pairs: Sequence[Pair]) -> float | None:
    """Return BLEU of all critiques together, in [0, 1]; None if no annotation has feedback."""
    from sacrebleu import corpus_bleu

    rows = with_words(pairs)
    if not rows:
        return None
    predicted, true = ([getattr(pairs[row], who).feedback for row in rows] for who in WHO)
    return float(corpus_bleu(predicted, [true]).score) / 100
