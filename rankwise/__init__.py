"""Object detectors trained by ranking: exact pairwise ranking losses, pair selection, detectors and their training."""

__version__ = "0.1.0"
