from .asking import Asker as Asker, Form as Form, Tally as Tally
from .client import check_server as check_server
from .judging import (
    Failure as Failure,
    Item as Item,
    Session as Session,
    Verdict as Verdict,
    read_answer as read_answer,
)
from .llm_critic import LLMCritic as LLMCritic, critiques_of as critiques_of, settings_of as settings_of
from .pace import Budget as Budget, Pace as Pace
from .preferring import Contest as Contest, Preference as Preference, PreferenceSession as PreferenceSession
from .store import Asked as Asked, Store as Store
from .tested import tested as tested
