from .program_text import fenced_blocks as fenced_blocks
from .ruff_critic import RuffCritic as RuffCritic
from .unit_tests import UnitTestCritic as UnitTestCritic
