"""Rollouts as right-padded tensors, and the position of the hidden state that predicts each token.

Dimension key: B responses, S tokens of the longest row (padded), T response tokens (padded).

    position   0 … P−1      P …                                                              rest
    ids        prompt x     response y, and between its turns what the policy was given      padding
    y_t at position p_t is predicted by the hidden state at p_t − 1; the value before choosing y_t is read there too.

The response is what the policy sampled. In a single turn nothing is given, and p_t = P + t. Masks are made from
lengths, never from ids: padding may be a token that was sampled.

Responses to one prompt can share its forward pass (`shared_prefix`): then a pass costs G · P + B · (S − P) tokens for
G distinct prompts, instead of B · S.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from text2grad.errors import DataError
from text2grad.types import Given, Rollout

SHARING_PAYS = 0.8
"""Prompts are shared where that leaves at most this part of the tokens: the second pass costs time of its own."""


class TokenBatch(NamedTuple):
    """Right-padded rollouts.

    Attributes:
        ids: prompt, response and given ids, int64 [B, S].
        prompt_lengths: P of each row, int64 [B].
        response_ids: y, the sampled ids, int64 [B, T].
        response_mask: True on response tokens, bool [B, T].
        truncated: True if the length limit ended the response, bool [B].
        positions: place of each response token in `ids`, int64 [B, T]; the row's length outside the mask.
        lengths: tokens of each row, int64 [B].
        prompts: index of each row's prompt (equal prompts, equal indices) if rows may share a prefix; else empty.
    """

    ids: Tensor
    prompt_lengths: Tensor
    response_ids: Tensor
    response_mask: Tensor
    truncated: Tensor
    positions: Tensor
    lengths: Tensor
    prompts: tuple[int, ...] = ()

    @property
    def response_lengths(self) -> Tensor:
        """R of each row, int64 [B]."""
        return self.response_mask.sum(dim=1)

    def last_positions(self) -> Tensor:
        """Position of each row's last token, int64 [B]: the state after a truncated response."""
        return self.lengths - 1

    def at_predictors(self, hidden: Tensor) -> Tensor:
        """Return the hidden states that predict the response tokens, packed: [B, S, H] → [N, H]."""
        rows, steps = self.response_mask.nonzero(as_tuple=True)
        return hidden[rows, self.positions[rows, steps] - 1]

    def targets(self) -> Tensor:
        """Return the ids of the response tokens, packed, int64 [N]."""
        return self.response_ids[self.response_mask]

    def turn_ends(self) -> Tensor:
        """Return True on each response token that given ids follow, the last of its turn, bool [B, T]."""
        following = torch.cat([self.positions[:, 1:], self.lengths[:, None]], dim=1)
        return self.response_mask & (following != self.positions + 1)

    def unpack(self, packed: Tensor) -> Tensor:
        """Return [N] as [B, T], zero outside the mask."""
        full = torch.zeros(self.response_mask.shape, dtype=packed.dtype, device=packed.device)
        return full.masked_scatter(self.response_mask, packed)

    def groups(self, tokens: int) -> list[Tensor]:
        """Return row indices in groups, at most `tokens` padded tokens (or one row) in a forward pass each.

        Rows of one group have similar lengths. Rows with the same prompt stand together if they may share it, in one
        group if that pays and they fit.
        """
        sizes = self._sizes()
        if len(set(self.prompts)) < len(self.prompts):
            order = sorted(range(len(sizes)), key=lambda row: (sizes[row][0], self.prompts[row], sizes[row][1], row))
            units = [list(rows) for _, rows in groupby(order, key=self.prompts.__getitem__)]
        else:
            units = [[row] for row in sorted(range(len(sizes)), key=lambda row: (sum(sizes[row][:2]), row))]

        def cost(rows: Sequence[int]) -> Cost:
            return _cost([sizes[row] for row in rows])

        groups = list[list[int]]()
        for unit in units:
            of_unit = cost(unit)
            together = of_unit.shares_prompts and of_unit.tokens <= tokens
            for part in [unit] if together else [[row] for row in unit]:
                if not groups or cost([*groups[-1], *part]).tokens > tokens:
                    groups.append([])
                groups[-1] += part
        return [torch.tensor(group, device=self.ids.device) for group in groups]

    def cost(self) -> "Cost":
        """Return the cost of one forward pass over all rows."""
        return _cost(self._sizes())

    def _sizes(self) -> list[tuple[int, int, int | None]]:
        """Return of each row the tokens of the prompt and behind it, and the prompt's number if it may be shared."""
        numbers = self.prompts or [None] * len(self.ids)
        behind = self.lengths - self.prompt_lengths
        return list(zip(self.prompt_lengths.tolist(), behind.tolist(), numbers, strict=True))

    def rows(self, index: Tensor) -> "TokenBatch":
        """Return some rows, trimmed to the longest of them."""
        columns_s, columns_t = int(self.lengths[index].max()), int(self.response_lengths[index].max())
        return TokenBatch(
            self.ids[index, :columns_s],
            self.prompt_lengths[index],
            self.response_ids[index, :columns_t],
            self.response_mask[index, :columns_t],
            self.truncated[index],
            self.positions[index, :columns_t],
            self.lengths[index],
            tuple(self.prompts[row] for row in index.tolist()) if self.prompts else (),
        )


