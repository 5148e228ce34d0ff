from .evaluation import NAMED as NAMED, Evaluation as Evaluation, evaluate as evaluate, tables as tables
from .page import evaluation_page as evaluation_page
from .pairs import (
    Pair as Pair,
    paired as paired,
    read_comparisons as read_comparisons,
    read_predictions as read_predictions,
    read_truth as read_truth,
)
from .predicting import check_identity as check_identity, predictions as predictions
from .units import CUTS as CUTS, Units as Units
from .verdicts import judges_agreement as judges_agreement, summary as summary, verdict_tables as verdict_tables
