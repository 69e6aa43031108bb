"""Print the path of the weights of the embedded model; download them if they are missing. Run it in
the environment of Moothall.
"""

import asyncio

from moothall.llm.weights import fetch_weights
from moothall.settings import load_settings

if __name__ == "__main__":
    settings = load_settings()
    print(asyncio.run(fetch_weights(settings.llm, settings.data_dir, lambda _done, _all: None)))
