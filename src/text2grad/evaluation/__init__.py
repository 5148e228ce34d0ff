"""Policies on public benchmarks: suites of questions, answers of models, figures with intervals.

suite        a yardstick: questions, and the scores of their answers (`suites/`, listed in `registry`)
subjects     the models that are evaluated: directories, runs, adapters, hub names, servers
answering    questions → answers on disk, each sampled once
evaluation   models × suites → figures, and paired differences
intervals    counts per question → figures with bootstrap intervals
words        texts → ROUGE, BERTScore, perplexity, distinct n-grams
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
