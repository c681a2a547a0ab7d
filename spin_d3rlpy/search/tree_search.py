"""Greedy descent and beam search in BraVE's tree, of all rows of a batch at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spin_d3rlpy._compat import is_exporting
from spin_d3rlpy.search.tree import ActionTree

# Values of nodes `(R,)` in the states of rows `(R,)`, and of their children: `(R, 1 + C)`.
Evaluate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def greedy_descent(tree: ActionTree, evaluate: Evaluate, n_rows: int) -> torch.Tensor:
    """Returns the nodes `(B,)` where a descent from the root ends, as BraVE's targets take them.

    It goes to the child of the largest branch value, and ends at a logged action whose own value is
    at least as large, or where there are no children.
    """
    nodes = torch.zeros(n_rows, dtype=torch.int64, device=tree.parents.device)
    rows = torch.arange(n_rows, device=nodes.device)
    for _ in range(tree.depth):
        here = nodes.index_select(0, rows)
        outputs = evaluate(rows, here)
        best, place = tree.branch_values(here, outputs).max(1)
        ends = tree.is_logged[here] & (outputs[:, 0] >= best) | (tree.n_children[here] == 0)
        nodes = nodes.index_copy(
            0, rows, torch.where(ends, here, tree.first_children[here] + place)
        )
        if may_wait(nodes):  # elsewhere those that have ended are evaluated again, and stay
            rows = rows[~ends]
            if len(rows) == 0:
                break
    return nodes


def beam_search(tree: ActionTree, evaluate: Evaluate, n_rows: int, width: int) -> torch.Tensor:
    """Returns the nodes `(B,)` of the largest values that a beam search finds, as BraVE acts.

    At most `width` nodes are kept, at first the root. Those not yet explored are, in the order in
    which they came: the node's value becomes its own, and its children of the `width` largest
    branch values are kept; where there is no room they replace the least valued ones, explored or
    not. (In the published code a logged node's own value competes for these places. That changes
    nothing: a child that it excludes is worth less than `width` kept nodes.)

    Kept nodes are explored level by level, because a child comes after all of its parent's level.
    """
    device = tree.parents.device
    kept = torch.full((n_rows, width), -1, device=device)  # nodes; -1 is no node
    kept[:, 0] = 0
    values = torch.full((n_rows, width), -torch.inf, device=device)
    last = width * width  # comes after all nodes that wait
    turns = torch.where(kept == 0, 0, last)  # when each is explored
    for level in range(tree.depth + 1):
        n_waiting = 1 if level == 0 else width
        turn, order = turns.sort(dim=1)
        is_waiting = turn[:, :n_waiting] < last
        if may_wait(kept) and not bool(is_waiting.any()):
            break
        queue = kept.gather(1, order[:, :n_waiting])
        outputs = outputs_where(is_waiting, evaluate, queue.clamp(min=0))
        turns = torch.full_like(turns, last)
        for i in range(n_waiting):
            node, own = queue[:, i].clamp(min=0), outputs[:, i, 0]
            is_it = (kept == node[:, None]) & is_waiting[:, i, None]  # nowhere if it was replaced
            values = torch.where(is_it, own[:, None], values)
            branches = tree.branch_values(node, outputs[:, i])
            best, place = branches.topk(min(width, branches.shape[1]), dim=1)
            enters = (best > -torch.inf) & is_it.any(1, keepdim=True)
            children = tree.first_children[node][:, None] + place
            values = torch.cat([torch.where(enters, best, -torch.inf), values], dim=1)
            kept = torch.cat([torch.where(enters, children, -1), kept], dim=1)
            ranks = torch.arange(best.shape[1], device=device)
            turns = torch.cat([torch.where(enters, i * width + ranks, last), turns], dim=1)
            values, stays = values.topk(width, dim=1)  # a stable sort is not for ONNX
            kept, turns = kept.gather(1, stays), turns.gather(1, stays)
    return kept.gather(1, values.argmax(1, keepdim=True))[:, 0]


def outputs_where(is_wanted: torch.Tensor, evaluate: Evaluate, nodes: torch.Tensor) -> torch.Tensor:
    """Returns the outputs `(B, P, 1 + C)` of nodes `(B, P)`, where they are wanted `(B, P)`.

    The others' are any finite numbers: 0, or where a step must not wait for the device what it
    computes for them, too.
    """
    n_rows, places = nodes.shape
    rows = torch.arange(n_rows, device=nodes.device)[:, None].expand(-1, places).flatten()
    found: torch.Tensor
    if not may_wait(nodes):
        found = evaluate(rows, nodes.flatten()).unflatten(0, (-1, places))
        return found
    chosen = is_wanted.flatten().nonzero()[:, 0]
    outputs = evaluate(rows[chosen], nodes.flatten()[chosen])
    everywhere = outputs.new_zeros(n_rows * places, outputs.shape[1])
    found = everywhere.index_copy(0, chosen, outputs).unflatten(0, (n_rows, places))
    return found


def may_wait(x: torch.Tensor) -> bool:
    """Whether the host may ask for values: not of a GPU, nor where a call becomes a file."""
    return x.device.type == "cpu" and not is_exporting()
