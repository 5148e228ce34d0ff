"""Annotation by a language model on a server: questions, answers that are paid for once, and what becomes of them.

templates   an example and a response → the messages that ask for a critique
store       every answer, on disk before anything uses it
pace        how many requests at once, and how much they may cost
client      one request to an OpenAI-compatible server
asking      a question → its answer, from the store or from the server, with retries
judging     an answer → a critique, its quotes checked; asked again where that was wished for
items       a recipe → what is to be judged
critic      the same as a critic of the training loop
reward_server    a reward model that was trained here, written by a server
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
