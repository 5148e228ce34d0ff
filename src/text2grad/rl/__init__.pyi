from .advantages import gae as gae, whiten as whiten
from .checkpoint import latest_checkpoint as latest_checkpoint
from .metrics import correlation as correlation, response_records as response_records
from .nl_gradient import nl_gradient_loss as nl_gradient_loss
from .ppo import policy_loss as policy_loss, value_loss as value_loss
from .rewards import reward_tensor as reward_tensor
from .trainer import Text2GradTrainer as Text2GradTrainer, prepare_policy as prepare_policy
