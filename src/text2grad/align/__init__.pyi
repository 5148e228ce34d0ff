from .delta import AlignSettings as AlignSettings, pseudo_rewards as pseudo_rewards, span_tokens as span_tokens
from .offsets import Range as Range, token_offsets as token_offsets
from .pieces import PieceTable as PieceTable, added_tokens as added_tokens
from .rollouts import policy_offsets as policy_offsets, response_deltas as response_deltas, step_ends as step_ends
from .texts import encode as encode, move_spans as move_spans, text_delta as text_delta, text_offsets as text_offsets
from .weighting import WEIGHTINGS as WEIGHTINGS, resolve as resolve
