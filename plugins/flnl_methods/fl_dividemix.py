"""FL-DivideMix: two networks judge each other's labels by loss and train on the verdict with MixMatch.

Li, Socher, Hoi. "DivideMix: Learning with Noisy Labels as Semi-supervised Learning". ICLR 2020; inside
FedAvg as the FedGR paper (ICML 2026) runs it. After a warm-up, in every local epoch, a mixture over each
network's losses splits the client's data. The peer's split teaches a network: labels judged clean are
refined, the others are guessed by both. Each network is averaged with its own kind.

Symbols: t round, W warm-up rounds, L ramp-up rounds, w clean posterior, X / U labelled / unlabelled
rows (w > p_th / the rest), b / u their numbers in a batch, T temperature, l MixUp factor.

What is unconfirmed: docs/methods.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Method,
    NotNegative,
    Positive,
    Range,
    Server,
    Share,
    State,
    Step,
    Terms,
)
from flnl_bench.numerics import (
    clean_posterior,
    linear_ramp,
    mixed,
    sharpen,
    soft_cross_entropy,
    uniform_penalty,
)

PAIRS = (("net1", "net2"), ("net2", "net1"))  # who trains, and its peer, in the order of training
FEWEST = 10  # samples from which a mixture is fitted


class FLDivideMix(Method):
    """Warm up, divide by the losses, then MixMatch on the peer's split."""

    name = "fl-dividemix"
    reference = "Li et al., DivideMix: Learning with Noisy Labels as Semi-supervised Learning, ICLR 2020"
    version = 2  # last bits: mixtures, and the passes of the peer
    members = ("net1", "net2")

    warmup_share: Share = 0.2  # W as a share of all rounds
    ramp_rounds: Annotated[int, Range(1)] = 16  # L at most
    ramp_share: Share = 0.1  # L as a share of all rounds, where these are few
    least_rounds: Annotated[int, Range(1)] = 3  # of W and of L
    lambda_u: NotNegative = 25.0  # λ_u, final weight of the unlabelled loss
    temperature: Positive = 0.5  # T of sharpening
    alpha: Positive = 4.0  # of Beta(α, α), which the MixUp factor is drawn from
    threshold: Share = 0.5  # p_th, posterior above which a label counts as clean
    # The authors of FedGR fit the mixture to losses of augmented images (here one draw a round),
    # DivideMix's of plain ones.
    gmm_loss_aug: bool = False
    # Where X or U is empty: cross-entropy for this network and epoch, or as the authors of FedGR do,
    # both networks back to the global weights and through a whole warm-up round (there with new
    # optimisers; here the momentum stays).
    gmm_fallback: Literal["one_epoch", "reset_warmup"] = "one_epoch"

    # -- schedule ----------------------------------------------------------------------------------
    def warmup(self, terms: Terms) -> int:
        """W, the number of warm-up rounds."""
        return max(self.least_rounds, round(self.warmup_share * terms.rounds))

    def ramp(self, terms: Terms) -> int:
        """L, the number of rounds in which λ rises."""
        return min(self.ramp_rounds, max(self.least_rounds, round(self.ramp_share * terms.rounds)))

    def unlabelled_weight(self, terms: Terms, t: float) -> float:
        """λ(t) = λ_u · clip((t − W) / L, 0, 1)."""
        return self.lambda_u * linear_ramp(t, self.warmup(terms), self.ramp(terms))

    # -- two networks ------------------------------------------------------------------------------
    def build(self, new_net: Callable[[], nn.Module]) -> nn.Module:
        """Two networks with initial weights of their own."""
        return nn.ModuleDict({own: new_net() for own, _ in PAIRS})

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The sum of both networks' logits."""
        logits: Tensor = model.get_submodule("net1")(x) + model.get_submodule("net2")(x)
        return logits

    def views(self) -> tuple[str, ...]:
        """Two weak views; the warm-up uses the first."""
        return ("weak", "weak")

    # -- a round on a client -----------------------------------------------------------------------
    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """Warm-up steps, or in each epoch two verdicts and then a portion for each network."""
        if client.round < self.warmup(client.terms):
            yield client.steps()
            return
        penalties: list[Tensor] = []
        given = F.one_hot(client.y, client.terms.classes).float()
        client.scratch.update(given=given, penalties=penalties)
        one_sided = 0
        for _ in range(client.epochs):
            verdicts = self.judge(model, client)
            client.state["clean_probability"] = agreed(verdicts)
            for own, peer in PAIRS:
                model.get_submodule(own).train()
                model.get_submodule(peer).eval()
                w = verdicts[peer]
                if w is not None and 0 < np.sum(w > self.threshold) < client.size:
                    yield self.mixmatch_steps(own, peer, w, client)
                else:
                    one_sided += 1
                    yield self.fallback_steps(own, model, client)
        numbers = {"one_sided_splits": one_sided / (2 * client.epochs)}
        if penalties:
            numbers["uniform_penalty"] = torch.stack(penalties).mean().item()
        client.state["numbers"] = numbers

    def judge(self, model: nn.Module, client: Client) -> dict[str, np.ndarray | None]:
        """w of each network on all own samples; None where there is nothing to divide."""
        model.eval()
        networks = [model.get_submodule(own) for own, _ in PAIRS]

        def look(batch: Batch) -> tuple[Tensor, ...]:
            return tuple(F.cross_entropy(net(batch.x), batch.y, reduction="none") for net in networks)

        losses = client.map(look, views=("weak" if self.gmm_loss_aug else "plain",))
        client.state["losses"] = torch.stack(losses).mean(0)  # for the recorder alone
        return {
            own: clean_posterior(loss.cpu().numpy()) if client.size >= FEWEST else None
            for (own, _), loss in zip(PAIRS, losses, strict=True)
        }

    def mixmatch_steps(self, own: str, peer: str, w: np.ndarray, client: Client) -> list[Step]:
        """One epoch over X together with batches of U, which start again when they are used up."""
        client.scratch["w"] = torch.from_numpy(w).float().to(client.y.device)
        clean = w > self.threshold
        labelled, unlabelled = np.flatnonzero(clean), np.flatnonzero(~clean)
        iterations = len(labelled) // client.terms.batch_size + 1
        pairs = zip(client.steps(labelled, epochs=1), endless(client, unlabelled), strict=False)
        steps = []
        for i, (known, unknown) in enumerate(pairs):
            rows = np.concatenate([known.rows, unknown.rows])
            factor = client.rng.beta(self.alpha, self.alpha)
            note = {
                "trains": (own,),
                "peer": peer,
                "labelled": len(known.rows),  # b
                "lambda": self.unlabelled_weight(client.terms, client.round + i / iterations),
                "factor": max(factor, 1 - factor),  # l
                "order": torch.from_numpy(client.rng.permutation(2 * len(rows))),
            }
            steps.append(Step(rows, note))
        return steps

    def fallback_steps(self, own: str, model: nn.Module, client: Client) -> list[Step]:
        """Cross-entropy where the peer's split has only one side."""
        if self.gmm_fallback == "reset_warmup":
            model.load_state_dict(client.received.state_dict())
            model.train()
            return client.steps()
        return [Step(step.rows, {"trains": (own,)}) for step in client.steps(epochs=1)]

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Cross-entropy of the networks that train, or MixMatch's loss of the whole batch."""
        if "labelled" in batch.note:
            return self.mixmatch(model, batch, client)
        networks = [model.get_submodule(name) for name in batch.note.get("trains", ("net1", "net2"))]
        losses = [F.cross_entropy(net(batch.x), batch.y, reduction="none") for net in networks]
        return torch.stack(losses).sum(0)

    def mixmatch(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Co-guess, co-refine, mix; L_X + λ(t)·L_U + penalty, as one value."""
        note = batch.note
        b, factor, order = note["labelled"], note["factor"], note["order"]
        net, peer = model.get_submodule(note["trains"][0]), model.get_submodule(note["peer"])
        x, u = [view[:b] for view in batch.views], [view[b:] for view in batch.views]
        q = sharpen((mean_prediction(net, u) + mean_prediction(peer, u)) / 2, self.temperature)
        p, rows = mean_prediction(net, x), batch.index[:b]
        r = sharpen(refine(client.scratch["given"][rows], p, client.scratch["w"][rows]), self.temperature)
        logits = net(mixed(torch.cat([*x, *u]), factor, order))  # [2b + 2u, C]
        target = mixed(torch.cat([r, r, q, q]), factor, order)
        loss_x, loss_u, penalty = semi_supervised_losses(logits, target, 2 * b)
        client.scratch["penalties"].append(penalty.detach())
        total: Tensor = loss_x + note["lambda"] * loss_u + penalty
        return total.unsqueeze(0)

    # -- for the recorder --------------------------------------------------------------------------
    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """The mean of both networks' posteriors in the last epoch; nothing where there was no split."""
        w = state.get("clean_probability")
        if w is None:
            return Beliefs(numbers=state.get("numbers", {}))
        clean = w > self.threshold
        return Beliefs(
            clean=clean,
            clean_probability=w,
            noise_ratio=float(1 - clean.mean()),
            numbers=state["numbers"],
            losses=state.get("losses"),
        )


def agreed(verdicts: Mapping[str, np.ndarray | None]) -> np.ndarray | None:
    """The mean of the posteriors of the networks that could divide the data; None if neither could."""
    found = [w for w in verdicts.values() if w is not None]
    return np.mean(found, axis=0) if found else None


def endless(client: Client, rows: np.ndarray) -> Iterator[Step]:
    """Shuffled batches of the rows, epoch after epoch."""
    while True:
        yield from client.steps(rows, epochs=1)


@torch.no_grad()
def mean_prediction(net: nn.Module, views: Sequence[Tensor]) -> Tensor:
    """The mean softmax over the views, which pass one by one as in the authors' code.

    In training mode these passes move the BatchNorm statistics, which is theirs too. A single image,
    which BatchNorm may not be able to train on, is looked at in evaluation mode.
    """
    if net.training and len(views[0]) > 1:
        return torch.stack([net(view).softmax(1) for view in views]).mean(0)
    training = net.training
    p = net.eval()(torch.cat(list(views))).softmax(1)  # in one pass, because nothing depends on their order
    net.train(training)
    mean: Tensor = p.unflatten(0, (len(views), -1)).mean(0)
    return mean


def refine(given: Tensor, predicted: Tensor, w: Tensor) -> Tensor:
    """w · given + (1 − w) · predicted, row by row."""
    return w.unsqueeze(1) * given + (1 - w).unsqueeze(1) * predicted


def semi_supervised_losses(logits: Tensor, target: Tensor, labelled: int) -> tuple[Tensor, Tensor, Tensor]:
    """L_X of the first rows, L_U of the others (mean over rows and classes), and the penalty of all."""
    loss_x = soft_cross_entropy(logits[:labelled], target[:labelled]).mean()
    loss_u = (logits[labelled:].softmax(1) - target[labelled:]).square().mean()
    return loss_x, loss_u, uniform_penalty(logits)
