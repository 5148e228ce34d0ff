from .annotation import (
    ANSWERED as ANSWERED,
    Annotator as Annotator,
    Item as Item,
    Judged as Judged,
    add_test_outcomes as add_test_outcomes,
    read_answer as read_answer,
    with_word_of_people as with_word_of_people,
)
from .cached_client import (
    ANSWER_TOKENS as ANSWER_TOKENS,
    CachedClient as CachedClient,
    Request as Request,
    ResponseFormat as ResponseFormat,
    expected_expense as expected_expense,
    refuse_beyond_budget as refuse_beyond_budget,
    unusable as unusable,
)
from .client import Prompt as Prompt
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
from .templates import Template as Template, fill as fill
