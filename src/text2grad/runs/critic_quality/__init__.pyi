from .agreement import measure_agreement as measure_agreement
from .evaluation import (
    NAMED as NAMED,
    Evaluation as Evaluation,
    evaluate as evaluate,
    tables as tables,
)
from .page import evaluation_page as evaluation_page
from .pair_study import (
    draw_pairs as draw_pairs,
    pairs_csv as pairs_csv,
    pairs_html as pairs_html,
    read_pair_sheet as read_pair_sheet,
)
from .pairs import (
    Pair as Pair,
    paired as paired,
    read_comparisons as read_comparisons,
    read_predictions as read_predictions,
    read_truth as read_truth,
)
from .predicting import (
    check_identity as check_identity,
    fingerprint as fingerprint,
    predictions as predictions,
)
from .study import (
    QUESTIONS as QUESTIONS,
    draw as draw,
    read_sheets as read_sheets,
    sheet_csv as sheet_csv,
    sheet_html as sheet_html,
)
from .units import CUTS as CUTS, Units as Units
from .verdicts import judges_agreement as judges_agreement, summary as summary, verdict_tables as verdict_tables
