"""Where tools act: trusted clones of repositories, and isolated checkouts of them."""
