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
    """Return log π_old, log π_ref, KL, entropy and V of a batch; rows of similar length share a forward pass."""

    def in_pieces() -> Scores:
        full = Scores.zeros(batch.response_mask.shape, batch.ids.device)
        read, groups = sizes.pieces(batch)
        for index in groups:
            part = model.score(read.rows(index), reference, temperature=temperature, kl=kl)
            for whole, piece in zip(full, part, strict=True):
                if piece.ndim == 2:
                    whole[index, : piece.shape[1]] = piece
                else:
                    whole[index] = piece
        return full

    return sizes.in_micro_batches(batch, in_pieces)
