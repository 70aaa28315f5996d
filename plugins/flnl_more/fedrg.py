"""FedRG: clusters of self-supervised features tell which labels fit; a matrix absorbs the other ones.

Wen, Yang, Zhang, Jiang, Peng, Wang, Han. "FedRG: Unleashing the Representation Geometry for Federated
Learning with Noisy Clients". CVPR 2026. Stage I: SimCLR (Chen et al., ICML 2020) in a federation, without
labels; the test accuracy is chance. Stage II: each client keeps its own clusters (von_mises_fisher.py).

The paper's equations could not be read: "paper" is its abstract, its figure and the authors' README, and the
rest follows their code. Choices, and what is unconfirmed: docs/methods.md.

Symbols: h features, z¹, z² unit features of the weak and the strong view, s misfit of label and clusters, T
[C, C] noise absorption (row: true class, column: given label), L clusters, T1 rounds of stage I.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

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
    Server,
    Share,
    State,
    Terms,
    network_weights,
)
from flnl_bench.numerics import (
    is_finite,
    loss_mixture,
    mean_of_kept,
    reverse_cross_entropy,
    warmup_rounds,
)
from flnl_more.von_mises_fisher import misfit, moved, new_clusters, posterior, unit


class Absorption(nn.Module):
    """T, which a client learns and keeps."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(classes))

    @torch.no_grad()
    def normalise(self) -> None:
        """Make every row a distribution."""
        self.matrix.clamp_(min=1e-6)
        self.matrix.div_(self.matrix.sum(1, keepdim=True))