class Cost(NamedTuple):
    """The padded tokens of one forward pass, and whether prompts are shared in it."""

    tokens: int
    shares_prompts: bool


def _cost(sizes: Sequence[tuple[int, int, int | None]]) -> Cost:
    """Return the cost of a forward pass over rows of some sizes, see `TokenBatch._sizes`."""
    prompts, responses, numbers = zip(*sizes, strict=True)
    whole = len(sizes) * max(map(sum, zip(prompts, responses, strict=True)))
    distinct = len(sizes) if None in numbers else len(set(numbers))
    shared = distinct * max(prompts) + len(sizes) * max(responses)
    shares = distinct < len(sizes) and max(responses) > 0 and shared <= SHARING_PAYS * whole
    return Cost(shared if shares else whole, shares)


def collate(
    rollouts: Sequence[Rollout], *, pad_id: int, device: torch.device | str = "cpu", share_prompts: bool = False
) -> TokenBatch:
    """Return rollouts as one right-padded batch.

    Args:
        rollouts: at least one; every prompt has at least one token, since something must predict y_1.
        pad_id: any id of the vocabulary; padding changes no result.
        device: where the tensors go.
        share_prompts: equal prompts go through the model once; for models that can (`can_share_prompts`).

    Raises:
        DataError: if there are no rollouts or a prompt has no token.
    """
    if not rollouts:
        raise DataError("cannot make a batch of no rollouts")
    for row, rollout in enumerate(rollouts):
        if not rollout.prompt_ids:
            raise DataError(
                f"rollout {row} has an empty prompt: its first token has no predictor. "
                "Give the prompt a beginning-of-sequence token or some text."
            )
    response_ids = right_padded([r.response_ids for r in rollouts], pad_id)
    whole, places = zip(*map(_interleaved, rollouts), strict=True)
    counts, lengths = (torch.tensor(list(map(len, rows))) for rows in (places, whole))
    mask = torch.arange(response_ids.shape[1]) < counts[:, None]
    numbers: dict[tuple[int, ...], int] = {}
    return TokenBatch(
        ids=right_padded(whole, pad_id).to(device),
        prompt_lengths=torch.tensor([len(r.prompt_ids) for r in rollouts]).to(device),
        response_ids=response_ids.to(device),
        response_mask=mask.to(device),
        truncated=torch.tensor([r.truncated for r in rollouts]).to(device),
        positions=torch.where(mask, right_padded(places, 0), lengths[:, None]).to(device),
        lengths=lengths.to(device),
        prompts=tuple(numbers.setdefault(r.prompt_ids, len(numbers)) for r in rollouts) if share_prompts else (),
    )


def _interleaved(rollout: Rollout) -> tuple[list[int], list[int]]:
    """Return all ids of a rollout, and the places of the sampled ones among them."""
    ids, places, done = list(rollout.prompt_ids), list[int](), 0
    for place, given in (*rollout.given, Given(len(rollout.response_ids), ())):
        places += range(len(ids), len(ids) + place - done)
        ids += rollout.response_ids[done:place] + given
        done = place
    return ids, places


def left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of ids that end in the same column, and a mask that is 0 on padding; both int64 [B, longest]."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], dtype=torch.long, device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return ids, (torch.arange(width, device=device) >= width - lengths[:, None]).long()


def right_padded(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Return rows of ids that begin in the same column, int64 [B, longest]."""
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=pad_id)
