"""What a study and the verbs of ``mae-lm`` measure of trained models.

``measure`` is the base of measures, which ``registry`` names: ``evaluation``, ``rank``, ``exclusivity``, ``probe``,
``minimal_pairs``, ``retrieval``, and ``seconds`` of the training's log. They read models by ``readers``; some keep
second moments, ``kept_moments``. ``figures`` and ``rank_figures`` plot. ``verb`` makes a verb of a measure.
"""
