"""Critics that are language models on a server: prompt → answer, requested and paid for once → critique.

templates            an example and a response → the messages that request a critique
endpoint             values: the model and its address, prices and budget
store                every answer, on disk before it is used
pace                 how many requests run in parallel, and how much they may cost
client               one request to an OpenAI-compatible server
cached_client        a request → its answer, from the store or from the server, with retries; a session over many items
annotation           an answer → a critique with checked quotes; asked again on request
preference           two texts → the better one, judged in both orders
unit_test_outcomes   programs → the outcome of their unit tests, for the prompt
llm_critic           the same as a critic of a training run

May import `errors`, `types`, `files`, `feedback` and the rest of `critics`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
