from .runner import run_rival as run_rival
