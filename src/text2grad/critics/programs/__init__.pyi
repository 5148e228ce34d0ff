from .program_text import fenced_blocks as fenced_blocks, program_in as program_in
from .unit_tests import UnitTestCritic as UnitTestCritic
