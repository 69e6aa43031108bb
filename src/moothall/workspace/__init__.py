"""Where tools act: bases made ready, isolated checkouts of them opened, and what is asked in them
run.
"""
