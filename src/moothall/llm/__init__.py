"""OpenAI-compatible chat servers: the client, and the small local model."""
