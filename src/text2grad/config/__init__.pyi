from .critic import RewardConfig as RewardConfig
from .interruption import Interruption as Interruption, signals_interrupt as signals_interrupt
from .policy import (
    ModelConfig as ModelConfig,
    OptimConfig as OptimConfig,
    PPOConfig as PPOConfig,
    RolloutConfig as RolloutConfig,
)
from .recipe import (
    Recipe as Recipe,
    describe as describe,
    idle_settings as idle_settings,
    load_recipe as load_recipe,
    make_recipe as make_recipe,
    register_section as register_section,
)
from .run_directory import (
    BEST as BEST,
    all_checkpoints as all_checkpoints,
    best_checkpoint as best_checkpoint,
    changed_settings as changed_settings,
    check_directory as check_directory,
    check_world_size as check_world_size,
    digest_of as digest_of,
    latest_checkpoint as latest_checkpoint,
    open_run as open_run,
    read_best as read_best,
    recipe_of_run as recipe_of_run,
    step_of as step_of,
)
from .server import AnnotateConfig as AnnotateConfig, Endpoint as Endpoint, EngineConfig as EngineConfig
from .training import RewardModelConfig as RewardModelConfig, SFTConfig as SFTConfig
