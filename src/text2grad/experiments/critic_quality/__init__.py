"""How good a critic is, beside annotations that are the truth (section 4.2 of the paper, appendices C, E, L, M and O).

pairs       annotations and predictions → what both say of the same response
predicting  a critic → predictions, each on disk before it is used
units       a response → tokens, words or characters, with the marks of both
counting    one response → counts: tokens, spans, quotes, lengths (tables 1, 6, 7, 15, 18, 19)
wording     the words of critiques: ROUGE, BLEU, BERTScore, perplexity (table 8)
intervals   counts of responses → rates with bootstrap intervals
evaluation  all of these together, as JSON and tables
pictures    the same as bars, and as a page with prediction beside truth
study       critiques → a rating sheet for people, and back
agreement   what raters say → how far they agree (table 16)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
