"""Ranking losses for the detectors of other libraries: one call makes a model train by ranking.

``torchvision`` for RetinaNet, FCOS, SSD and SSDLite, ``transformers`` for the DETR family, ``ultralytics`` for YOLO,
and ``rfdetr`` for RF-DETR. Each module needs its library; this package imports none of them.
"""
