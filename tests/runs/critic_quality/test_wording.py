"""Words of critiques: ROUGE, BLEU, BERTScore and perplexity, by hand and against the tools' own numbers."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu import corpus_bleu
from transformers import BertConfig, BertModel

from text2grad.errors import ModelError
from text2grad.evaluation import words
from text2grad.evaluation.words import Scorer, Wording, load_scorer
from text2grad.runs.critic_quality.evaluation import Evaluation, evaluate
from text2grad.runs.critic_quality.pairs import Pair
from text2grad.runs.critic_quality.units import Units
from text2grad.tasks.tiny import tiny_llama, word_tokenizer
from text2grad.types import Critique

SAID = ["the city is wrong .", "names the right day", "good", ""]
TRUE = ["the city is right .", "the day is bad", "the city and the day is a bad name", "the city"]


def pairs(said: list[str] = SAID, true: list[str] = TRUE) -> list[Pair]:
    return [Pair("", "", "", Critique(a), Critique(b)) for a, b in zip(said, true, strict=True)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a BERT of random weights, whose tokenizer puts special tokens around a text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = word_tokenizer([*SAID, *TRUE])
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    ends = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]")]
    core = tokenizer.backend_tokenizer
    core.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.model_max_length = 16
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, initializer_range=0.5, **sizes))
    path = tmp_path_factory.mktemp("bert")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def evaluated(found: list[Pair], wording: Wording | None = None) -> Evaluation:
    return evaluate(found, Units("words"), wording or Wording(), draws=2)


def test_rouge_is_that_made_by_hand() -> None:
    counts = [Wording().beside(said, [true]) for said, true in zip(SAID, TRUE, strict=True)]
    rouge = [tuple(row[name] for name in words.ROUGE) for row in counts]
    # "the city is wrong" against "the city is right": 3 of 4 words; pairs "the city", "city is" of 3
    assert rouge[0] == (0.75, pytest.approx(2 / 3), 0.75)
    # "names the right day" against "the day is bad": "the", "day" of 4 and 4; no pair
    assert rouge[1] == (0.5, 0.0, 0.5)
    assert rouge[3] == (0.0, 0.0, 0.0)
    assert Wording().beside(SAID[0], [TRUE[1], TRUE[0]])["rouge1"] == 0.75  # the best of several references


def test_words_are_compared_where_the_annotator_has_some() -> None:
    found = evaluated(pairs(["a b c", "x"], ["a b c", " \n"]))
    assert found.metrics["rouge1"].value == 1.0
    assert found.counts["with_reference"] == 1
    assert "bleu" not in evaluated(pairs(["x"], [""])).metrics


def test_bleu_is_sacrebleus_and_by_hand_where_it_can_be_counted() -> None:
    # "a b c d e" against "a b c d f": 4/5 of words, 3/4 of pairs, 2/3, 1/2; no brevity penalty
    found = evaluated(pairs(["a b c d e"], ["a b c d f"])).metrics["bleu"]
    assert found.value == found.low == found.high == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    assert evaluated(pairs()).metrics["bleu"].value == pytest.approx(corpus_bleu(SAID, [TRUE]).score / 100)


@pytest.mark.filterwarnings("ignore")
def test_bertscore_is_that_of_its_own_package(bert: Path) -> None:
    import bert_score

    said, true = SAID[:3], TRUE[:3]  # the package fails on empty texts
    theirs = bert_score.score(said, true, model_type=str(bert), num_layers=2, device="cpu")[2].tolist()
    wording = Wording(ngrams=False, encoder=load_scorer(str(bert), "BERTScore"))
    counts = [wording.beside(*one) for one in zip(said, [[text] for text in true], strict=True)]
    assert [row["bertscore"] for row in counts] == pytest.approx(theirs, abs=1e-5)
    assert max(theirs) < 0.999


def test_bertscore_of_a_text_with_itself_is_one_and_of_no_text_zero(bert: Path) -> None:
    encoder = load_scorer(str(bert), "BERTScore")
    assert encoder is not None
    assert words.bertscore(encoder, "the city", "the city") == pytest.approx(1.0)
    assert words.bertscore(encoder, "", "the city") == 0.0
    assert words.bertscore(encoder, "the city " * 50, "the city") < 1.0  # cut at 16 tokens, and no error


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^cannot load a model for perplexity from .*: no such directory\. Give the "):
        load_scorer(str(tmp_path / "none"), "perplexity")


class Uniform(torch.nn.Module):
    """Says that each of four tokens is as likely as the other."""

    def __init__(self, context: int) -> None:
        super().__init__()
        self.config, self.seen = self, []
        self.max_position_embeddings = context

    def get_text_config(self) -> Any:
        return self

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        self.seen.append(input_ids.shape[1])
        self.loss = torch.tensor(math.log(4))
        return self


def test_the_perplexity_of_a_uniform_model_is_its_vocabulary_whatever_the_context() -> None:
    tokenizer = word_tokenizer(["a b c"])
    for context, lengths in ((100, [7]), (3, [3, 3, 1])):
        model = Uniform(context)
        nats, tokens = words.text_nats(Scorer(model, tokenizer), "a b c a b c a")
        assert math.exp(nats / tokens) == pytest.approx(4.0)
        assert tokens == sum(length - 1 for length in lengths)  # the first of each piece follows nothing
    assert words.text_nats(Scorer(Uniform(9), tokenizer), "") == (0.0, 0)


def test_perplexity_is_that_of_transformers_loss_over_the_tokens_of_all_texts() -> None:
    tokenizer = word_tokenizer([*SAID, *TRUE])
    tokenizer.bos_token = "</s>"
    model = tiny_llama(tokenizer, seed=0).eval()
    nats, tokens = 0.0, 0
    for text in SAID[:3]:
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text).input_ids]])
        with torch.no_grad():
            logp = model(ids).logits.log_softmax(-1)[0, :-1]
        nats -= float(logp.gather(1, ids[0, 1:, None]).sum())
        tokens += ids.shape[1] - 1
    found = evaluated(pairs(), Wording(ngrams=False, reader=Scorer(model, tokenizer))).metrics
    assert found["perplexity/predicted"].value == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert found["perplexity/true"].value != pytest.approx(found["perplexity/predicted"].value)


def test_an_encoder_is_used_where_it_is_given(bert: Path) -> None:
    encoder = load_scorer(str(bert), "BERTScore")
    found = evaluated(pairs(SAID[:1], SAID[:1]), Wording(ngrams=False, encoder=encoder)).metrics
    assert found["bertscore"].value == pytest.approx(1.0)
    assert "rouge1" not in found
