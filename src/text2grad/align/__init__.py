"""Map the spans of a response to δ_t on each sampled token, for any tokenizer; imports the ground and feedback."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
