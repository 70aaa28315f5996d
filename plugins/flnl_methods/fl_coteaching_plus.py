"""FL-Coteaching+: the two networks choose small losses among the samples on which they disagree.

Yu, Han, Yao, Niu, Tsang, Sugiyama. "How does Disagreement Help Generalization against Label Corruption?".
ICML 2019; in a federation as in FNBench.

Symbols: T_d rounds of plain Co-teaching, D samples of a batch that the networks classify differently. Where
D is empty, both networks train on the whole batch. Choices: docs/methods.md.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import Batch, Beliefs, Client, Range, Server, State, Terms
from flnl_bench.numerics import bounded_cross_entropy, kept_count, mean_of_kept, small_loss
from flnl_methods.fl_coteaching import FLCoteaching


class FLCoteachingPlus(FLCoteaching):
    """Co-teaching among disagreements, from round T_d on."""

    disagree_from: Annotated[int, Range()] | None = None  # T_d; None: a tenth of the rounds, 1 to 10
    empty: Literal["all", "small", "skip"] = (
        "all"  # batches without disagreement: all samples, small losses, none
    )
    double_softmax: bool = False  # the authors' code feeds probabilities into a softmax

    def first_round(self, terms: Terms) -> int:
        """T_d."""
        return (
            min(10, max(1, round(0.1 * terms.rounds))) if self.disagree_from is None else self.disagree_from
        )

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """Also the counts that are kept of 0, 1, … disagreements, and the sums that are recorded."""
        super().on_receive(model, client)
        client.state["disagreement"] = None
        if client.round < self.first_round(client.terms):
            return
        counts = [kept_count(size, client.scratch["forget"]) for size in range(client.terms.batch_size + 2)]
        client.scratch["counts"] = torch.tensor(counts, device=client.y.device)
        client.state["judged"] = True
        # Batches, their shares of disagreements, and how many have none.
        client.state["disagreement"] = torch.zeros(3, device=client.y.device)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """L_1 + L_2, each the mean over what the other network keeps."""
        if "counts" not in client.scratch:
            return super().loss(model, batch, client)
        logits = [net(batch.x) for net in model.children()]
        l_1, l_2 = (self.losses(z, batch.y) for z in logits)
        first, second = (z.argmax(1) for z in logits)
        apart = first != second  # D
        number = apart.sum()
        count = client.scratch["counts"].gather(0, number.view(1))  # a single index would wait for the device
        i_1, i_2 = (smallest_among(losses, apart, count) for losses in (l_1, l_2))
        client.state["kept"][batch.index] = torch.stack((i_1 | ~apart, i_2 | ~apart), dim=1)
        none = number == 0
        client.state["disagreement"] += torch.stack([torch.ones_like(number), number / len(apart), none])
        if self.empty == "skip":
            client.held.update({"first": none, "second": none})
        elif self.empty == "all":
            i_1, i_2 = i_1 | none, i_2 | none
        else:
            few = kept_count(len(apart), client.scratch["forget"])
            i_1, i_2 = (i | (none & small_loss(loss, few)) for i, loss in ((i_1, l_1), (i_2, l_2)))
        return mean_of_kept(l_1, i_2) + mean_of_kept(l_2, i_1)

    def losses(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy per example."""
        if self.double_softmax:
            return bounded_cross_entropy(logits.softmax(1), y)
        return F.cross_entropy(logits, y, reduction="none")

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """Clean is, in the client's last epoch, what at least one network kept or both classify alike."""
        if state["disagreement"] is None:
            return super().beliefs(server, client_id, state)
        batches, shares, empty = state["disagreement"].tolist()
        numbers = {"disagreement": shares / batches, "empty_batches": empty / batches} if batches else {}
        return Beliefs(clean=state["kept"].any(1), numbers=numbers)


def smallest_among(losses: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """Return a mask [B] of the `count` smallest losses of some samples; the first of equal losses wins."""
    order = torch.where(among, losses.detach(), math.inf).argsort(stable=True)
    ranks = order.argsort(stable=True)
    return (ranks < count) & among
