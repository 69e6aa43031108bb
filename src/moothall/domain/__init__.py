"""The domain: frozen data and pure functions. Nothing here reads or writes anything."""
