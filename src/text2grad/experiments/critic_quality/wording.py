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
from pathlib import Path
from typing import Any, NamedTuple

from text2grad.errors import ModelError, require
from text2grad.experiments.critic_quality.intervals import Ratio
from text2grad.experiments.critic_quality.pairs import Pair
from text2grad.models import context_of

ROUGE = ("rouge1", "rouge2", "rougeL")


class Encoder(NamedTuple):
    """The model of BERTScore: an encoder, its tokenizer, and the layer of the compared states; 0 is the embeddings."""

    model: Any
    tokenizer: Any
    layer: int


class Reader(NamedTuple):
    """The model of perplexity: a causal language model and its tokenizer."""

    model: Any
    tokenizer: Any


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
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE), use_stemmer=True)
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


def bertscore_counts(pairs: Sequence[Pair], encoder: Encoder) -> list[dict[str, float]]:
    """Return BERTScore F1 of each response whose annotation has feedback."""
    counts: list[dict[str, float]] = [{} for _ in pairs]
    for row in with_words(pairs):
        score = bertscore(encoder, pairs[row].predicted.feedback, pairs[row].true.feedback)
        counts[row] = {"bert_worded": 1.0, "bertscore": score}
    return counts


def bertscore(encoder: Encoder, candidate: str, reference: str) -> float:
    """Return F1 of greedy matching by cosine similarity; 0 if one of the two texts has no token.

    Special tokens can be matched, but the means leave them out.
    """
    (here, own), (there, other) = _embedded(encoder, candidate), _embedded(encoder, reference)
    if not own.any() or not other.any():
        return 0.0
    similarity = here @ there.T
    precision = similarity.max(dim=1).values[own].mean()
    recall = similarity.max(dim=0).values[other].mean()
    return float(2 * precision * recall / (precision + recall))


def _embedded(encoder: Encoder, text: str) -> tuple[Any, Any]:
    """Return unit vectors of the tokens [T, H], cut at the model's maximum, and a mask of ordinary tokens [T]."""
    import torch

    longest = min(encoder.tokenizer.model_max_length, encoder.model.config.max_position_embeddings)
    encoded = encoder.tokenizer(
        text.strip(), return_tensors="pt", truncation=True, max_length=longest, return_special_tokens_mask=True
    )
    special = encoded.pop("special_tokens_mask")[0].bool()
    with torch.no_grad():
        states = encoder.model(**encoded, output_hidden_states=True).hidden_states[encoder.layer][0]
    return torch.nn.functional.normalize(states, dim=-1), ~special


def perplexity_counts(texts: Sequence[str], reader: Reader, name: str) -> list[dict[str, float]]:
    """Return the negative log-likelihood and the token count of each text, as "nats/NAME" and "tokens/NAME"."""
    found = [text_nats(reader, text) for text in texts]
    return [{f"nats/{name}": nats, f"tokens/{name}": float(tokens)} for nats, tokens in found]


def text_nats(reader: Reader, text: str) -> tuple[float, int]:
    """Return the negative log-likelihood of a text in nats, and the number of its tokens.

    The first token counts if the tokenizer has a beginning-of-text token to put before it. A text longer than the
    model's context is scored in pieces of that length.
    """
    import torch

    ids = reader.tokenizer(text.strip(), add_special_tokens=False)["input_ids"]
    begin = [] if reader.tokenizer.bos_token_id is None else [reader.tokenizer.bos_token_id]
    context = int(min(context_of(reader.model), 2**31))
    nats, tokens, step = 0.0, 0, context - len(begin)
    for start in range(0, len(ids), step):
        piece = torch.tensor([[*begin, *ids[start : start + step]]])
        if piece.shape[1] > 1:
            with torch.no_grad():
                loss = reader.model(input_ids=piece, labels=piece).loss  # mean over all tokens but the first
            nats, tokens = nats + float(loss) * (piece.shape[1] - 1), tokens + piece.shape[1] - 1
    return nats, tokens


def word_ratios(*, words: bool, bert: bool, perplexity: bool) -> dict[str, Ratio]:
    """Return the rates of feedback by name."""
    found = {name: Ratio((name,), ("worded",)) for name in ROUGE} if words else {}
    if bert:
        found["bertscore"] = Ratio(("bertscore",), ("bert_worded",))
    if perplexity:
        for who in ("predicted", "true"):
            found[f"perplexity/{who}"] = Ratio((f"nats/{who}",), (f"tokens/{who}",), exp=True)
    return found


def load_encoder(path: str, layer: int | None) -> Encoder:
    """Load the model of BERTScore from a directory, or from Hugging Face's local cache.

    Args:
        path: the model.
        layer: the layer whose hidden states are compared; None takes the last. The authors of BERTScore take layer
            17 of the 24 of roberta-large.

    Raises:
        ModelError: if the model cannot be loaded or has no such layer.
    """
    from transformers import AutoModel

    model, tokenizer = _load(path, AutoModel, "BERTScore")
    layers = model.config.num_hidden_layers
    if layer is not None and not 0 <= layer <= layers:
        raise ModelError(f"--bertscore-layer is 0 to {layers} for {path}, got {layer}")
    return Encoder(model, tokenizer, layers if layer is None else layer)


def load_reader(path: str) -> Reader:
    """Load a causal language model for perplexity, from a directory or from Hugging Face's local cache.

    Raises:
        ModelError: if the model cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    return Reader(*_load(path, AutoModelForCausalLM, "perplexity"))


def _load(path: str, kind: Any, purpose: str) -> tuple[Any, Any]:
    from transformers import AutoTokenizer

    try:
        model = kind.from_pretrained(path, local_files_only=True, use_safetensors=True)
        return model.eval(), AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".") if Path(path).exists() else "no such directory"
        raise ModelError(
            f"cannot load a model for {purpose} from {path}: {reason}. Give the directory of a Hugging Face model"
        ) from error
