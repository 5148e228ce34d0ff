from .annotation_items import (
    annotated_examples as annotated_examples,
    endpoint_values as endpoint_values,
    items_of as items_of,
)
from .answers import (
    Answer as Answer,
    judge_answers as judge_answers,
    measure_answers as measure_answers,
    sample_answers as sample_answers,
)
from .comparison import collect as collect, print_comparison as print_comparison, write_comparison as write_comparison
from .evaluate_policy import Sampling as Sampling, sample_rollouts as sample_rollouts
from .evaluations import main_metric as main_metric
from .experiment import Experiment as Experiment
from .experiment_plan import load_plan as load_plan
from .jobs import Job as Job, run_jobs as run_jobs
from .methods import (
    COMPARED as COMPARED,
    EARLIER_NAMES as EARLIER_NAMES,
    METHODS as METHODS,
    last_figures as last_figures,
    method_directory as method_directory,
    method_job as method_job,
    settings as settings,
    steps_made as steps_made,
)
from .metric import lower_is_better as lower_is_better
from .own_annotations import annotate_by_critic as annotate_by_critic
from .phase_models import refuse_other_settings as refuse_other_settings
from .pipeline import pipeline_with_progress_lines as pipeline_with_progress_lines
from .recipe_run import (
    all_examples as all_examples,
    critic_of_run as critic_of_run,
    held_out_examples as held_out_examples,
    refreshed_critic as refreshed_critic,
    run_recipe as run_recipe,
)
from .results import write_results as write_results
from .run_comparison import (
    compare_runs as compare_runs,
    print_compared as print_compared,
    write_compared as write_compared,
)
from .search_space import CONFIRMED as CONFIRMED, as_overrides as as_overrides
from .sft_run import SFTRun as SFTRun
from .tuning import Tuning as Tuning, command_of as command_of
