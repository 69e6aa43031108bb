"""What the words mean. Frozen data and pure functions; nothing here reads or writes anything."""
