"""`http.*` and `web.*`: the network."""
