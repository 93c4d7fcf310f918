"""Measures of trained models, for studies and as verbs of ``mae-lm``.

``measure`` is the base of measures, which ``registry`` names: ``evaluation``, ``rank``, ``exclusivity``, ``probe``,
``minimal_pairs``, ``retrieval``, and ``seconds`` of the training's log. They read models by ``readers``; some keep
second moments, ``kept_moments``. ``figures`` and ``rank_figures`` plot. ``verb`` makes a verb of a measure.
"""
