from .annotation import (
    ANSWERED as ANSWERED,
    AnnotationResult as AnnotationResult,
    Annotator as Annotator,
    Item as Item,
    add_test_outcomes as add_test_outcomes,
    read_reply as read_reply,
)
from .cached_client import (
    CachedClient as CachedClient,
    Failure as Failure,
    Request as Request,
    ResponseFormat as ResponseFormat,
)
from .client import Prompt as Prompt
from .forecast import (
    ANSWER_TOKENS as ANSWER_TOKENS,
    expected_expense as expected_expense,
    refuse_beyond_budget as refuse_beyond_budget,
)
from .llm_critic import LLMCritic as LLMCritic, ServerCritic as ServerCritic
from .pace import Usage as Usage
from .preference import (
    Comparison as Comparison,
    Preference as Preference,
    Side as Side,
    prefer as prefer,
    questions as questions,
)
from .session import run_session as run_session
from .store import Answer as Answer, Store as Store, hash_of as hash_of
from .templates import Template as Template
