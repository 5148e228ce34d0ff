from .__main__ import main as main, parser as parser
from .options import add_command as add_command, at_least as at_least, print_lines as print_lines
