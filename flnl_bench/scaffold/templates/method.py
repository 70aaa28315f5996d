"""The method example, as changes of FedAvg."""

import torch.nn.functional as F
from torch import Tensor

from flnl_bench import Batch, Client, Method, Model, Share, hookimpl

flnl_api = 2  # the version of flnl-bench's plugin API that this is written for


class Example(Method):
    """Cross-entropy to a blend of the given label and the model's own prediction."""

    name = "example"
    reference = "Reed et al., Training Deep Neural Networks on Noisy Labels with Bootstrapping, 2014"

    trust: Share = 0.8  # share of the given label

    def loss(self, model: Model, batch: Batch, client: Client) -> Tensor:
        """One value per image."""
        logits = model(batch.x)
        own = F.cross_entropy(logits, logits.detach().argmax(1), reduction="none")
        given = F.cross_entropy(logits, batch.y, reduction="none")
        return self.trust * given + (1 - self.trust) * own


@hookimpl
def flnl_register_methods() -> list[type[Method]]:
    """What this plugin adds."""
    return [Example]
