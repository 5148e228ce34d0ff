"""The metric of answers to questions: the patterns of claims."""

from evidence.tasks.qa.world import FIRST_NAMES, LAST_NAMES, VALUES
from text2grad.tasks.facts import ClaimMetric

_ANY = {slot: "|".join(values) for slot, values in VALUES.items()}
METRIC = ClaimMetric(
    {
        "who": rf"\b((?:{'|'.join(FIRST_NAMES)}) (?:{'|'.join(LAST_NAMES)})) teaches\b",
        "what": rf"\bteaches ({_ANY['what']})\b",
        "where": rf"\bin ({_ANY['where']})\b",
        "when": rf"\bon ({_ANY['when']})\b",
        "price": rf"\bfor ({_ANY['price']}) euros\b",
    }
)
