from .annotation_items import endpoint_values as endpoint_values, items_of as items_of
from .comparison import collect as collect, print_comparison as print_comparison, write_comparison as write_comparison
from .evaluate_policy import sample_by_recipe as sample_by_recipe
from .jobs import Job as Job, run_jobs as run_jobs
from .methods import (
    COMPARED as COMPARED,
    EARLIER_NAMES as EARLIER_NAMES,
    METHODS as METHODS,
    NEEDS as NEEDS,
    last_figures as last_figures,
    method_directory as method_directory,
    method_job as method_job,
    settings as settings,
    steps_made as steps_made,
)
from .pipeline import Pipeline as Pipeline
from .recipe_run import learned_critic as learned_critic, main_metric as main_metric, run_recipe as run_recipe
from .rehearsal import SHOWN as SHOWN, rehearse as rehearse, summary as summary
