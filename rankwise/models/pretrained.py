"""Where a backbone's ImageNet weights come from: the hub's cache, or the hub if it can be reached."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Literal

from timm.models import get_pretrained_cfg

#: Seconds within which the hub must answer; its own client would try for a minute.
PATIENCE = 3.0
_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Weights:
    """Where weights are.

    Attributes:
        kind: "cache" for a file that is here already, "hub" for one that can be fetched, "none" for neither.
        file: The file in the cache.
        why: What is missing, for "none".
    """

    kind: Literal["cache", "hub", "none"]
    file: str = ""
    why: str = ""

    def __str__(self) -> str:
        return {"cache": f"from the hub's cache, {self.file}", "hub": "from the hub", "none": self.why}[self.kind]


def locate(name: str) -> Weights:
    """Where the ImageNet weights of one of timm's networks are; it takes no longer than ``PATIENCE`` to find out.

    Args:
        name: timm's name of the network.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    config = get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url):
        return Weights("none", why=f"timm has no ImageNet weights for {name}")
    if config.hf_hub_id:
        for file in (config.hf_hub_filename,) if config.hf_hub_filename else _FILES:
            found = try_to_load_from_cache(config.hf_hub_id, file)
            if isinstance(found, str):
                return Weights("cache", found)
        if constants.HF_HUB_OFFLINE:
            return Weights("none", why="HF_HUB_OFFLINE is set and the hub's cache does not hold them")
    address = constants.ENDPOINT if config.hf_hub_id else str(config.url)
    if is_reachable(address):
        return Weights("hub")
    return Weights("none", why=f"{address} does not answer and the hub's cache does not hold them")


def is_reachable(address: str, seconds: float = PATIENCE) -> bool:
    """Whether a server answers, whatever it says, through the proxy that the environment names.

    Args:
        address: Its URL.
        seconds: How long to wait. A thread of its own asks, since looking up a name may take longer than any time-out.
    """
    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=seconds).close()
        except urllib.error.HTTPError:
            pass
        except (OSError, ValueError):
            return
        answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()
