"""Fine-tuning: from a model to the results of a task, over learning rates and seeds.

The files in the order of the work: ``options`` are those of the verbs, ``driver`` runs them. ``start`` finds the model
to start from. An ``adapter`` for each kind of task (``sentences``, ``squad``, ``tagging``) reads its files. ``sweep``
trains, by ``recipes`` where the options say nothing, and selects; ``results`` are its statistics and the report.
"""
