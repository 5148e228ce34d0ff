"""One pass of policy and reference over a batch of rollouts, in pieces that fit into memory."""

from typing import Any, Literal

from text2grad.models import PolicyWithValue, Scores, TokenBatch
from text2grad.rl.piece_sizes import PieceSizes


def score_batch(
    model: PolicyWithValue,
    reference: Any,
    batch: TokenBatch,
    sizes: PieceSizes,
    *,
    temperature: float,
    kl: Literal["k1", "full"],
) -> Scores:
    """Return log π_old, log π_ref, KL, entropy and V of a batch; rows of similar length share a forward pass.

    The first piece comes last: its pass may stay in `sizes` for the update (`PieceSizes.keeps`).
    """

    def in_pieces() -> Scores:
        full = Scores.zeros(batch.response_mask.shape, batch.ids.device)
        (read, groups), sizes.kept = sizes.pieces(batch), None
        for number, index in reversed(list(enumerate(groups))):
            learns = sizes.keeps and number == 0
            part = model.score(read.rows(index), reference, temperature=temperature, kl=kl, learns=learns)
            sizes.kept = (index, part) if learns else None
            for whole, piece in zip(full, part, strict=True):
                rows = (index, slice(piece.shape[1])) if piece.ndim == 2 else index
                whole[rows] = piece.detach()
        return full

    return sizes.in_micro_batches(batch, in_pieces)
