"""Ranking losses for detectors of other libraries: one call makes a model train by ranking.

``rankwise.integrations.torchvision`` for RetinaNet, FCOS, SSD and SSDLite, ``rankwise.integrations.transformers`` for
the DETR family. Nothing is imported here: a library is only needed by its own module.
"""
