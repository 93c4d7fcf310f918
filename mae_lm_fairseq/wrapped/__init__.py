"""Encoders of ``transformers`` that are not converted into this package's network but used as they are."""
