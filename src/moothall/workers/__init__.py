"""Ray places, supervises and restarts the hosts; the work itself travels over the bus. The only
import of ray.
"""
