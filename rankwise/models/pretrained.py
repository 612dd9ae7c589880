"""Locates ImageNet weights of a backbone: in the cache of the Hugging Face Hub, or on the Hub."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Literal

from timm.models import get_pretrained_cfg

#: Seconds within which the Hub must answer; its client would try for a minute.
PATIENCE = 3.0
_FILES = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Weights:
    """The location of weights.

    Attributes:
        kind: "cache" for a downloaded file, "hub" for one that can be downloaded, "none" for neither.
        file: The file in the cache.
        why: The reason for "none".
    """

    kind: Literal["cache", "hub", "none"]
    file: str = ""
    why: str = ""

    def __str__(self) -> str:
        return {"cache": f"from the Hub cache, {self.file}", "hub": "from the Hub", "none": self.why}[self.kind]


def locate(name: str) -> Weights:
    """Locates the ImageNet weights of a timm network, within ``PATIENCE`` seconds."""
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
            return Weights("none", why="HF_HUB_OFFLINE is set and they are not in the Hub cache")
    address = constants.ENDPOINT if config.hf_hub_id else str(config.url)
    if is_reachable(address):
        return Weights("hub")
    return Weights("none", why=f"{address} does not answer and they are not in the Hub cache")


def is_reachable(address: str, seconds: float = PATIENCE) -> bool:
    """Whether a server answers in time, through the proxy of the environment.

    The request runs in a thread, because a DNS lookup may exceed any timeout.
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
