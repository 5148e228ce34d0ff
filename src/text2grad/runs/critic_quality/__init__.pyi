from .evaluation import (
    NAMED as NAMED,
    Evaluation as Evaluation,
    evaluate as evaluate,
    evaluation_page as evaluation_page,
    tables as tables,
)
from .pairs import (
    Pair as Pair,
    check_identity as check_identity,
    identity_of as identity_of,
    paired as paired,
    read_comparisons as read_comparisons,
    read_predictions as read_predictions,
    read_truth as read_truth,
)
from .units import CUTS as CUTS, Units as Units
from .verdicts import judges_agreement as judges_agreement, summary as summary, verdict_tables as verdict_tables
