"""Nets in ONNX files: read as models of ``dsinga.nn``, and written for servers."""
