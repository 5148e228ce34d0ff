from .annotation_items import (
    annotate_by_critic as annotate_by_critic,
    annotated_examples as annotated_examples,
    items_of as items_of,
)
from .attribution import explain as explain
from .comparison import collect as collect, quickstart_tables as quickstart_tables, write_comparison as write_comparison
from .critic_service import CriticServer as CriticServer
from .evaluate_policy import PolicySampler as PolicySampler
from .learned import contradictions as contradictions, lessons_in as lessons_in, weigh as weigh
from .lesson import Judged as Judged, give_lesson as give_lesson, read_judged as read_judged
from .lineage import Retraction as Retraction
from .metric import lower_is_better as lower_is_better
from .pipeline import Pipeline as Pipeline
from .prompts import recipe_task as recipe_task, run_examples as run_examples, world_of as world_of
from .publishing import check_push as check_push, push_to_hub as push_to_hub
from .raters import check_raters as check_raters
from .recipe_run import critic_of_run as critic_of_run, refreshed_critic as refreshed_critic, run_recipe as run_recipe
from .replay import LeftOut as LeftOut, compare_without as compare_without
from .run_comparison import (
    compare_runs as compare_runs,
    print_compared as print_compared,
    write_compared as write_compared,
)
from .sft_run import SFTRun as SFTRun
from .words import comment_of as comment_of
