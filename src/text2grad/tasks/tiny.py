"""A small language model for an embedded task: Hugging Face classes, random weights, no download.

The tokenizer has one token for each word of the task with the space before it, so decoding returns the text unchanged.
The model is a Llama with about 0.1 million parameters.
"""

from collections.abc import Iterable, Sequence
from typing import Any

PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"
TOKEN = r" ?\w+| ?[^\w\s]|\s"


def word_tokenizer(texts: Iterable[str], symbols: Sequence[str] = ()) -> Any:
    r"""Return a tokenizer with one token for each word, mark and line break that occurs in `texts`.

    Args:
        texts: the training texts; other words are unknown to the tokenizer.
        symbols: texts that become one token each, also within words; the longest match wins.

    Example:
        >>> tokenizer = word_tokenizer(["Ann sold a bike.\nTL;DR: Ann sold."])
        >>> ids = tokenizer("Ann sold a bike.").input_ids
        >>> tokenizer.convert_ids_to_tokens(ids), tokenizer.decode(ids)
        (['Ann', ' sold', ' a', ' bike', '.'], 'Ann sold a bike.')
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=[PAD, EOS, UNKNOWN], show_progress=False))
    core.add_tokens([AddedToken(symbol, normalized=False, special=False) for symbol in symbols])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core, pad_token=PAD, eos_token=EOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )


def tiny_llama(tokenizer: Any, *, seed: int, width: int = 64, layers: int = 2, context: int = 512) -> Any:
    """Return a Llama with random weights for this tokenizer; `width` is its hidden size, a multiple of 16."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 4 * 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 16,
        max_position_embeddings=context,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        initializer_range=0.1,  # with the usual 0.02 a model of this size needs ten times as long to learn to copy
    )
    model = LlamaForCausalLM(config)
    begin_alike(model, tokenizer)
    return model


def begin_alike(model: Any, tokenizer: Any) -> None:
    """Initialize a model so that equal words look equal to it from the first step.

    The key weights of attention start as a copy of the query weights, so that a token attends to equal tokens (after
    arXiv 2305.09828). The embedding of a word with a space before it starts as the embedding of the word without. A
    model that must compare quotes with the truth then learns to compare within 400 steps; without, it had not started
    within 800 (evidence/log.md).
    """
    import torch

    vocabulary = tokenizer.get_vocab()
    bare = {word.removeprefix(" "): number for word, number in vocabulary.items() if word.startswith(" ")}
    pairs = [(number, bare[word]) for word, number in vocabulary.items() if word in bare]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.weight.copy_(layer.self_attn.q_proj.weight)
        for matrix in (model.get_input_embeddings().weight, model.get_output_embeddings().weight):
            for without, spaced in pairs:
                matrix[without] = matrix[spaced]
