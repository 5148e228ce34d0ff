from .__main__ import main as main, parser as parser
