from .answers import chatty as chatty, half_of_both as half_of_both, same_words as same_words, scrambled as scrambled
from .critic import VERDICTS as VERDICTS, FactCritic as FactCritic, FactWriter as FactWriter
from .metric import ClaimMetric as ClaimMetric
from .reading import FactReader as FactReader, Facts as Facts, Phrase as Phrase, Phrases as Phrases, key as key
