"""Compare the critiques of a critic with annotations, the truth (section 4.2, appendices C, E, L, M and O).

pairs       annotations and predictions, of a file or of a critic → pairs of critiques of the same response
units       a response → tokens, words or characters, with the marks of prediction and truth
counting    one response → counts: tokens, spans, quotes, lengths (tables 1, 6, 7, 15, 18, 19)
evaluation  pairs → all measurements, as JSON, as tables and as a page with prediction beside truth
verdicts    verdicts of judges on pairs of texts → wins, ties, losses, agreement (table 16)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
