"""The commands of `text2grad`, one module each: `add_parser(subparsers)` and `run(args) -> int`.

May import: `text2grad_sandbox`, `errors`, `types`, `files`, `progress`, `costs`, `config`, `feedback`, `align`,
`models`, `critics`, `reward_models`, `rl`, `tasks`, `evaluation`, `runs`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
