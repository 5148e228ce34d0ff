from .advantages import (
    advantages_over_baseline as advantages_over_baseline,
    discounts as discounts,
    gae as gae,
    group_advantages as group_advantages,
    whiten as whiten,
)
from .conversations import turn_of as turn_of
from .evaluation import (
    EVALUATION_SEED as EVALUATION_SEED,
    held_out_responses as held_out_responses,
    own_held_out as own_held_out,
)
from .instruments import register_instrument as register_instrument
from .metrics import (
    cornered_share as cornered_share,
    correlation as correlation,
    response_records as response_records,
    said_nothing as said_nothing,
    warning_of_corners as warning_of_corners,
)
from .nl_gradient import nl_gradient_loss as nl_gradient_loss, total_rewards as total_rewards
from .optimizers import ADAM_BETAS as ADAM_BETAS, ADAM_EPS as ADAM_EPS
from .outside_judge import JudgedIds as JudgedIds, OutsideJudge as OutsideJudge, single_turn as single_turn
from .piece_sizes import PieceSizes as PieceSizes
from .ppo import kl_loss as kl_loss, policy_loss as policy_loss, value_loss as value_loss
from .rewards import rewards_of as rewards_of
from .rollouts import chosen_examples as chosen_examples
from .run_log import RunLog as RunLog
from .scoring import score_batch as score_batch
from .start import check_shares as check_shares, prepare_policy as prepare_policy
from .step import Step as Step, observed as observed, phase as phase
from .tool_calls import read_turn as read_turn
from .toolbox import Toolbox as Toolbox
from .trackers import check_tracker as check_tracker
from .trainer import Text2GradTrainer as Text2GradTrainer
from .update import PPOBatch as PPOBatch
