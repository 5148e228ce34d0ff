from .annotation_items import (
    annotated_examples as annotated_examples,
    endpoint_values as endpoint_values,
    items_of as items_of,
)
from .answers import (
    Answer as Answer,
    judge_answers as judge_answers,
    measure_answers as measure_answers,
)
from .comparison import (
    collect as collect,
    quickstart_tables as quickstart_tables,
    write_comparison as write_comparison,
)
from .evaluate_policy import PolicySampler as PolicySampler, Sampling as Sampling, sample_rollouts as sample_rollouts
from .evaluations import main_metric as main_metric
from .jobs import Job as Job, run_jobs as run_jobs
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
from .run_comparison import (
    compare_runs as compare_runs,
    print_compared as print_compared,
    write_compared as write_compared,
)
from .sft_run import SFTRun as SFTRun
