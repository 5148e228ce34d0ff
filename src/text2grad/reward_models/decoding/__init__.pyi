from .grammar import critique_grammar as critique_grammar
from .quotable import QuoteLimits as QuoteLimits
