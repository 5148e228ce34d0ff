from .annotation import (
    ANSWERED as ANSWERED,
    AnnotationResult as AnnotationResult,
    Annotator as Annotator,
    Failure as Failure,
    Item as Item,
    Question as Question,
    Reply as Reply,
    collect_critiques as collect_critiques,
    numbered_items as numbered_items,
    read_answer_by as read_answer_by,
    reply as reply,
)
from .cached_client import (
    CachedClient as CachedClient,
    ResponseFormat as ResponseFormat,
    Usage as Usage,
)
from .endpoint import Endpoint as Endpoint, Spending as Spending, make_values as make_values
from .forecast import (
    ANSWER_TOKENS as ANSWER_TOKENS,
    expected_expense as expected_expense,
    refuse_beyond_budget as refuse_beyond_budget,
)
from .llm_critic import LLMCritic as LLMCritic
from .pace import Budget as Budget
from .preference import (
    Comparison as Comparison,
    Preference as Preference,
    Side as Side,
    prefer as prefer,
    questions as questions,
)
from .session import AnnotationSession as AnnotationSession, run_session as run_session
from .store import (
    Answer as Answer,
    Prompt as Prompt,
    Store as Store,
    hash_of as hash_of,
)
from .templates import Template as Template
from .unit_test_outcomes import add_test_outcomes as add_test_outcomes
