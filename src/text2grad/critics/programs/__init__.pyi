from .ruff_critic import RuffCritic as RuffCritic
from .unit_tests import UnitTestCritic as UnitTestCritic
