"""The federated engine: views, local training, evaluation and the federation of clients."""
