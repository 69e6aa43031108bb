"""Answers issues of a forge with pull requests: the forge's API client, its webhooks, and the
watch.
"""
