"""The catalogue of tools: what each is called, takes, answers and may cost."""
