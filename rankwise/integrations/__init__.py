"""Ranking losses in other libraries' detectors: one call turns a model into one that is trained by ranking.

``rankwise.integrations.torchvision`` for RetinaNet, FCOS, SSD and SSDLite, ``rankwise.integrations.transformers`` for
the DETR family. Nothing is imported here: a library is needed only where its own module is.
"""
