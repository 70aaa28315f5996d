"""FedSIR: spectra of class features tell clean from noisy clients, and relabel samples of the noisy ones.

Gholami, Ali, Haghighi, Arafa, Alam. "FedSIR: Spectral Client Identification and Relabeling for Federated
Learning with Noisy Labels". arXiv 2604.20825, 2026. On noisy clients classes look alike, so their main
directions are close. Training is FedNoRo's: a logit-adjusted loss, distillation, and the distance-aware mean.

The paper's method section could not be read: it follows README and code of its authors. The spectra are in
spectra.py; choices, and what is unconfirmed: docs/methods.md.

Symbols: T0 rounds of FedAvg, a and e mean and mean square of the similarity of classes, w^c mean of the clean
clients' models, t' rounds of stage 3, Δ rounds between two refreshes, λ_t weight of distillation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl_bench import (
    Batch,
    Beliefs,
    Client,
    Federation,
    Method,
    Model,
    Positive,
    Range,
    Server,
    Share,
    State,
    Step,
    Terms,
    Update,
    Weights,
    copy_weights,
)
from flnl_bench.noisy_clients import distance_aware_average, rounds_before_detection
from flnl_bench.numerics import average, class_counts, is_finite, log_prior, two_gaussians
from flnl_more.spectra import RESIDUAL_ROWS, Spectrum, nearest_classes, reference, similarity, spectrum


class FedSIR(Method):
    """One spectral split of the clients, then relabelling by references of the clean ones (unconfirmed)."""

    name = "fedsir"
    reference = "Gholami et al., FedSIR: Spectral Client Identification and Relabeling, arXiv 2604.20825"
    variants = {"released": {"warmup_share": 0.0, "view": "weak", "provider_floor": 100}}

    warmup_share: Share = 0.1  # T0 as a share of all rounds, for features to begin with; 0: none
    identification_epochs: Annotated[int, Range(1)] = 5  # E1
    refresh_share: Share = 0.2  # Δ as a share of all rounds
    lambda_max: Share = 0.2  # a, weight of distillation after the ramp-up
    temperature: Positive = 0.8  # of the teacher alone
    class_floor: Annotated[int, Range(1)] = 20  # samples from which a class counts in the split
    provider_floor: Annotated[int, Range(1)] = 20  # samples from which a client decides on a reference
    view: Literal["plain", "weak"] = "plain"  # of the images of the split

    # -- schedule ----------------------------------------------------------------------------------
    def identification(self, terms: Terms) -> int:
        """The round in which all clients train alone and are split: T0."""
        return rounds_before_detection(self.warmup_share, terms) if self.warmup_share else 0

    def warmup(self, terms: Terms) -> int:
        """The rounds before stage 3."""
        return self.identification(terms) + 1

    def interval(self, terms: Terms) -> int:
        """Δ."""
        return max(1, round(self.refresh_share * terms.rounds))

    def distillation(self, since: int, terms: Terms) -> float:
        """λ_t in round t' of stage 3."""
        begin, end = round(0.02 * terms.rounds), round(0.49 * terms.rounds)
        if end <= begin:
            return self.lambda_max
        phase = 1 - (min(max(since, begin), end) - begin) / (end - begin)
        return self.lambda_max * math.exp(-5 * phase**2)

    # -- a round on the server ---------------------------------------------------------------------
    def server_state(self, server: Server) -> State:
        """The noisy and the undecided clients, w^c, and references while a refresh is under way."""
        return {"noisy": None, "undecided": [], "clean_mean": None, "references": None, "margin": {}}

    def round(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """FedAvg, the split, or a round of stage 3, maybe after a refresh."""
        since = server.round - self.warmup(server.terms)
        if since == -1:
            return self.identify(server, federation.train(range(server.terms.clients)))
        numbers: Mapping[str, float] = {}
        noisy = server.state["noisy"]
        if since > 0 and since % self.interval(server.terms) == 0 and noisy:
            numbers = self.refresh(server, federation)
        updates = federation.train(self.sample(server))
        server.weights = self.aggregate(server, updates)
        if since >= 0 and (clean := [u for u in updates if u.client not in noisy and is_finite(u.weights)]):
            server.state["clean_mean"] = average([u.weights for u in clean], [u.size for u in clean])
        return numbers

    def identify(self, server: Server, updates: Sequence[Update]) -> Mapping[str, float]:
        """Split the clients once; w and w^c become the mean of the clean clients' models."""
        sound = [u for u in updates if is_finite(u.weights)]
        known = [u for u in sound if u.message["similarity"].isfinite().all()]
        clean_chance = spectral_split(
            np.array([u.message["similarity"].tolist() for u in known]).reshape(-1, 2)
        )
        noisy = {u.client for u in updates} - {u.client for u in sound}
        failed = clean_chance is None
        if clean_chance is not None:
            noisy |= {u.client for u, chance in zip(known, clean_chance, strict=True) if chance < 0.5}
            server.state["margin"] = {
                u.client: float(abs(2 * chance - 1)) for u, chance in zip(known, clean_chance, strict=True)
            }
        server.state["noisy"] = sorted(noisy)
        server.state["undecided"] = sorted({u.client for u in sound} - {u.client for u in known})
        if clean := [u for u in sound if u.client not in noisy]:
            server.weights = average([u.weights for u in clean], [u.size for u in clean])
        server.state["clean_mean"] = copy_weights(server.weights)
        return {"noisy_clients": float(len(noisy)), "split_failed": float(failed)}

    def refresh(self, server: Server, federation: Federation) -> Mapping[str, float]:
        """Collect spectra of clean clients with w^c, and let noisy clients relabel with the references."""
        state, weights = server.state, server.weights
        server.weights = {name: w.to(weights[name]) for name, w in state["clean_mean"].items()}
        away = {*state["noisy"], *state["undecided"]}
        state["references"] = {}  # nothing goes down but w^c
        answers = federation.visit([k for k in range(server.terms.clients) if k not in away], self.spectra)
        state["references"], alone = self.agreed_references(server, answers)
        federation.visit(state["noisy"], self.relabel)
        server.weights, state["references"] = weights, None
        return {"fallback_references": float(alone)}

    def agreed_references(
        self, server: Server, answers: Mapping[int, Mapping[str, Any]]
    ) -> tuple[State, int]:
        """The references of all classes, and how many of them come from one client."""
        width = max((answer["dominant"].shape[1] for answer in answers.values()), default=1)
        rows, alone = torch.zeros(server.terms.classes, 1 + RESIDUAL_ROWS, width), 0
        of_class: dict[int, list[Spectrum]] = {}
        for answer in answers.values():
            residuals = answer["residual"].split(answer["rows"].tolist())
            parts = zip(
                answer["classes"].tolist(), answer["dominant"], residuals, answer["facts"], strict=True
            )
            for label, dominant, residual, facts in parts:
                of_class.setdefault(label, []).append(
                    Spectrum(dominant.double(), residual.double(), facts.double())
                )
        for label, spectra in of_class.items():
            if found := reference(spectra, self.provider_floor):
                rows[label], alone = found[0].to(rows), alone + found[1]
        return {"rows": rows}, alone

    def inbox(self, server: Server, client_id: int) -> Mapping[str, Any]:
        """What the phase needs: the split, references, or in stage 3 a flag and λ_t."""
        state, since = server.state, server.round - self.warmup(server.terms)
        if since < 0:
            return {"identify": True} if since == -1 else {}
        if state["references"] is not None:
            return state["references"] if client_id in state["noisy"] else {}
        return {"noisy": client_id in state["noisy"], "distillation": self.distillation(since, server.terms)}

    def aggregate(self, server: Server, updates: Sequence[Update]) -> Weights:
        """FedNoRo's DaAgg; FedAvg before the split."""
        return distance_aware_average(updates, set(server.state["noisy"] or [])) or server.weights

    # -- visits ------------------------------------------------------------------------------------
    def spectra(self, client: Client) -> Mapping[str, Any]:
        """The spectra of all classes of a clean client."""
        classes, found = class_spectra(features_of(client, client.received, "plain"), client.y)
        return {
            "classes": torch.tensor(classes),
            "dominant": torch.stack([one.dominant for one in found]).float(),
            "residual": torch.cat([one.residual for one in found]).float(),
            "rows": torch.tensor([len(one.residual) for one in found]),
            "facts": torch.stack([one.facts for one in found]).float(),
        }

    def relabel(self, client: Client) -> Mapping[str, Any]:
        """Take the class on which both criteria agree for the label; others get the given label again."""
        references = client.inbox["rows"].double().cpu()
        features = features_of(client, client.received, "plain")
        if features.shape[1] != references.shape[2]:  # no clean client answered
            return {}
        guess, agreed = (part.to(client.y.device) for part in nearest_classes(features, references))
        labels = torch.where(agreed, guess, client.y)
        client.state.update(labels=labels, agreed=agreed)
        return {}

    # -- a round on a client -----------------------------------------------------------------------
    def client_state(self, client: Client) -> State:
        """The given labels, which are never counted again, and the current ones."""
        return {"given": client.y, "labels": client.y.clone()}

    def plan(self, model: nn.Module, client: Client) -> Iterator[Sequence[Step]]:
        """E epochs; E1 for the split."""
        yield client.steps(epochs=self.identification_epochs if "identify" in client.inbox else None)

    def on_receive(self, model: nn.Module, client: Client) -> None:
        """The adjustment by the given labels. An absent class counts once: a corrected label may be of it."""
        counts = class_counts(client.y, client.terms.classes).clamp_min(1)
        agreed = client.state.get("agreed", torch.zeros_like(client.y, dtype=torch.bool))
        client.scratch.update(adjustment=log_prior(counts), distilled=~agreed)

    def loss(self, model: nn.Module, batch: Batch, client: Client) -> Tensor:
        """Cross-entropy, then LA; on noisy clients with current labels, and distillation of the others."""
        logits = model(batch.x)
        if "noisy" not in client.inbox:
            return F.cross_entropy(logits, batch.y, reduction="none")
        adjusted = logits + client.scratch["adjustment"]
        if not client.inbox["noisy"]:
            return F.cross_entropy(adjusted, batch.y, reduction="none")
        with torch.no_grad():
            teacher = client.received(batch.x) / self.temperature
        weights = client.inbox["distillation"] * client.scratch["distilled"][batch.index]
        return blended(adjusted, client.state["labels"][batch.index], teacher, weights)

    def upload(self, model: nn.Module, client: Client) -> Mapping[str, Any]:
        """For the split: how similar the main directions of classes are, with the client's own model."""
        if "identify" not in client.inbox:
            return {}
        features = features_of(client, model, self.view)
        if not features.isfinite().all():
            return {"similarity": torch.full((2,), torch.nan)}
        classes, found = class_spectra(features, client.y, self.class_floor)
        if len(classes) < 2:
            classes, found = class_spectra(features, client.y)
        if len(classes) < 2:
            return {"similarity": torch.full((2,), torch.nan)}
        return {"similarity": similarity(torch.stack([one.dominant for one in found])).float()}

    def beliefs(self, server: Server, client_id: int, state: State) -> Beliefs:
        """The split, and the current labels; nothing before the split."""
        noisy = server.state["noisy"]
        if noisy is None:
            return Beliefs()
        labels, given = state["labels"], state["given"]
        clean = labels == given
        margin = server.state["margin"].get(client_id)
        numbers = {"labels_changed": 1 - clean.float().mean().item()} | (
            {} if margin is None else {"margin": margin}
        )
        pseudo = None
        if "agreed" in state:
            pseudo = torch.where(state["agreed"], labels, -1)
            numbers["agreed"] = state["agreed"].float().mean().item()
        return Beliefs(
            noisy_client=client_id in noisy,
            labels=labels,
            pseudo_labels=pseudo,
            clean=clean,
            noise_ratio=numbers["labels_changed"],
            numbers=numbers,
        )


def features_of(client: Client, model: Model, view: str) -> Tensor:
    """Return the features of all samples of a client, float64 on the CPU."""
    features: Tensor = client.map(lambda batch: model.features(batch.x), views=(view,))
    return features.cpu().double()


def class_spectra(features: Tensor, y: Tensor, floor: int = 1) -> tuple[list[int], list[Spectrum]]:
    """Return the classes with at least so many samples, and their spectra."""
    labels, counts = y.cpu().unique(return_counts=True)
    classes = [int(label) for label, count in zip(labels, counts, strict=True) if count >= floor]
    return classes, [spectrum(features[y.cpu() == label]) for label in classes]


def spectral_split(statistics: np.ndarray) -> np.ndarray | None:
    """Return each client's chance to be clean, from a and e [K, 2]; None if there are no two groups.

    The clean component has the smaller mean of a: on noisy clients classes look alike.
    """
    if len(statistics) < 2 or np.ptp(statistics, axis=0).max() < 1e-9:
        return None
    scaled = (statistics - statistics.mean(0)) / (statistics.std(0) + 1e-12)
    fit = two_gaussians(scaled, max_iter=2000, n_init=30)
    chances: np.ndarray = fit.predict_proba(scaled)[:, fit.means_[:, 0].argmin()]
    return chances


def blended(adjusted: Tensor, labels: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """NLL + weight·(KL(teacher ‖ student) − NLL) per example, from adjusted logits of the student."""
    log_p, guide = F.log_softmax(adjusted, dim=1), F.log_softmax(teacher, dim=1)
    divergence = (guide.exp() * (guide - log_p)).sum(1)
    hard = F.nll_loss(log_p, labels, reduction="none")
    return hard + weights * (divergence - hard)
