"""Decoding of critiques that are always complete JSON with quotes from the response.

vocabulary    the tokens of a tokenizer as bytes
skeleton      a byte automaton for the JSON around the quotes
quotable      the valid quotes of a response
verbatim      quotes inside the feedback
constrained   the token by token decoder, and its logits processors
grammar       the same language as a grammar for vLLM and SGLang

May import `errors`, `types`, `align`, `feedback`, `models`, and `reward_models.writing`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
