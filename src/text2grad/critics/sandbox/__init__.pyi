from .sandbox import STRONG as STRONG, Sandbox as Sandbox, run_tests as run_tests, with_names as with_names
