"""A run's rollouts → the noise in its advantages, what its updates did, and single cases (`text2grad analyse`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