class FedRG(Method):
    """Labels that do not fit the clusters of their features are learnt through T (partly unconfirmed)."""

    name = "fedrg"
    reference = "Wen et al., FedRG: Unleashing the Representation Geometry for Noisy Clients, CVPR 2026"
    private = ("absorb",)
    variants = {"released": {"fit": "batch", "rows": "all", "halved": False}}

    warmup_share: Share = 0.3  # T1 as a share of all rounds; at least three and a visit of most clients
    temperature: Positive = 0.07  # of SimCLR
    lambda_s: NotNegative = 0.4  # weight of the symmetric cross-entropy of all samples
    lambda_n: NotNegative = 1.0  # weight of the absorbed loss of noisy samples
    fit: Literal["visit", "batch"] = "visit"  # clusters and split once a visit, or in every mini-batch
    rows: Literal["clean", "all"] = "clean"  # samples that move the clusters
    halved: bool = True  # half as many clusters as classes, above 20 classes

    def warmup(self, terms: Terms) -> int:
        """T1."""
        return warmup_rounds(self.warmup_share, terms)

    def clusters(self, classes: int) -> int:
        """L."""
        return classes // 2 if self.halved and classes > 20 else classes

    # -- three parts -------------------------------------------------------------------------------
    def views(self) -> tuple[str, ...]:
        """Both are used in stage I; stage II trains on the first one."""
        return ("weak", "strong")

    def build(self, new_net: Callable[[], nn.Module]) -> nn.Module:
        """The network, SimCLR's projector and T."""
        net: Any = new_net()
        width, classes = net.head.in_features, net.head.out_features
        projector = nn.Sequential(
            nn.Linear(width, 8 * width), nn.BatchNorm1d(8 * width), nn.ReLU(), nn.Linear(8 * width, 4 * width)
        )
        return nn.ModuleDict({"net": net, "projector": projector, "absorb": Absorption(classes)})

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The network's logits, without T."""
        logits: Tensor = model.get_submodule("net")(x)
        return logits

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """T = identity; clusters come with the first visit of stage II."""
        eye = torch.eye(client.terms.classes, device=client.y.device)
        return {"absorb": {"matrix": eye}, "given": client.y}

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """Stage II: fit the clusters and split the samples, with the received network."""
        if client.round < self.warmup(client.terms):
            return
        net: Any = model.get_submodule("net")
        everyone = torch.ones_like(client.y, dtype=torch.bool)
        clean = client.state.get("clean", everyone)
        known = client.state.get("clusters") or self.first_clusters(client, net.head.in_features)
        client.scratch.update(
            clusters=known, clean=clean.clone(), right=clean.float(), scores=1 - clean.float()
        )
        if self.fit == "visit":
            received: Any = client.received.get_submodule("net")
            first, second = client.map(
                lambda batch: tuple(unit(received.features(view)) for view in batch.views), views=self.views()
            )
            self.fit_visit(client, first, second)

    def first_clusters(self, client: Client, width: int) -> dict[str, Any]:
        """Clusters in random directions."""
        directions = client.rng.standard_normal((self.clusters(client.terms.classes), width))
        dtype = torch.get_default_dtype()
        return new_clusters(torch.from_numpy(directions).to(client.y.device, dtype), client.terms.classes)

    def fit_visit(self, client: Client, first: Tensor, second: Tensor) -> None:
        """E passes over stored features move the clusters; then one split of all samples."""
        scratch, y = client.scratch, client.y
        rows = scratch["clean"] if self.rows == "clean" else torch.ones_like(scratch["clean"])
        rows = rows | ~rows.any()  # all, where nothing is clean
        steps = client.steps(rng=client.rng)
        order = torch.from_numpy(np.concatenate([step.rows for step in steps])).to(y.device)  # copied once
        for at in order.split([len(step.rows) for step in steps]):
            gamma, clusters = posterior(scratch["clusters"], first[at], second[at])
            scratch["clusters"] = moved(clusters, gamma, first[at], y[at], rows[at], scratch["clean"][at])
        gamma, scratch["clusters"] = posterior(scratch["clusters"], first, second)
        scores = misfit(scratch["clusters"], gamma, y)
        scratch.update(scores=scores, right=right_chance(scores))
        scratch["clean"] = scratch["right"] >= 0.5

    def loss(self, model: Any, batch: Batch, client: Client) -> Tensor:
        """SimCLR's loss, or 0.4·SCE of all samples and −ln (pT)_y of noisy ones."""
        net, projector, absorb = model["net"], model["projector"], model["absorb"]
        if client.round < self.warmup(client.terms):
            return contrast(projector(net.features(torch.cat(batch.views))), self.temperature)
        features, logits = net.both(batch.x)
        if self.fit == "batch" and len(batch.y) > 1:
            with torch.no_grad():
                self.fit_batch(client, batch, unit(features), unit(net.features(batch.views[1])))
        noisy = ~client.scratch["clean"][batch.index]
        absorbed = absorbed_loss(logits, batch.y, absorb.matrix)
        symmetric = symmetric_cross_entropy(logits, batch.y)
        return self.lambda_s * symmetric + self.lambda_n * mean_of_kept(absorbed, noisy)

    def fit_batch(self, client: Client, batch: Batch, first: Tensor, second: Tensor) -> None:
        """Split a mini-batch and move the clusters; the mixture is fitted on the host, so steps wait."""
        scratch = client.scratch
        gamma, clusters = posterior(scratch["clusters"], first, second)
        scores = misfit(clusters, gamma, batch.y)
        right = right_chance(scores)
        clean = right >= 0.5
        rows = clean if self.rows == "clean" else torch.ones_like(clean)
        scratch["clusters"] = moved(clusters, gamma, first, batch.y, rows, clean)
        for name, values in (("scores", scores), ("right", right), ("clean", clean)):
            scratch[name][batch.index] = values.to(scratch[name].dtype)

    def on_step(self, model: nn.Module, client: Client) -> None:
        """Rows of T sum to one."""
        if client.round >= self.warmup(client.terms):
            absorb: Any = model.get_submodule("absorb")
            absorb.normalise()

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """Nothing; what a client has found stays there, unless its training diverged."""
        if "clusters" in client.scratch and is_finite(network_weights(model)):
            client.state.update(
                {name: client.scratch[name] for name in ("clusters", "clean", "right", "scores")}
            )
        return {}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """The last split; nothing before stage II."""
        if "clean" not in state:
            return Beliefs()
        clusters = state["clusters"]
        return Beliefs(
            clean=state["clean"],
            clean_probability=state["right"],
            losses=state["scores"],
            labels=state["given"],
            noise_ratio=1 - state["clean"].float().mean().item(),
            numbers={
                "absorption_diagonal": state["absorb"]["matrix"].diagonal().mean().item(),
                "mean_concentration": clusters["concentrations"].mean().item(),
                "background": clusters["background"].item(),
            },
        )


# -- losses --------------------------------------------------------------------------------------------
def contrast(projected: Tensor, temperature: float) -> Tensor:
    """NT-Xent of the first views [B] and the second views [B] below each other: one loss per pair."""
    u = F.normalize(projected, dim=1)
    size = len(u) // 2
    similar = (u @ u.T / temperature).masked_fill(
        torch.eye(len(u), dtype=torch.bool, device=u.device), -torch.inf
    )
    partners = torch.arange(len(u), device=u.device).roll(size)
    rows = F.cross_entropy(similar, partners, reduction="none")
    return (rows[:size] + rows[size:]) / 2


def symmetric_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """0.1·CE + reverse CE."""
    return 0.1 * F.cross_entropy(logits, y, reduction="none") + reverse_cross_entropy(logits, y, 1e-4)


def absorbed_loss(logits: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    """−ln (pT)_y."""
    return -((logits.softmax(1) * matrix.T[y]).sum(1) + 1e-12).log()


def right_chance(scores: Tensor) -> Tensor:
    """Return the posterior of the low component of a mixture over scores; 1 if there are no two groups."""
    fit = loss_mixture(scores.double().cpu().numpy())
    if fit is None:
        return torch.ones_like(scores)
    return torch.from_numpy(fit.clean_probability).to(scores)
