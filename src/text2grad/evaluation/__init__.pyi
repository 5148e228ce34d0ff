from .answering import Sampling as Sampling
from .evaluation import (
    EvaluationSettings as EvaluationSettings,
    PolicyEvaluation as PolicyEvaluation,
    SuiteResult as SuiteResult,
    evaluate_models as evaluate_models,
)
from .intervals import (
    DRAWS as DRAWS,
    LEVEL as LEVEL,
    Estimate as Estimate,
    Ratio as Ratio,
    Statistic as Statistic,
    estimate as estimate,
    mean_interval as mean_interval,
)
from .registry import SUITES as SUITES, make_suites as make_suites, register_suite as register_suite
from .subjects import read_subjects as read_subjects
from .suite import SuiteOptions as SuiteOptions
from .words import Bleu as Bleu, Wording as Wording, distinct as distinct, load_scorer as load_scorer
