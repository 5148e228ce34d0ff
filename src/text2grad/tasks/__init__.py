"""Embedded tasks: small worlds with real semantics, made by construction and without downloads.

Each module holds one `Task`: prompts, noisy demonstrations, a programmatic critic that writes truthful
critiques with exact quotes, and a metric that the critic never sees. Nothing here imports torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
