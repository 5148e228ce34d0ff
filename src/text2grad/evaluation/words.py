"""Texts → ROUGE, BLEU, BERTScore, perplexity, distinct n-grams: the functions behind every comparison of words.

rouge1 rouge2 rougeL   F-measure of `rouge-score` with stemming; it only counts a to z and 0 to 9
bleu                   of `sacrebleu` over all texts together, 0 to 100; intervals by its statistics per text
bertscore              F1 (arXiv 1904.09675) without idf weights and without rescaling. `bert-score` fails on empty
                       texts with transformers 5, so it is computed here; a test compares the results
perplexity             e^(nats / tokens); nats are the negative log-likelihood under a causal language model
distinct n             different n-grams / all n-grams (arXiv 1510.03055)

Of several references, the best counts.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from text2grad.errors import ModelError
from text2grad.evaluation.intervals import Ratio, Statistic
from text2grad.feedback import whole_words
from text2grad.models import best_device, context_of

ROUGE = ("rouge1", "rouge2", "rougeL")
MOST_TOKENS = 2048  # scored together: the logits of more would not fit beside a large model
_ONE_WORD = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana and Chinese characters: no spaces between words
_WORD = re.compile(rf"[{_ONE_WORD}]|[^\W{_ONE_WORD}][^{_ONE_WORD}]*")  # a word in a run of letters
_BLEU_COUNTS = tuple(f"bleu/{number}" for number in range(10))
_KINDS = {"BERTScore": "AutoModel", "perplexity": "AutoModelForCausalLM"}  # purpose of a model → class of transformers


class Scorer(NamedTuple):
    """A model that scores texts: the encoder of BERTScore or the causal language model of perplexity."""

    model: Any
    tokenizer: Any


class Bleu(NamedTuple):
    """BLEU over all texts, as a statistic of the counts of each: lengths, matches and totals of four orders."""

    scale: float = 1.0  # 1 gives 0 to 100
    names: tuple[str, ...] = _BLEU_COUNTS

    def values(self, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the score for each weighting; NaN without any reference."""
        score, totals = _bleu()._compute_score_from_stats, np.rint(weights @ counts).astype(int).tolist()
        return np.array([score(row).score * self.scale if any(row) else math.nan for row in totals], dtype=float)


OVERLAPS: dict[str, Statistic] = {  # the figures of texts beside references, of the counts of `Wording.beside`
    **{name: Ratio((name,), ("with_reference",)) for name in ROUGE},
    "bleu": Bleu(),
    "bertscore": Ratio(("bertscore",), ("with_reference",)),
}
PERPLEXITY = Ratio(("nats",), ("tokens",), exp=True)


@dataclass(frozen=True, slots=True)
class Wording:
    """What is measured of texts; what is False or None is left out."""

    ngrams: bool = True  # ROUGE and BLEU
    encoder: Scorer | None = None  # of BERTScore
    reader: Scorer | None = None  # of perplexity

    @property
    def overlaps(self) -> dict[str, Statistic]:
        """The figures that are measured beside references."""
        return {name: OVERLAPS[name] for name in OVERLAPS if (self.encoder if name == "bertscore" else self.ngrams)}

    def beside(self, text: str, references: Sequence[str]) -> dict[str, float]:
        """Return the counts of a text beside references, at least one."""
        counts = {"with_reference": 1.0}
        if self.ngrams:
            scores = [_rouge().score(reference, text) for reference in references]
            counts |= {name: max(float(score[name].fmeasure) for score in scores) for name in ROUGE}
            [statistics] = _bleu()._extract_corpus_statistics([text], [[reference] for reference in references])
            counts |= zip(Bleu().names, map(float, statistics), strict=True)
        if self.encoder is not None:
            counts["bertscore"] = max(bertscore(self.encoder, text, reference) for reference in references)
        return counts

    def alone(self, text: str) -> dict[str, float]:
        """Return the counts of a text alone: nats and tokens."""
        return {} if self.reader is None else dict(zip(("nats", "tokens"), text_nats(self.reader, text), strict=True))


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=True)


@cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU

    return BLEU()


