from .cases import Case as Case
from .planning import (
    global_names as global_names,
    names_of_tests as names_of_tests,
    with_names as with_names,
)
from .sandbox import (
    Result as Result,
    Sandbox as Sandbox,
    SandboxError as SandboxError,
    isolations as isolations,
    reason_not_to_run as reason_not_to_run,
    run_tests as run_tests,
)