def words_of(text: str) -> list[str]:
    """Return the words of a text as spelled, without punctuation; a kana or Chinese character is a word."""
    return [word for start, end in whole_words(text) for word in _WORD.findall(text, start, end)]


def distinct(texts: Iterable[str], n: int) -> float:
    """Return distinct n-grams: different n-grams / all n-grams; no n-gram spans two texts; 0 without any.

    The share falls as the number or the length of the texts grows.

    Example:
        >>> distinct(["a b a b", "a b"], 2)  # a b, b a, a b; a b
        0.5
    """
    grams = []
    for text in texts:
        words = words_of(text)
        grams += list(zip(*(words[start:] for start in range(n)), strict=False))
    return len(set(grams)) / max(len(grams), 1)


def bertscore(encoder: Scorer, candidate: str, reference: str) -> float:
    """Return F1 of greedy matching by cosine similarity of the last states; 0 if one of the two texts has no token.

    Special tokens can be matched, but the means leave them out.
    """
    (states, own), (reference_states, other) = _embedded(encoder, candidate), _embedded(encoder, reference)
    if not own.any() or not other.any():
        return 0.0
    similarity = states @ reference_states.T
    precision = similarity.max(dim=1).values[own].mean()
    recall = similarity.max(dim=0).values[other].mean()
    return float(2 * precision * recall / (precision + recall))


def _embedded(encoder: Scorer, text: str) -> tuple[Any, Any]:
    """Return unit vectors of the tokens [T, H], cut at the model's maximum, and a mask of ordinary tokens [T]."""
    import torch

    longest = min(encoder.tokenizer.model_max_length, encoder.model.config.max_position_embeddings)
    encoded = encoder.tokenizer(
        text.strip(), return_tensors="pt", truncation=True, max_length=longest, return_special_tokens_mask=True
    ).to(encoder.model.device)
    special = encoded.pop("special_tokens_mask")[0].bool()
    with torch.no_grad():
        states = encoder.model(**encoded, output_hidden_states=True).hidden_states[-1][0]
    return torch.nn.functional.normalize(states, dim=-1), ~special


def text_nats(reader: Scorer, text: str) -> tuple[float, float]:
    """Return the negative log-likelihood of a text in nats, and the number of its tokens.

    The first token counts if the tokenizer has a beginning-of-text token to put before it. A text longer than the
    model's context, or than 2,048 tokens, is scored in pieces of that length.
    """
    import torch

    ids = reader.tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
    begin = [] if reader.tokenizer.bos_token_id is None else [reader.tokenizer.bos_token_id]
    context = int(min(context_of(reader.model), MOST_TOKENS))
    nats, tokens, step = 0.0, 0.0, context - len(begin)
    for start in range(0, len(ids), step):
        piece = torch.tensor([[*begin, *ids[start : start + step]]], device=getattr(reader.model, "device", None))
        if piece.shape[1] > 1:
            with torch.no_grad():
                loss = reader.model(input_ids=piece, labels=piece).loss  # mean over all tokens but the first
            nats, tokens = nats + float(loss) * (piece.shape[1] - 1), tokens + piece.shape[1] - 1
    return nats, tokens


def load_scorer(path: str, purpose: str) -> Scorer | None:
    """Load the model of a purpose, "BERTScore" or "perplexity", on the accelerator if any; None without a path.

    The path is a directory, or a name in Hugging Face's local cache.

    Raises:
        ModelError: if the model cannot be loaded.
    """
    if not path:
        return None
    model = _part(path, _KINDS[purpose], purpose, use_safetensors=True).eval().to(best_device())
    return Scorer(model, _part(path, "AutoTokenizer", purpose))


def check_scorer(path: str, purpose: str) -> None:
    """Check a model by its config alone; arguments and errors as in `load_scorer`."""
    if path:
        _part(path, "AutoConfig", purpose)


def _part(path: str, kind: str, purpose: str, **more: Any) -> Any:
    """Return what a class of transformers loads; its errors are told with the purpose of the model and the way out."""
    import transformers

    try:
        return getattr(transformers, kind).from_pretrained(path, local_files_only=True, **more)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if Path(path).exists() else "no such directory"
        raise ModelError(
            f"cannot load a model for {purpose} from {path}: {reason}. Give the directory of a Hugging Face model"
        ) from error
